package leg

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/extproc/wire"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// EventKind is what has happened.
type EventKind uint8

// Messages of Envoy.
const (
	EventRequestHeaders   = EventKind(wire.RequestHeaders)
	EventRequestBody      = EventKind(wire.RequestBody)
	EventRequestTrailers  = EventKind(wire.RequestTrailers)
	EventResponseHeaders  = EventKind(wire.ResponseHeaders)
	EventResponseBody     = EventKind(wire.ResponseBody)
	EventResponseTrailers = EventKind(wire.ResponseTrailers)
	EventMalformed        = EventKind(wire.Malformed)
)

// What else happens to a stream.
const (
	EventPicked  EventKind = EventMalformed + 1 + iota // the plan is made and booked
	EventRefused                                       // nothing can be picked
	EventLeg                                           // the prefill leg reports
	EventTimer
	EventAbort     // the owner wants this prefill leg ended
	EventGone      // a rank of the attempt has left discovery, or was set aside
	EventDrain     // the process is about to end: leave what can be left
	EventPrefilled // a prefill that the plugin asked for itself has ended: Answer
	EventCollected // so has a collecting decode
	EventAnswered  // the request was a question: Imm answers it
	EventLogged    // Envoy has logged the request: its end is known
	EventFound     // decode's first events do not serve the request: Seen
	EventPass      // the owner of the answer lets it go on
	EventClosed    // the stream is over
)

// Event is one thing that happened to a stream. Which fields count depends on
// Kind.
type Event struct {
	Kind         EventKind
	EndOfStream  bool
	Full         bool            // EventRequestHeaders, EventRequestBody: bodies have no room for it
	FullDuplex   bool            // the first message: the filter streams bodies
	AnswerBodies bool            // the first message: it sends those of answers, too
	AnswerDuplex bool            // … and streams them
	Unnamed      bool            // EventRequestHeaders: the request has come without a name, and the one in Headers is ours
	Ending       bool            // EventClosed: the process cuts its streams
	Whole        bool            // EventGone: all ranks of its worker
	Left         bool            // EventGone: discovery says so; else it was set aside
	Odd          bool            // EventResponseHeaders, EventFound: decode refuses more than its pool
	Reached      bool            // EventLogged: decode has seen the request
	Headers      *wire.Headers   // EventRequestHeaders, EventResponseHeaders
	Body         []byte          // EventRequestBody, EventResponseBody: a buffer of the pool, ours
	Received     time.Time       // EventRequestHeaders: when the data plane received the request, by our clock; zero: not known
	Plan         *Plan           // EventPicked
	Failure      *Failure        // EventRefused
	Leg          Report          // EventLeg
	Answer       *OwnAnswer      // EventPrefilled
	Moved        *Seat           // EventPrefilled: decode was picked again, since the booked one is of no use any more
	Imm          *wire.Immediate // EventAnswered
	Seen         blame.Sight     // EventLogged: how the answer ended; EventFound: what its first events say
	Rank         worker.Rank     // EventGone
	Status       int             // EventLogged: what Envoy has sent on; EventFound: what the events name
	Answerer     *Answerer       // EventResponseHeaders: not who was picked has answered
}

// Answerer is who a data plane says has answered in place of the picked one.
type Answerer struct {
	Rank  worker.Rank
	Known bool // it is a worker of ours
}

// EventOf is the event that a message is.
func EventOf(m *wire.Message) Event {
	return Event{
		Kind: EventKind(m.Kind), Headers: m.Headers, Body: m.Body, EndOfStream: m.EndOfStream,
		FullDuplex: m.FullDuplex, AnswerBodies: m.AnswerBodies, AnswerDuplex: m.AnswerDuplex,
	}
}

// State is how a prefill leg stands.
type State uint8

// The states of a prefill leg as its owner sees it, in their order.
const (
	None       State = iota // no prefill leg was asked for
	Dispatched              // asked for; not seen yet
	Started
	Well   // the worker's whole answer is there, and it is good
	Failed // see Report.reason
	Ended  // the leg's stream is over; nothing of it remains
)

var stateNames = [...]string{"none", "dispatched", "started", "well", "failed", "ended"}

func (s State) String() string { return stateNames[s] }

// Report is what a prefill leg tells its owner. answer and retryAfter are the
// worker's own, of a refusal.
type Report struct {
	State      State
	Reason     blame.Sight
	Status     int
	Answer     []byte
	RetryAfter string
	Odd        bool  // its worker refuses more than its pool: a mate may be asked
	Cached     int64 // Well: tokens of the prompt that it did not have to compute
	Counted    bool  // the engine has said so
}

// busy reports whether a leg failed for want of room: the worker says so, or
// Envoy's circuit breaker.
func (r *Report) busy() bool { return r.Reason == blame.Overflow || r.Reason == blame.Busy }
