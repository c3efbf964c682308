package extproc

import (
	"errors"
	"hash/fnv"
	"strconv"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/internal/budget"
	"github.com/seed-60ae5743/baton/internal/extproc/wire"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/prefill/handoff"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

type mainPhase uint8

const (
	mainAwaitHeaders mainPhase = iota
	mainAwaitBody
	mainResolving
	mainPrefilling
	mainRouted
	mainHolding
	mainStreaming
	mainEnded
	mainRejected
	mainLeft
	mainLingering
	mainDone
)

var mainPhaseNames = [...]string{
	"awaitHeaders", "awaitBody", "resolving", "prefilling", "routed", "holding", "streaming", "ended", "rejected", "left", "lingering", "done",
}

func (p mainPhase) String() string { return mainPhaseNames[p] }

// rules are the settings that both machines obey. Read-only.
type rules struct {
	prefillTimeout time.Duration // and ended by then
	orphanGrace    time.Duration // how long a prefill leg may outlive its client
	hold           bool          // keep decode's headers back until prefill is well
	firstToken     FirstToken    // and until its first token
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
}

// mainLeg is the machine of one attempt's main leg; see the phase table in the
// package documentation. It is not safe for concurrent use: the stream that
// owns it takes one event at a time.
type mainLeg struct {
	rules *rules
	way   way
	phase mainPhase
	leg   legState

	// Set by the request's headers.
	fullDuplex bool
	answer     answerPath
	path       openai.Path
	hdr        wire.Headers
	start      time.Time // when the data plane received the request
	deadline   time.Time
	attempt    int

	pieces gather // of the body, until it is whole

	// Set by the request's end.
	body     []byte
	scan     *openai.Request // lent by requests until the request is routed, or decode answers
	trailers bool
	passing  passing
	named    bool // the request has come without a name, and hdr.requestID is ours

	// Set by the pick.
	plan      *plan
	pickedAt  time.Time
	relayedAt time.Time // decode's head
	well      bool      // prefill was
	startBy   time.Time // zero once the leg has started
	handover  handover
	instead   *failure // prefill has failed for good: one worker is to serve, before this is answered
	overdueAt time.Time
	answerBy  time.Time     // decode's answer; zero while it lacks something
	suspectAt time.Time     // who is waited for is probed then
	suspected bool          // it was, for this attempt
	lapses    int           // how often who is waited for was late, and nobody else could be tried
	avoid     []worker.Rank // who may be at fault for this attempt's failure
	keep      worker.Rank   // the rank that the next one takes again, with another partner; ID 0: none
	orphanAt  time.Time     // set when the client has gone before the prefill leg
	logBy     time.Time     // set while the access log is awaited
	logged    event         // evLogged, when it came before the stream's end
	loggedAt  time.Time

	status      string      // of decode's response headers
	first       answerStart // of decode's answer, where it is one of events
	draining    bool        // the process is about to end
	finished    bool        // opFinish was returned
	closed      bool        // the stream is over: nothing can be sent
	decodeHeld  bool        // a decode reservation is ours to release
	prefillHeld bool        // a prefill reservation is ours to release

	out  []effect   // reused between steps
	seen []sighting // in this step
}

// step takes one event and returns what is to be done, in order. The slice is
// valid until the next call.
func (m *mainLeg) step(now time.Time, ev *event) []effect {
	m.out, m.seen = m.out[:0], m.seen[:0]
	switch ev.kind {
	case evClosed:
		m.onClosed(now)
	case evLeg:
		if ev.leg.state == legStarted || m.plan == nil || !m.plan.kind.PrefillFirst() {
			m.onLeg(now, ev.leg) // how a leg of ours ends, its answer says
		}
	case evGone:
		if ev.left || m.suspected {
			m.onGone(now, ev)
		}
	case evTimer:
		m.onTimer(now)
	case evDrain:
		m.draining = true
		m.maybeLeave()
	case evLogged:
		m.onLogged(now, ev)
	case evPicked:
		m.onPicked(now, ev.plan)
	case evRefused:
		m.onRefused(ev.failure)
	case evAnswered:
		m.onAnswered(ev.imm)
	case evFound:
		m.onFound(now, ev.seen, ev.odd)
	case evPrefilled:
		m.onPrefilled(now, ev.answer)
	case evCollected:
		m.onCollected()
	default:
		m.onMessage(now, ev)
	}
	return m.out
}

// onMessage takes one of Envoy's messages.
func (m *mainLeg) onMessage(now time.Time, ev *event) {
	switch m.phase {
	case mainAwaitHeaders:
		switch ev.kind {
		case evRequestHeaders:
			m.onRequestHeaders(now, ev)
			return
		case evResponseHeaders: // a filter before ours has answered: another picker, or Envoy in its place
			m.onProxyRefusal(ev)
			return
		}
	case mainAwaitBody:
		switch ev.kind {
		case evRequestBody:
			m.onRequestBody(ev)
			return
		case evRequestTrailers:
			m.trailers = true
			m.onRequestEnd()
			return
		case evResponseHeaders:
			m.onProxyRefusal(ev)
			return
		}
	case mainRouted:
		if ev.kind == evResponseHeaders {
			m.onResponseHeaders(now, ev)
			return
		}
		if ev.kind == evRequestTrailers && !m.fullDuplex { // they come once a buffered body is answered
			m.emit(effect{op: opContinue, of: wire.RequestTrailers})
			return
		}
	case mainResolving, mainPrefilling:
		if ev.kind == evResponseHeaders {
			m.onProxyRefusal(ev)
			return
		}
	case mainStreaming, mainHolding:
		if m.onAnswerPiece(now, ev) {
			return
		}
	case mainRejected:
		if !m.answer.foreign || !m.onAnswerPiece(now, ev) {
			m.rules.buffers.Return(ev.body)
		}
		return
	case mainEnded, mainLeft, mainLingering, mainDone:
		return
	}
	// Envoy 1.35 and later may repeat the end of a large body (envoy #46237).
	if ev.kind == evRequestBody && ev.endOfStream && m.phase > mainAwaitBody {
		return
	}
	m.reject(&failProtocol, false)
}

func (m *mainLeg) onRequestHeaders(now time.Time, ev *event) {
	m.hdr, m.fullDuplex = *ev.headers, ev.fullDuplex
	m.answer.sent, m.answer.duplex = ev.answerBodies, ev.answerDuplex
	if m.way.plain {
		m.distrust()
	}
	m.attempt = m.hdr.Attempt()
	if f := m.setDeadline(now, ev.received); f != nil {
		m.reject(f, false)
		return
	}
	path, known := openai.ParsePath(m.hdr.Path)
	model, aboutModels := modelsPath(m.hdr.Path)
	if !known && !aboutModels && m.passes(ev.endOfStream) {
		m.passing.on, m.passing.bare = true, ev.endOfStream
		path = openai.Other
	}
	switch {
	case aboutModels && m.hdr.Method != "GET" && m.hdr.Method != "HEAD":
		f := failMethod
		f.message, f.allow = "Use GET on this path.", "GET, HEAD"
		m.reject(&f, false)
	case aboutModels:
		m.phase = mainRejected
		m.emit(effect{op: opModels, model: model})
		m.finish(outcomeAnswered, nil)
	case m.passing.bare:
		m.phase = mainResolving
		m.emit(effect{op: opPick})
	case !known && !m.passing.on:
		m.reject(&failUnknownPath, false)
	case known && m.hdr.Method != "POST":
		m.reject(&failMethod, false)
	case ev.endOfStream:
		m.reject(&failNoBody, false)
	case m.hdr.Length.N > int64(m.rules.maxBodyBytes):
		m.reject(&failBodyTooLarge, false)
	case ev.full:
		m.reject(m.noRoom(), false)
	default:
		m.path = path
		m.pieces.announced = m.hdr.Length.Within(m.rules.maxBodyBytes)
		m.phase = mainAwaitBody
		if !m.fullDuplex {
			m.emit(effect{op: opContinue, of: wire.RequestHeaders})
		}
	}
}

// noRoom refuses a body. Room for a large one takes as long as others of its kind take to
// come: who asks for it at once again costs those that are served, small ones above all.
func (m *mainLeg) noRoom() *failure {
	f := failBodiesFull
	if m.hdr.Length.N > budget.Small || !m.hdr.Length.Said {
		f.retryAfter = largeAgain(m.hdr.RequestID)
	}
	return &f
}

// largeAgain is 5 to 14 s, by the request's id: of many that are refused at once few come
// again at once.
func largeAgain(requestID string) time.Duration {
	h := fnv.New32a()
	_, _ = h.Write([]byte(requestID))
	return time.Duration(5+h.Sum32()%10) * time.Second
}

// setDeadline counts the client's time-out from Envoy's receipt of the request,
// so that a fresh attempt does not start the clock again.
func (m *mainLeg) setDeadline(now, received time.Time) *failure {
	m.start = received
	if m.start.IsZero() {
		m.start = now
	}
	timeout := m.rules.defaultTimeout
	if m.hdr.Timeout != "" {
		ms, err := strconv.ParseInt(m.hdr.Timeout, 10, 32)
		if err != nil || ms <= 0 {
			return &failBadTimeout
		}
		timeout = time.Duration(ms) * time.Millisecond
	}
	m.deadline = m.start.Add(min(timeout, m.rules.maxTimeout))
	if !m.deadline.After(now) {
		return &failDeadline
	}
	return nil
}

func (m *mainLeg) onRequestBody(ev *event) {
	if m.pieces.size+len(ev.body) > m.rules.maxBodyBytes {
		m.reject(&failBodyTooLarge, false)
		return
	}
	if ev.full {
		m.reject(m.noRoom(), false)
		return
	}
	last := ev.endOfStream || !m.fullDuplex // buffered, it is whole, though trailers may end it
	if last && m.pieces.size == 0 {
		m.body = ev.body
	} else {
		m.pieces.add(m.rules.buffers, ev.body)
	}
	if last {
		m.onRequestEnd()
	}
}

// injectRoom is more than the members we inject ever take.
const injectRoom = wire.BodyRoom

// requests lends scan results, which are large for their lives.
var requests = sync.Pool{New: func() any { return new(openai.Request) }}

func (m *mainLeg) onRequestEnd() {
	if m.body == nil {
		m.body = m.pieces.take(m.rules.buffers)
	}
	m.scan = requests.Get().(*openai.Request)
	var err error
	if m.passing.on {
		err = openai.ScanOther(m.hdr.ContentType, m.body, m.scan)
	} else {
		err = openai.Scan(m.path, m.body, m.scan)
	}
	if err != nil {
		m.reject(badBody(err), false)
		return
	}
	m.phase = mainResolving
	m.emit(effect{op: opPick})
}

// badBody turns the scanner's verdict into a row of the failure table.
func badBody(err error) *failure {
	f := failure{code: "invalid_body", status: 400, kind: kindInvalid, message: "The body cannot be read."}
	var e *openai.Error
	if errors.As(err, &e) {
		f.code, f.message, f.param = e.Kind.String(), e.Error(), e.Field
	}
	return &f
}

func (m *mainLeg) onPicked(now time.Time, p *plan) {
	m.plan, m.pickedAt = p, now
	m.decodeHeld, m.prefillHeld = true, p.disaggregated
	if !p.disaggregated || !p.kind.PrefillFirst() && p.kind != handoff.Mooncake {
		m.hdr.All = nil // no leg of ours will need them
	}
	if m.phase != mainResolving || m.closed { // over while tokens were counted
		m.releaseDecode()
		m.releasePrefill()
		if m.closed || !m.answer.foreign { // else it has still to pass
			m.done()
		}
		return
	}
	if p.disaggregated {
		m.leg = legDispatched
		m.startBy = now.Add(p.startWithin)
		m.overdueAt = now.Add(min(p.overdueAfter, m.rules.prefillTimeout))
		m.suspectAt = now.Add(suspectAfter(p.overdueAfter, suspectPrefill))
	}
	if m.passing.bare {
		m.pass(now)
		return
	}
	if p.kind.PrefillFirst() {
		m.askPrefill(now)
		return
	}
	body := m.body
	m.body = nil // sent; a fresh attempt is a new stream with its own
	if p.disaggregated && !p.inHeaders {
		var members [injectRoom]byte
		body = openai.InjectInPlace(body, m.scan,
			p.appendMembers(members[:0]))
		m.handover.held = p.kind.Holds() // once it is well
		m.handover.sent = m.handover.held
		m.route(now, body, true)
	} else {
		m.route(now, body, false)
	}
	m.forgetRequest()
}

func (m *mainLeg) emit(e effect) {
	if m.out == nil {
		m.out = make([]effect, 0, 4)
	}
	m.out = append(m.out, e)
}
