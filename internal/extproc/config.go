package extproc

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/internal/budget"
	"github.com/seed-60ae5743/baton/internal/extproc/wire"
	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/journal"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/overlap"
	"github.com/seed-60ae5743/baton/internal/route"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/tokens"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Conditional says when one worker serves although prefill is there.
type Conditional = route.Conditional

// Config is what a Server is made of. Durations and sizes of zero mean the
// documented default.
type Config struct {
	// The parts. All are required but Logger, Journal, Telemetry and Tracer;
	// nil of these means silence.
	View   *discovery.View
	Board  *activation.Board // follows View; what requests are judged by
	Index  kvindex.Index
	Slots  *kvindex.Slots  // the numbering of Index
	Routes *overlap.Routes // of Index; run by the caller
	// PredictedWeight is what blocks are worth that were routed lately to a rank
	// whose events have not told of them yet; see overlap.Config. 0: nothing, and
	// nothing is noted.
	PredictedWeight float64
	// Tells reports whether events of a rank arrive although its worker names no
	// address for them. Nil: of none. Called for each candidate of a pick.
	Tells     func(worker.Rank) bool
	Tokens    *tokens.Resolver
	Book      *load.Book
	Health    *health.Tracker
	Journal   *journal.Journal
	Telemetry *telemetry.Instruments
	Tracer    *telemetry.Tracer
	Logger    *slog.Logger

	// Namespace is the one whose models this plugin serves.
	Namespace string
	// EnforceDisagg refuses what cannot be served with prefill and decode
	// apart (docs/behaviour.md#one-worker, #prefill-lost).
	EnforceDisagg bool
	// NeverSplit are the models whose requests one worker serves, whoever else is
	// there, and whatever EnforceDisagg says.
	NeverSplit map[string]bool

	// How to pick, by role.
	Prefill    picker.Params
	Decode     picker.Params
	Aggregated picker.Params

	// Conditional says which requests one worker serves though there are others
	// for prefill.
	Conditional Conditional
	// FallbackAggregated serves by one worker what nobody can serve with prefill
	// and decode apart although prefill workers are known
	// (docs/behaviour.md#nobody-eligible), and what prefill has failed in the last
	// attempt, where decode waits for its answer. Without it such requests fail.
	FallbackAggregated bool

	// Names are the headers that tell workers what was chosen.
	Names prefill.Names
	// PrefillCluster is the mirror's cluster in Envoy. Default prefill_leg.
	PrefillCluster string
	// PrefillListener is where the plugin's Envoy takes the legs that the plugin
	// begins itself, for engines whose decode needs prefill's answer:
	// unix:///path or http://host:port, this host's. Empty: such workers are
	// not served.
	PrefillListener string
	// TimeoutHeader is the client's own deadline, in milliseconds, lower case.
	// Default x-request-timeout-ms.
	TimeoutHeader string
	// DefaultTimeout bounds a request without that header, MaxTimeout any.
	// Defaults 10 minutes and 1 hour.
	DefaultTimeout, MaxTimeout time.Duration
	// MaxBodyBytes bounds a request's body, and so does what MaxBodiesBytes leaves for
	// large ones: three quarters. Default 64 MiB. Envoy's own limit comes first.
	MaxBodyBytes int
	// MaxBodiesBytes bounds the bytes of bodies that are in flight, over all requests;
	// beyond it new requests get 503. Default 1 GiB. See package budget.
	MaxBodiesBytes int64
	// MaxAttempts is the first attempt and the fresh attempts after it. It must
	// not exceed Envoy's num_retries plus one. Default 3.
	MaxAttempts int
	// NoHold relays decode's response headers although prefill is not well
	// yet. A prefill that fails then cuts the answer.
	NoHold bool
	// FirstToken says what becomes of decode's streamed answers before their first
	// token. Default FirstTokenHold.
	FirstToken FirstToken
	// AnswerBase is what decode may take for its head. Default 10 s.
	AnswerBase time.Duration
	// DebugHeader answers x-debug-decision with the cost table.
	DebugHeader bool

	// Overrides lets a request weigh its own picks by
	// nvext.router_config_override, and bind them by nvext.routing_constraints;
	// see picker.Override and picker.Constraints.
	Overrides bool

	// RefuseOther refuses paths that are not read here, in place of passing them on to one
	// worker of the model that their bodies name.
	RefuseOther bool

	// Gateway is for the endpoint picker protocol of the Gateway API.
	Gateway Gateway

	// StartTimeout is how long a dispatched prefill leg may take to appear.
	// Default 1 s.
	StartTimeout time.Duration
	// PrefillTimeout bounds a prefill leg. Default 5 minutes.
	PrefillTimeout time.Duration
	// A prefill is overdue OverdueBase after its dispatch, plus
	// OverduePerToken for each prompt token booked on its rank, its own
	// included. Lower finds a hung worker sooner and
	// may take a slow one for hung.
	OverdueBase, OverduePerToken time.Duration
	// MaxQueuedISLTokens refuses new requests with 429 while the prefill ranks
	// of their model that may be picked have this many prompt tokens booked and
	// not done (docs/behaviour.md#full-queue). The request that crosses the limit is
	// taken. Default 0: no limit. Higher lets more requests wait, and wait longer.
	MaxQueuedISLTokens int64
	// OrphanGrace is how long a prefill leg may outlive its client; 0: not at all.
	OrphanGrace time.Duration

	// LegKey seals leg tokens; all replicas behind one Envoy need the same.
	// At least 16 bytes.
	LegKey []byte
	// Instance names this process among its replicas; Advertise, where set,
	// is the address at which they can reach it.
	Instance, Advertise string
	// PeerCredentials are used to call other replicas; nil: plain text.
	PeerCredentials credentials.TransportCredentials
}

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.DefaultTimeout, 10*time.Minute)
	def(&c.MaxTimeout, time.Hour)
	def(&c.StartTimeout, time.Second)
	def(&c.PrefillTimeout, 5*time.Minute)
	def(&c.AnswerBase, 10*time.Second)
	if c.FirstToken == "" {
		c.FirstToken = FirstTokenHold
	}
	if c.PrefillCluster == "" {
		c.PrefillCluster = "prefill_leg"
	}
	if c.TimeoutHeader == "" {
		c.TimeoutHeader = "x-request-timeout-ms"
	}
	if c.MaxBodyBytes == 0 {
		c.MaxBodyBytes = 64 << 20
	}
	if c.MaxBodiesBytes == 0 {
		c.MaxBodiesBytes = 1 << 30
	}
	c.MaxBodyBytes = int(min(int64(c.MaxBodyBytes), budget.New(c.MaxBodiesBytes).Large()))
	if c.Gateway.Endpoints == 0 {
		c.Gateway.Endpoints = 1
	}
	if c.MaxAttempts == 0 {
		c.MaxAttempts = 3
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Validate returns every fault of c, joined, or nil.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if c.View == nil || c.Board == nil || c.Index == nil || c.Routes == nil || c.Slots == nil || c.Tokens == nil || c.Book == nil || c.Health == nil {
		bad("a required part is missing")
	}
	if c.Instance == "" {
		bad("instance: expected a name")
	}
	if c.MaxAttempts < 1 {
		bad("max attempts %d: expected at least 1", c.MaxAttempts)
	}
	if err := c.FirstToken.Validate(); err != nil {
		errs = append(errs, err)
	}
	if c.MaxQueuedISLTokens < 0 {
		bad("max queued isl tokens %d: expected 0 or more", c.MaxQueuedISLTokens)
	}
	if c.DefaultTimeout > c.MaxTimeout {
		bad("default timeout %s: expected at most the maximum, %s", c.DefaultTimeout, c.MaxTimeout)
	}
	for name, d := range map[string]time.Duration{
		"default timeout": c.DefaultTimeout, "start timeout": c.StartTimeout, "prefill timeout": c.PrefillTimeout,
		"overdue base": c.OverdueBase, "overdue per token": c.OverduePerToken, "orphan grace": c.OrphanGrace, "answer base": c.AnswerBase,
	} {
		if d < 0 {
			bad("%s %s: expected 0 or more", name, d)
		}
	}
	for _, p := range []*picker.Params{&c.Prefill, &c.Decode, &c.Aggregated} {
		if err := p.Validate(); err != nil {
			errs = append(errs, err)
		}
	}
	errs = append(errs, c.Conditional.Faults()...)
	errs = append(errs, c.Gateway.faults()...)
	if c.FallbackAggregated && c.EnforceDisagg {
		bad("fallback aggregated: expected it without enforced disaggregation")
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("extproc: %w", errors.Join(errs...))
}

// overdueAfter is how long a prefill may take on a rank with so many tokens
// booked. Absurd settings must not overflow: that would be overdue at once.
func (c *Config) overdueAfter(tokens int64) time.Duration {
	most := c.PrefillTimeout
	if c.OverdueBase >= most || tokens > int64(most/max(c.OverduePerToken, 1)) {
		return most
	}
	return min(c.OverdueBase+time.Duration(tokens)*c.OverduePerToken, most)
}

func (c *Config) rules() *leg.Rules {
	return &leg.Rules{
		PrefillTimeout: c.PrefillTimeout, OrphanGrace: c.OrphanGrace,
		Hold: !c.NoHold, HoldFirst: c.FirstToken == FirstTokenHold, Fallback: c.FallbackAggregated, PrefillCluster: c.PrefillCluster, MaxAttempts: c.MaxAttempts, PassOther: !c.RefuseOther,
		MaxBodyBytes: c.MaxBodyBytes, DefaultTimeout: c.DefaultTimeout, MaxTimeout: c.MaxTimeout, Names: c.Names, Buffers: new(wire.Pool), Scans: new(scanPool),
		ReasonHeader: c.Gateway.ReasonHeader, Replicas: c.Advertise != "",
	}
}
