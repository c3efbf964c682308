package leg

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/extproc/wire"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/prefill"
)

// Scans lends results of scans, which are large for their lives.
type Scans interface {
	Borrow() *openai.Request
	Return(*openai.Request)
}

// Rules are the settings that both machines obey. Read-only.
type Rules struct {
	PrefillTimeout time.Duration // and ended by then
	OrphanGrace    time.Duration // how long a prefill leg may outlive its client
	Hold           bool          // keep decode's headers back until prefill is well
	HoldFirst      bool          // and until its first token
	Fallback       bool          // one worker serves what a synchronous hand-off has failed
	PrefillCluster string        // the mirror's cluster
	MaxAttempts    int
	MaxBodyBytes   int
	PassOther      bool // paths that are not read here
	DefaultTimeout time.Duration
	MaxTimeout     time.Duration
	Names          prefill.Names
	ReasonHeader   string // of the endpoint picker protocol's refusals
	Replicas       bool   // Envoy's access log may go to another process
	Buffers        *wire.Pool
	Scans          Scans
}

// Way is what the machine has to know of the filter.
type Way struct {
	Repick bool // who names workers is asked again on each attempt
	Speaks Protocol
}

// Protocol is what a filter speaks, and what there is beside it.
type Protocol uint8

// The values of Protocol.
const (
	// Own is a filter of our own Envoy configurations.
	Own Protocol = iota
	// Gateway is a filter of the endpoint picker protocol, with all that two legs need.
	Gateway
	// PlainGateway has nothing of ours beside it: no listener for a prefill leg, no fresh
	// attempt, no access log, and nobody strips what clients may not set.
	PlainGateway
)

// Gateway reports whether the filter speaks the endpoint picker protocol.
func (w Way) Gateway() bool { return w.Speaks != Own }

// Plain reports whether there is nothing of ours beside the filter.
func (w Way) Plain() bool { return w.Speaks == PlainGateway }
