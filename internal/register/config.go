package register

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/internal/register/engine"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Config says which worker is registered, and how it is watched. The flags of register, in
// internal/config, give and check the times and counts.
type Config struct {
	Engine engine.Config

	// Advertise is the host, or host:port, at which others reach the engine; default: as
	// in the engine's URL.
	Advertise  string
	PreferIPv6 bool // if the name has addresses of both families

	Override        Override
	AnnotationsFile string // of Kubernetes' downward API; default none

	// HealthInterval is the time between two questions about health. With a longer one, a
	// stuck engine is found later. A dead one is found by its connection.
	HealthInterval time.Duration
	// UnhealthyAfter is how many bad answers, without a good one between them, withdraw the
	// worker. A refused connection withdraws it at once, and silence never.
	UnhealthyAfter int
	// Refresh is the time between two readings of the engine's facts, of its address and
	// of the annotations.
	Refresh time.Duration
	// DrainSettle is the shortest drain, counted from when the registry holds that the
	// worker drains. A longer one leaves more time for requests that were picked just
	// before.
	DrainSettle time.Duration
	// DrainTimeout is the longest drain. The drain of an engine that does not count its
	// requests takes all of it.
	DrainTimeout time.Duration

	// Others lists the workers that the registry holds, so that a worker without a partner
	// is told of. Default: it is not looked.
	Others func(ctx context.Context) ([]*worker.Worker, error)

	Resolver Resolver     // default net.DefaultResolver
	Logger   *slog.Logger // nil means slog.DiscardHandler
}

func (c Config) withDefaults() Config {
	if c.Resolver == nil {
		c.Resolver = net.DefaultResolver
	}
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	return c
}

// Validate returns every fault of c, joined, or nil.
func (c Config) Validate() error {
	errs := []error{c.Engine.Validate(), c.Override.Validate()}
	if c.Engine.Validate() == nil {
		_, _, err := advertised(c.Advertise, c.Engine.URL)
		errs = append(errs, err)
	}
	if engines.Of(c.Engine.Kind).HidesRole && c.Override.Role == 0 {
		errs = append(errs, errNoRole)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("register: %w", err)
	}
	return nil
}
