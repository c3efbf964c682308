package extproc

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/extproc/wire"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/prefill/handoff"
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

// plan is a decision that has been booked, as the machine needs it.
type plan struct {
	nonce         uint64
	disaggregated bool
	kind          handoff.Kind // with disaggregated
	prefill       worker.Rank
	decode        worker.Rank
	decodeAddr    string           // who is to serve, or several, best first
	several       bool             // they are several: who gets it is the proxy's to find
	decodeDPSize  uint32           // ranks at decodeAddr
	prefillAddr   string           // of a mirrored leg, which starts without us where we die before it comes
	model         string           // of the pool
	bootstrap     worker.Bootstrap // prefill's, where both legs go at once
	bootstrapHost string
	bootstrapPort uint16
	room          prefill.Room
	inHeaders     bool // the engine takes bootstrap data as headers

	// Of a synchronous hand-off.
	prefillDPSize uint32 // ranks at prefill's address
	handoffID     uint64 // TensorRT-LLM's disagg_request_id
	decodeAlone   bool   // decode can do without a hand-off

	token        string
	answerToken  string        // goes with the answer: who it is of; empty: nobody asks
	looks        bool          // a stream of its own reads decode's first events
	traceparent  string        // of our own span; empty: leave the client's
	overdueAfter time.Duration // from the dispatch, of prefill
	startWithin  time.Duration // the same, until its leg has begun
	answerWithin time.Duration // of decode, once it has all that it needs; 0: no limit
	spare        spare         // who else could be tried
	failing      int           // how often its hand-off has lately failed for other requests
	suspects     suspects      // of earlier attempts of the request
	explain      string        // the debug header's value, if asked for

	// The request has named the worker: a fresh attempt would meet it again.
	prefillNamed, decodeNamed bool
}

// appendMembers appends the members that the body of both legs gets.
func (p *plan) appendMembers(dst []byte) []byte {
	if p.kind == handoff.Mooncake {
		return handoff.AppendMooncake(dst, p.bootstrap, p.prefill.DPRank, p.room)
	}
	return handoff.AppendSGLang(dst, p.bootstrapHost, p.bootstrapPort, p.room)
}

// seat is where decode runs, when it was picked again while prefill ran.
type seat struct {
	rank   worker.Rank
	addr   string
	dpSize uint32 // ranks at addr
	alone  bool   // it can do without a hand-off
}

// move lets decode run somewhere else.
func (p *plan) move(to *seat) {
	if to != nil {
		p.decode, p.decodeAddr, p.decodeDPSize, p.decodeAlone, p.several = to.rank, to.addr, to.dpSize, to.alone, false
	}
}

// spare says which legs another worker could serve.
type spare struct{ Prefill, Decode bool }

type suspects = blame.Suspects[worker.Rank]

type op uint8

const (
	opContinue     op = iota + 1 // answer the message with nothing changed
	opRoute                      // answer the request's end: set, body
	opRouteHeaders               // answer the request's headers, whose body passes by: set
	opRelay                      // answer the response headers: set
	opImmediate                  // ImmediateResponse: imm
	opExtend                     // extend Envoy's message timeout: wait
	opPrefill                    // ask for prefill: set, body, wait; answers evPrefilled
	opCollect                    // let a decode take what prefill holds: body; answers evCollected
	opPick                       // resolve tokens, pick, reserve; answers evPicked or evRefused. fail: one worker only, in its place
	opModels                     // answer GET /v1/models, or of one model
	opReport                     // tell the leg's owner: leg, report
	opAbortLeg                   // end the prefill leg
	opCharge                     // tell health: rank, charge, proven
	opSuspect                    // have health probe a worker: rank
	opPairFailed                 // a hand-off has failed: rank, other
	opPairServed                 // one has worked
	opServed                     // another rank serves in decode's place: rank, zero where it is none of ours
	opReleaseDecode
	opReleasePrefill
	opMark   // the journal's timings and leg outcome: report
	opFinish // the attempt's outcome for journal and metrics: outcome, fail
	opLeave  // end the stream in order; the answer goes on
	opFound  // what decode's first events have said: found
	opPass   // let them go on
	opForget // the attempt is over: drop it from the registry
)

var opNames = [...]string{
	"", "continue", "route", "route headers", "relay", "immediate", "extend", "prefill", "collect", "pick", "models", "report",
	"abort-leg", "charge", "suspect", "pair failed", "pair served", "served", "release decode", "release prefill", "mark", "finish", "leave", "found", "pass", "forget",
}

// effect is one thing the runner is to do. Which fields count depends on op.
type effect struct {
	op          op
	of          wire.Kind
	set         []wire.Header
	remove      []string
	body        []byte      // opRoute: the new body; nil: as it came
	path        openai.Path // opCollect
	model       string      // opModels: the one that is asked for; empty: all
	trailers    bool        // opRoute: request trailers end the body
	retry       bool        // opModels: a fresh attempt is allowed
	holds       bool        // opExtend: decode's head waits for prefill
	token       string      // opRoute: goes with the answer
	newRoute    bool        // opRoute: the headers choose the route
	imm         *wire.Immediate
	wait        time.Duration
	report      legReport
	rank        worker.Rank
	other       worker.Rank // opPairFailed, opPairServed: decode, rank is prefill
	charge      blame.Charge
	proven      bool
	outcome     outcome
	fail        *failure
	found       openai.Finding
	endOfStream bool
}

// outcome is how an attempt ended. The names are metric labels.
type outcome = blame.Outcome

// The outcomes that no leg makes.
const (
	outcomeRefused  outcome = "refused"  // by the plugin: no worker was asked
	outcomeAnswered outcome = "answered" // by the plugin itself
)
