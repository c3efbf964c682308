package extproc

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/wire"
)

// notice is what is posted to a stream: an event for its machine, and values for the stream
// itself.
type notice struct {
	leg.Event
	hints  *wire.Hints  // what the data plane says beside the message; nil: nothing
	booked *booked      // leg.EventPicked, leg.EventRefused, leg.EventAnswered; nil: nothing was booked or recorded
	pass   func()       // leg.EventFound: lets the answer go on
	sent   sent         // leg.EventLogged
	usage  openai.Usage // leg.EventLogged
}

// just returns a notice of an event alone.
func just(ev leg.Event) *notice { return &notice{Event: ev} }

// noticeOf returns the notice of a message from Envoy.
func noticeOf(m *wire.Message) *notice {
	return &notice{Event: leg.EventOf(m), hints: m.Hints}
}

// sent is when Envoy sent the answer on, by its access log. The times first and last count
// from start; 0 means never, or not known.
type sent struct {
	start       time.Time // of the attempt, by the proxy's clock
	first, last time.Duration
}
