package extproc

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/extproc/wire"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

type eventKind uint8

// Messages of Envoy.
const (
	evRequestHeaders   = eventKind(wire.RequestHeaders)
	evRequestBody      = eventKind(wire.RequestBody)
	evRequestTrailers  = eventKind(wire.RequestTrailers)
	evResponseHeaders  = eventKind(wire.ResponseHeaders)
	evResponseBody     = eventKind(wire.ResponseBody)
	evResponseTrailers = eventKind(wire.ResponseTrailers)
	evMalformed        = eventKind(wire.Malformed)
)

// What else happens to a stream.
const (
	evPicked  eventKind = evMalformed + 1 + iota // the plan is made and booked
	evRefused                                    // nothing can be picked
	evLeg                                        // the prefill leg reports
	evTimer
	evAbort     // the owner wants this prefill leg ended
	evGone      // a rank of the attempt has left discovery, or was set aside
	evDrain     // the process is about to end: leave what can be left
	evPrefilled // a prefill that the plugin asked for itself has ended: answer
	evCollected // so has a collecting decode
	evAnswered  // the request was a question: imm answers it
	evLogged    // Envoy has logged the request: its end is known
	evFound     // decode's first events do not serve the request: seen
	evPass      // the owner of the answer lets it go on
	evClosed    // the stream is over
)

// event is one thing that happened to a stream. Which fields count depends on
// the kind.
type event struct {
	kind         eventKind
	endOfStream  bool
	full         bool            // evRequestHeaders, evRequestBody: bodies have no room for it
	fullDuplex   bool            // the first message: the filter streams bodies
	answerBodies bool            // the first message: it sends those of answers, too
	answerDuplex bool            // … and streams them
	unnamed      bool            // evRequestHeaders: the request has come without a name, and the one in headers is ours
	ending       bool            // evClosed: the process cuts its streams
	whole        bool            // evGone: all ranks of its worker
	left         bool            // evGone: discovery says so; else it was set aside
	odd          bool            // evResponseHeaders, evFound: decode refuses more than its pool
	reached      bool            // evLogged: decode has seen the request
	headers      *wire.Headers   // evRequestHeaders, evResponseHeaders
	body         []byte          // evRequestBody, evResponseBody: a buffer of the pool, ours
	received     time.Time       // evRequestHeaders: when the data plane received the request, by our clock; zero: not known
	plan         *plan           // evPicked
	failure      *failure        // evRefused
	leg          legReport       // evLeg
	answer       *legAnswer      // evPrefilled
	moved        *seat           // evPrefilled: decode was picked again, since the booked one is of no use any more
	imm          *wire.Immediate // evAnswered
	seen         blame.Sight     // evLogged: how the answer ended; evFound: what its first events say
	rank         worker.Rank     // evGone
	status       int             // evLogged: what Envoy has sent on; evFound: what the events name
	answerer     *answerer       // evResponseHeaders: not who was picked has answered
}

// answerer is who a data plane says has answered in place of the picked one.
type answerer struct {
	rank  worker.Rank
	known bool // it is a worker of ours
}

// eventOf is the event that a message is.
func eventOf(m *wire.Message) event {
	return event{
		kind: eventKind(m.Kind), headers: m.Headers, body: m.Body, endOfStream: m.EndOfStream,
		fullDuplex: m.FullDuplex, answerBodies: m.AnswerBodies, answerDuplex: m.AnswerDuplex,
	}
}

type legState uint8

// The states of a prefill leg as its owner sees it, in their order.
const (
	legNone       legState = iota // no prefill leg was asked for
	legDispatched                 // asked for; not seen yet
	legStarted
	legWell   // the worker's whole answer is there, and it is good
	legFailed // see legReport.reason
	legEnded  // the leg's stream is over; nothing of it remains
)

var legStateNames = [...]string{"none", "dispatched", "started", "well", "failed", "ended"}

func (s legState) String() string { return legStateNames[s] }

// legReport is what a prefill leg tells its owner. answer and retryAfter are the
// worker's own, of a refusal.
type legReport struct {
	state      legState
	reason     blame.Sight
	status     int
	answer     []byte
	retryAfter string
	odd        bool  // its worker refuses more than its pool: a mate may be asked
	cached     int64 // legWell: tokens of the prompt that it did not have to compute
	counted    bool  // the engine has said so
}

// busy reports whether a leg failed for want of room: the worker says so, or
// Envoy's circuit breaker.
func (r *legReport) busy() bool { return r.reason == blame.Overflow || r.reason == blame.Busy }
