package leg

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// EventKind says what has happened to a stream.
type EventKind uint8

// The messages of Envoy.
const (
	EventRequestHeaders   = EventKind(wire.RequestHeaders)
	EventRequestBody      = EventKind(wire.RequestBody)
	EventRequestTrailers  = EventKind(wire.RequestTrailers)
	EventResponseHeaders  = EventKind(wire.ResponseHeaders)
	EventResponseBody     = EventKind(wire.ResponseBody)
	EventResponseTrailers = EventKind(wire.ResponseTrailers)
	EventMalformed        = EventKind(wire.Malformed)
)

// The other events.
const (
	EventPicked  EventKind = EventMalformed + 1 + iota // the plan is made and booked: Plan
	EventRefused                                       // no worker can be picked: Failure, Wait
	EventLeg                                           // the prefill leg reports: Leg
	EventTimer
	EventAbort     // the owner of this prefill leg wants it to end
	EventGone      // a rank of the attempt has left discovery, or was set aside: Rank, Whole, Left
	EventMute      // a rank of the attempt is silent, and another worker is well: Rank, Whole
	EventDrain     // the process is about to end: the machine leaves its stream if it can
	EventPrefilled // a prefill leg that the plugin itself sent has ended: Answer, Moved
	EventCollected // a collecting leg has ended
	EventStale     // OpRoute was not performed, since its hand-off had become too old
	EventAnswered  // the request was a question, which Imm answers
	EventLogged    // Envoy's access log of the request has come: Seen, Status, Reached
	EventLogBroken // a stream of Envoy's access log has broken off: the end of the answer may be lost
	EventStalled   // the answer stands still: Bytes
	EventRuns      // Envoy's access log says that the answer still runs
	EventFound     // another stream has seen that decode's first events do not serve the request: Seen, Odd
	EventPass      // only for that other stream: the answer's owner lets the answer go on
	EventClosed    // the stream is over
)

// Event is one thing that happened to a stream. Which fields count depends on
// Kind.
type Event struct {
	Kind         EventKind
	EndOfStream  bool
	Full         bool            // EventRequestHeaders, EventRequestBody: the memory for bodies has no room for this one
	FullDuplex   bool            // the first message: the filter streams the bodies of requests
	AnswerBodies bool            // the first message: the filter sends the bodies of answers, too
	AnswerDuplex bool            // the first message: the filter streams the bodies of answers
	Unnamed      bool            // EventRequestHeaders: the request came without an id, and the plugin made the one in Headers
	Ending       bool            // EventClosed: the process itself ends its streams
	Whole        bool            // EventGone, EventMute: all ranks of the worker are
	Left         bool            // EventGone: the worker has left discovery; false: it was set aside
	Wait         bool            // EventRefused: a worker may return soon, and the request may wait for it
	Repeat       bool            // EventTimer, EventMute: a leg that is late may be given up for a fresh attempt ([Main.WouldRepeat])
	Odd          bool            // EventResponseHeaders, EventFound: decode refuses more than its pool
	Reached      bool            // EventLogged: decode has seen the request
	Headers      *wire.Headers   // EventRequestHeaders, EventResponseHeaders
	Error        []byte          // EventResponseHeaders, EventFound: the beginning of the body, or the event, with the worker's error
	Body         []byte          // EventRequestBody, EventResponseBody: a buffer of the pool, which the machine now owns
	Received     time.Time       // EventRequestHeaders: when the data plane received the request, by our clock; zero: not known
	Plan         *Plan           // EventPicked
	Failure      *Failure        // EventRefused
	Leg          Report          // EventLeg
	Answer       *OwnAnswer      // EventPrefilled
	Moved        *Seat           // EventPrefilled: decode's new place, if the booked worker is of no use any more; else nil
	Imm          *wire.Immediate // EventAnswered
	Seen         blame.Sight     // EventLogged: how the answer ended; EventFound: what its first events say
	Rank         worker.Rank     // EventGone, EventMute
	Bytes        uint64          // EventStalled, EventRuns: of the answer, as sent on
	Status       int             // EventLogged: the status that Envoy has sent to the client; EventFound: the one that the events name
	Details      string          // EventLogged: what Envoy says of an answer that did not come to its end
	Answerer     *Answerer       // EventResponseHeaders: who has answered in place of the picked worker; else nil
}

// Answerer is the worker that has answered in place of the picked one, as the data plane
// says.
type Answerer struct {
	Rank  worker.Rank
	Known bool // Rank is a worker of ours; false: the data plane named an unknown endpoint
}

// EventOf returns the event for a message of Envoy's.
func EventOf(m *wire.Message) Event {
	return Event{
		Kind: EventKind(m.Kind), Headers: m.Headers, Body: m.Body, EndOfStream: m.EndOfStream,
		FullDuplex: m.FullDuplex, AnswerBodies: m.AnswerBodies, AnswerDuplex: m.AnswerDuplex,
	}
}

// State is how far a prefill leg has come.
type State uint8

// The states of a prefill leg as its owner sees it, in their order.
const (
	None       State = iota // no prefill leg was asked for
	Dispatched              // asked for, but not seen yet
	Started
	Well   // the worker's whole answer has come, and it is good
	Failed // Report.Reason says why
	Ended  // the leg's stream is over, and nothing of the leg remains
)

var stateNames = [...]string{"none", "dispatched", "started", "well", "failed", "ended"}

func (s State) String() string { return stateNames[s] }

// Report is what a prefill leg tells its owner. Answer, RetryAfter and
// Location come from the worker's refusal or redirect.
type Report struct {
	State      State
	Reason     blame.Sight
	Status     int
	Answer     []byte
	RetryAfter string
	Location   string
	Odd        bool  // the worker refuses more than its pool: a mate may be asked
	Told       Told  // Well: what the answer tells of tokens
	Proof      Proof // what that proves, as the attempt judges it; "": not judged
	Expected   int64 // with Proof: how many tokens the prompt was expected to have; 0: not known
	Cached     int64 // Well: tokens of the prompt that the worker did not compute
	Counted    bool  // the engine has reported Cached
	// Said tells what the leg has met, of a leg that failed; see said. The worker's words
	// may come after its status: then they are in the report that the leg has ended.
	Said string
}

// tell adds what the worker's whole answer tells of tokens.
func (r *Report) tell(a *openai.Answer, unread bool) {
	r.Cached, r.Counted = a.Usage.Cached, a.HasUsage && a.Usage.HasCached
	r.Told = toldOf(&a.Usage, a.HasUsage, a.Choices)
	if unread {
		r.Told.Reading = ReadTooLong
	}
}

// busy reports whether a leg failed because there was no room for it, at the worker or at
// Envoy's circuit breaker.
func (r *Report) busy() bool { return r.Reason == blame.Overflow || r.Reason == blame.Busy }
