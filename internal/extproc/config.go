package extproc

import (
	"log/slog"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/internal/budget"
	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/journal"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/overlap"
	"github.com/seed-60ae5743/baton/internal/record"
	"github.com/seed-60ae5743/baton/internal/route"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/tokens"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Conditional says when one worker serves a request although there are prefill workers.
type Conditional = route.Conditional

// Config configures a Server. internal/config has the defaults and the bounds of what an
// operator can set, so New does not check those fields again.
type Config struct {
	// The parts that a Server uses. All are required, except Tells, Ready and the last four.
	// Without one of the last four, nothing is recorded there.
	View   *discovery.View
	Board  *activation.Board // follows View; requests are judged by its world
	Index  kvindex.Index
	Slots  *kvindex.Slots  // the numbering of Index
	Routes *overlap.Routes // for Index; the caller runs it
	// Predicts says that a block counts that was lately routed to a rank whose KV events do
	// not tell of the block yet. Otherwise such blocks are not noted either.
	Predicts bool
	// Tells reports whether KV events tell what a rank holds. If nil, they do where its worker
	// names an address for them. Decisions call it. Heard must be called when the answer for a
	// rank changes.
	Tells func(worker.Rank) bool
	// Resync connects the stream of a rank's KV events anew, since the rank holds less than they
	// say; with empty what is known of its blocks is dropped before. If nil, only its overlap
	// counts for less.
	Resync func(r worker.Rank, empty bool)
	// Events returns how many messages with KV events of a rank have come in all, whether
	// none is known to be missing, and whether they tell all that decides what it delivers. If
	// nil, nobody is found that publishes none.
	Events func(worker.Rank) (messages uint64, whole, all bool)
	// Ready reports whether the plugin is ready. If nil, it is once Board is.
	Ready     func() (ready bool, why string)
	Tokens    *tokens.Resolver
	Book      *load.Book
	Health    *health.Tracker
	Journal   *journal.Journal
	Telemetry *telemetry.Instruments
	Tracer    *telemetry.Tracer
	Recorder  *record.Recorder // nil: decisions are not recorded
	Logger    *slog.Logger

	// Namespace is the namespace whose models this plugin serves.
	Namespace string
	// EnforceDisagg refuses requests that cannot be served with prefill and decode
	// apart (docs/behaviour.md#one-worker, #prefill-lost).
	EnforceDisagg bool
	// NeverSplit names the models whose requests one worker serves, also if there are
	// prefill workers, and also with EnforceDisagg.
	NeverSplit map[string]bool

	// How to pick, by role.
	Prefill    route.Params
	Decode     route.Params
	Aggregated route.Params

	// Conditional says which requests one worker serves although there are prefill
	// workers.
	Conditional Conditional
	// FallbackAggregated lets one worker serve a request in two cases: prefill workers
	// are known, but no pair can serve the request (docs/behaviour.md#nobody-eligible);
	// or prefill has failed in the last attempt, with an engine whose decode needs
	// prefill's answer. If false, such requests fail.
	FallbackAggregated bool

	// Names are the headers that tell workers what was chosen.
	Names prefill.Names
	// Sidecar says that decode workers have llm-d's sidecar. Where a gateway carries one
	// leg, the answer to it then names the prefill worker in prefill.HeaderPrefiller, and
	// that sidecar sends the prefill leg.
	Sidecar bool
	// PrefillListener is the address on this host, unix:///path or http://host:port, at
	// which the plugin's Envoy takes the legs that the plugin sends itself. Engines
	// whose decode needs prefill's answer need such legs: if the address is empty, their
	// prefill workers are not used.
	PrefillListener string
	// MaxLegs bounds how many legs the plugin sends at once: each takes an open file. A
	// request beyond it gets 503. 0: no bound.
	MaxLegs int64
	// Targets are within which time first tokens are wanted of requests that do not say it, by model.
	Targets map[string]time.Duration
	// DefaultTimeout bounds a request that names no deadline, MaxTimeout every request.
	DefaultTimeout, MaxTimeout time.Duration
	// MaxWait is how long a request waits for a worker to return, at most to its deadline,
	// if all workers of a role are set aside and one may come back.
	MaxWait time.Duration
	// HandedOver names members of a body that no row of what an engine takes has, and which are
	// handed over all the same.
	HandedOver []string
	// MaxBodyBytes bounds a request's body. A value above three quarters of
	// MaxBodiesBytes is lowered to that, since large bodies get no more together.
	// Envoy applies its own limit before.
	MaxBodyBytes int
	// MaxBodiesBytes bounds the bytes of bodies that are in flight, over all requests.
	// A request whose body would exceed it gets 503. See package budget.
	MaxBodiesBytes int64
	// MaxAttempts is how many attempts a request may have, the first one included. It
	// must not exceed Envoy's num_retries plus one.
	MaxAttempts int
	// NoHold relays decode's response headers before prefill is well. If prefill then
	// fails, the answer is cut.
	NoHold bool
	// FirstToken says what becomes of decode's streamed answers before their first
	// token.
	FirstToken FirstToken
	// AnswerBase is decode's allowance for its response headers, of which package
	// patience makes the limit.
	AnswerBase time.Duration
	// DebugHeader puts the decision and its costs into a header of the answer if the
	// request has the header x-debug-decision.
	DebugHeader bool
	// CachedHeader tells with the answers of pairs how much of the prompt prefill had cached.
	CachedHeader bool

	// Overrides allows a request to set the weights of its own picks by
	// nvext.router_config_override, and constraints on them by
	// nvext.routing_constraints (docs/config.md).
	Overrides bool

	// RefuseOther refuses requests on paths that the plugin does not split. If false,
	// such a request is passed on to one worker of the model that its body names.
	RefuseOther bool

	// Gateway configures the endpoint picker protocol of the Gateway API.
	Gateway Gateway

	// StartTimeout is how long a dispatched prefill leg may take to start. A large body
	// and attempts in flight add to it.
	StartTimeout time.Duration
	// PrefillTimeout bounds a prefill leg.
	PrefillTimeout time.Duration
	// The allowance of a prefill leg is OverdueBase, plus OverduePerToken for each
	// prompt token booked on its rank, its own included. Package patience makes of it
	// the time after which the leg is overdue. With lower values a worker that hangs is
	// found sooner, but a slow worker may be treated as one.
	OverdueBase, OverduePerToken time.Duration
	// MaxQueuedISLTokens refuses new requests with 429 while the prefill ranks
	// of their model that may be picked have this many prompt tokens booked and
	// not done (docs/behaviour.md#full-queue). The request that crosses the limit is
	// served. 0: no limit. With a higher limit more requests wait, for longer.
	MaxQueuedISLTokens int64
	// OrphanGrace is how long a prefill leg may outlive its client; 0: not at all.
	OrphanGrace time.Duration
	// Shares says that Book has what the other replicas have booked, too.
	Shares bool
	// HandOffLease is how long engines that free held KV after a while hold it; 0: what they
	// have by default (handoff.Protocol.Lease). A shorter one costs fresh attempts; with a longer
	// one than the engines' a decode may read the KV of another prompt.
	HandOffLease time.Duration

	// LegKey seals leg tokens, in at least 16 bytes. All replicas behind one Envoy need
	// the same key.
	LegKey []byte
	// Instance names this process among its replicas. Advertise is the address at which
	// they can reach it; empty: they cannot.
	Instance, Advertise string
	// PeerCredentials are used to call other replicas; nil: plain text.
	PeerCredentials credentials.TransportCredentials
}

func (c *Config) resync(r worker.Rank, empty bool) {
	if c.Resync != nil {
		c.Resync(r, empty)
	}
}

func (c Config) withDefaults() Config {
	c.MaxBodyBytes = int(min(int64(c.MaxBodyBytes), budget.New(c.MaxBodiesBytes).Large()))
	if c.Telemetry == nil {
		c.Telemetry = new(telemetry.Instruments)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// overdueAfter returns the allowance of a prefill leg on a rank with so many tokens booked,
// at most PrefillTimeout. The sum must not overflow with very large settings, since the leg
// would then be overdue at once.
func (c *Config) overdueAfter(tokens int64) time.Duration {
	most := c.PrefillTimeout
	if c.OverdueBase >= most || tokens > int64(most/max(c.OverduePerToken, 1)) {
		return most
	}
	return min(c.OverdueBase+time.Duration(tokens)*c.OverduePerToken, most)
}

func (c *Config) rules() *leg.Rules {
	return &leg.Rules{
		PrefillTimeout: c.PrefillTimeout, OrphanGrace: c.OrphanGrace, Lease: c.HandOffLease,
		Hold: !c.NoHold, HoldFirst: c.FirstToken == FirstTokenHold, Fallback: c.FallbackAggregated, MaxAttempts: c.MaxAttempts, PassOther: !c.RefuseOther,
		Served:       engines.Served,
		MaxBodyBytes: c.MaxBodyBytes, DefaultTimeout: c.DefaultTimeout, MaxTimeout: c.MaxTimeout, Names: c.Names, Buffers: new(wire.Pool), Scans: new(openai.Pool),
		ReasonHeader: c.Gateway.ReasonHeader, CachedHeader: c.CachedHeader, Replicas: c.Advertise != "",
	}
}
