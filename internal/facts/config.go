package facts

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/seed-60ae5743/baton/pkg/discovery"
)

// Config configures a [Source].
type Config struct {
	// Inner is the source whose workers are asked. Required.
	Inner discovery.Source

	// Defaults are for the workers of Inner.
	Defaults Defaults

	// PortOffset is how much higher the port is at which a decode worker's engine answers
	// than that of its endpoint, where a sidecar has the endpoint's port; llm-d's: 200.
	// Default 0. A worker with [worker.Worker.FactsPort] is asked there.
	PortOffset int

	// TLS asks over HTTPS. Nil: HTTP.
	TLS *tls.Config

	// Refresh is the time between two questions to a worker whose facts are known, give
	// or take a fifth, and the longest pause of one that does not answer. Default 1 min.
	// With a higher value, a new adapter is known later, and engines are asked less.
	Refresh time.Duration
	// Retry is the pause after the first question without an answer; it doubles with each
	// further one. Default 1 s.
	Retry time.Duration
	// Timeout bounds one question, with all its pages. Default 5 s. The first question to
	// a worker takes at most 1 s.
	Timeout time.Duration
	// AtOnce is how many questions may run at a time. Default 16. With a higher value,
	// workers that hang delay the others less.
	AtOnce int
	// PerHost is how many questions may run at one IP address at a time. Default 2.
	PerHost int
	// PerSecond is how many questions may begin within a second. Default 100.
	PerSecond int

	// Reader asks. Default: [Engines] with APIKeyFile, KeySetting and TLS.
	Reader     Reader
	APIKeyFile string
	KeySetting string // what an operator calls APIKeyFile

	// Counted gets the result of each question: nil, or why there was no answer. Default:
	// nothing is called.
	Counted func(error)
	Log     *slog.Logger // nil means no log
	Seed    uint64       // for the jitter; 0: random
}

func (c Config) withDefaults() Config {
	c.Defaults = c.Defaults.WithDefaults()
	c.Refresh = cmp.Or(c.Refresh, time.Minute)
	c.Retry = min(cmp.Or(c.Retry, time.Second), c.Refresh)
	c.Timeout = cmp.Or(c.Timeout, 5*time.Second)
	c.AtOnce = cmp.Or(c.AtOnce, 16)
	c.PerHost = cmp.Or(c.PerHost, 2)
	c.PerSecond = cmp.Or(c.PerSecond, 100)
	if c.Counted == nil {
		c.Counted = func(error) {}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// Validate returns every fault of c, joined, or nil.
func (c Config) Validate() error {
	errs := []error{c.Defaults.Validate()}
	if c.Inner == nil {
		errs = append(errs, errors.New("inner: expected the source whose workers are asked"))
	}
	for _, d := range []struct {
		name string
		v    time.Duration
	}{{"refresh", c.Refresh}, {"retry", c.Retry}, {"timeout", c.Timeout}} {
		if d.v < 0 {
			errs = append(errs, fmt.Errorf("%s %s: expected more than 0", d.name, d.v))
		}
	}
	for _, n := range []struct {
		name string
		v    int
	}{{"at once", c.AtOnce}, {"per host", c.PerHost}, {"per second", c.PerSecond}} {
		if n.v < 0 {
			errs = append(errs, fmt.Errorf("%s %d: expected at least 1", n.name, n.v))
		}
	}
	if c.PortOffset < -mostPort || c.PortOffset > mostPort {
		errs = append(errs, fmt.Errorf("port offset %d: expected %d to %d", c.PortOffset, -mostPort, mostPort))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("facts: %w", err)
	}
	return nil
}
