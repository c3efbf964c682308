package extproc

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/extproc/wire"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/openai"
)

// notice is what a stream is told: an event for its machine, and what is the stream's own.
type notice struct {
	leg.Event
	hints  *wire.Hints  // what the data plane says beside the message; nil: nothing
	booked *booked      // leg.EventPicked, leg.EventRefused, leg.EventAnswered; nil: nothing was
	pass   func()       // leg.EventFound: lets the answer go on
	sent   sent         // leg.EventLogged
	usage  openai.Usage // leg.EventLogged
}

// just is an event that all is said with.
func just(ev leg.Event) *notice { return &notice{Event: ev} }

// noticeOf is the event that a message is.
func noticeOf(m *wire.Message) *notice {
	return &notice{Event: leg.EventOf(m), hints: m.Hints}
}

// sent is when an answer was sent on, as Envoy's access log has it: from the start of
// the attempt. 0 is never, or not known.
type sent struct {
	start       time.Time // of the attempt
	first, last time.Duration
}
