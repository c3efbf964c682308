package extproc

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/extproc/wire"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/prefill"
)

// scans lends results of scans, which are large for their lives.
type scans interface {
	Borrow() *openai.Request
	Return(*openai.Request)
}

// rules are the settings that both machines obey. Read-only.
type rules struct {
	prefillTimeout time.Duration // and ended by then
	orphanGrace    time.Duration // how long a prefill leg may outlive its client
	hold           bool          // keep decode's headers back until prefill is well
	holdFirst      bool          // and until its first token
	fallback       bool          // one worker serves what a synchronous hand-off has failed
	prefillCluster string        // the mirror's cluster
	maxAttempts    int
	maxBodyBytes   int
	passOther      bool // paths that are not read here
	defaultTimeout time.Duration
	maxTimeout     time.Duration
	names          prefill.Names
	reasonHeader   string // of the endpoint picker protocol's refusals
	replicas       bool   // Envoy's access log may go to another process
	buffers        *wire.Pool
	scans          scans
}

// way is what the machine has to know of the filter.
type way struct {
	repick bool // who names workers is asked again on each attempt
	// gateway: the filter speaks the endpoint picker protocol; plain: and there is
	// nothing of ours beside it, no listener for a prefill leg, no fresh attempt,
	// no access log, and nobody strips what clients may not set.
	gateway, plain bool
}
