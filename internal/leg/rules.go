package leg

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/pkg/prefill"
)

// Rules are the settings of both machines. They are only read.
type Rules struct {
	PrefillTimeout time.Duration // the longest time that a prefill leg may take
	OrphanGrace    time.Duration // how long a prefill leg may outlive its client
	Lease          time.Duration // how long engines that free held KV after a while hold it; 0: their default
	Hold           bool          // hold the head of decode's answer until prefill is well
	HoldFirst      bool          // hold the head until the first token, too
	Fallback       bool          // if prefill goes first and fails for good, one worker serves the request
	CachedHeader   bool          // answers tell how much of the prompt prefill had cached
	MaxAttempts    int
	MaxBodyBytes   int
	PassOther      bool // requests on paths that are not read here go on to a worker
	Served         openai.Paths
	DefaultTimeout time.Duration
	MaxTimeout     time.Duration
	Names          prefill.Names
	ReasonHeader   string // in a refusal to a gateway: the header with the reason; "": none
	Replicas       bool   // Envoy may send its access log to another replica
	Buffers        *wire.Pool
	Scans          *openai.Pool
}

// prefillCluster is the cluster to which Envoy mirrors a prefill leg, as Envoy's configurations call it.
const prefillCluster = "prefill_leg"

// ofLease is how much of a lease a hand-off has left at least when it is sent, one part of so many:
// for its way to decode, for decode's to prefill, and for clocks that differ.
const ofLease = 3

// lastMoment returns until when the hand-off of a plan may be sent; zero: at any time. When its
// lease has run out, the engine gives the blocks to others, and a decode that comes then reads what
// these have written (docs/engines.md#vllm-lease).
func (r *Rules) lastMoment(p *Plan) time.Time {
	lease := p.Kind.Lease
	if lease == 0 {
		return time.Time{}
	}
	if r.Lease > 0 {
		lease = r.Lease
	}
	return p.Prefilled.Add(lease - lease/ofLease)
}

// Way is what the machine has to know of the filter that its stream comes from.
type Way struct {
	Repick bool // whoever names workers is asked again on each attempt
	// Sends says that Envoy mirrors no leg: the plugin sends every prefill leg itself. The
	// filter fails closed, so if the plugin dies before an answer, Envoy ends the attempt.
	Sends  bool
	Speaks Protocol
}

// Protocol is what a filter speaks, and what is configured beside it.
type Protocol uint8

// The values of Protocol.
const (
	// Own is a filter of our own Envoy configurations.
	Own Protocol = iota
	// Gateway is a filter of the endpoint picker protocol, with all that two legs need
	// beside it.
	Gateway
	// PlainGateway is such a filter with nothing of ours beside it: no listener for a
	// prefill leg, no fresh attempts, no access log, and nothing that strips what clients
	// may not set.
	PlainGateway
)

// Gateway reports whether the filter speaks the endpoint picker protocol.
func (w Way) Gateway() bool { return w.Speaks != Own }

// Plain reports whether nothing of ours is beside the filter.
func (w Way) Plain() bool { return w.Speaks == PlainGateway }
