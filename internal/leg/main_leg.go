package leg

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

type mainPhase uint8

const (
	mainAwaitHeaders mainPhase = iota
	mainAwaitBody
	mainResolving
	mainWaiting
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

// Main is the machine of one attempt's main leg; see the phase table in the package
// documentation. It is not safe for concurrent use: its stream gives it one event at a
// time.
type Main struct{ pairing }

// NewMain returns the machine of a new attempt.
func NewMain(r *Rules, w Way) Main {
	var m Main
	m.rules, m.way = r, w
	return m
}

// Step takes one event and returns the effects to perform, in order. The slice is valid
// until the next call.
func (m *Main) Step(now time.Time, ev *Event) []Effect {
	m.out, m.charges.seen = m.out[:0], m.charges.seen[:0]
	switch ev.Kind {
	case EventClosed:
		m.onClosed(now)
	case EventLeg:
		if ev.Leg.State == Started || m.plan == nil || !m.plan.sent() {
			m.onLeg(now, ev.Leg) // the end of a leg that the plugin sent comes with EventPrefilled
		}
	case EventGone, EventMute:
		if ev.Left || m.charges.probed {
			m.onGone(now, ev)
		}
	case EventTimer:
		m.onTimer(now, ev.Repeat)
	case EventDrain:
		m.onDrain(now)
	case EventLogged:
		m.onLogged(now, ev)
	case EventLogBroken:
		m.logBroke = true
		if m.phase == mainLeft { // others learn of the end from their stream, or leave it yet
			m.timers.logBroken(now)
		}
	case EventStalled:
		stalled(&m.attempt, now, ev.Bytes)
	case EventRuns:
		m.timers.runs(now)
	case EventPicked:
		m.onPicked(now, ev.Plan)
	case EventRefused:
		m.onRefused(now, ev)
	case EventAnswered:
		m.onAnswered(ev.Imm)
	case EventFound:
		m.onFound(now, ev)
	case EventPrefilled:
		m.onPrefilled(now, ev)
	case EventCollected:
		m.onCollected()
	case EventStale:
		stale(&m.attempt, now)
	default:
		if !m.onMessage(now, ev) {
			m.reject(&FailProtocol, false)
		}
	}
	return m.out
}

// onMessage takes one of Envoy's messages. It returns false if the message is out of
// order.
func (m *Main) onMessage(now time.Time, ev *Event) bool {
	switch m.phase {
	case mainAwaitHeaders, mainAwaitBody, mainResolving, mainWaiting, mainPrefilling:
		if m.onRequestMessage(now, ev) {
			return true
		}
	case mainRouted:
		if ev.Kind == EventResponseHeaders {
			m.onResponseHeaders(now, ev)
			return true
		}
		if ev.Kind == EventRequestTrailers && !m.req.fullDuplex { // trailers come after the answer to a buffered body
			m.emit(Effect{Op: OpContinue, Of: wire.RequestTrailers})
			return true
		}
	case mainStreaming, mainHolding:
		p, ok := pieceOf(ev)
		if ok {
			m.onAnswerPiece(now, p)
			return true
		}
	case mainRejected:
		p, ok := pieceOf(ev)
		if ok && m.answer.foreign {
			m.onAnswerPiece(now, p)
		} else {
			m.rules.Buffers.Return(ev.Body)
		}
		return true
	case mainEnded, mainLeft, mainLingering, mainDone:
		return true
	}
	// Envoy 1.35 and later may repeat the end of a large body (envoy #46237).
	return ev.Kind == EventRequestBody && ev.EndOfStream && m.phase > mainAwaitBody
}

// onRequestMessage takes a message of Envoy's before the request has gone to decode. It
// returns false if the message is out of order.
func (m *Main) onRequestMessage(now time.Time, ev *Event) bool {
	switch {
	case ev.Kind == EventResponseHeaders: // Envoy has answered, or a filter before ours, such as another endpoint picker
		m.onProxyRefusal(ev)
	case m.phase == mainAwaitHeaders && ev.Kind == EventRequestHeaders:
		m.onRequestHeaders(now, ev)
	case m.phase == mainAwaitBody && ev.Kind == EventRequestBody:
		m.onRequestBody(ev)
	case m.phase == mainAwaitBody && ev.Kind == EventRequestTrailers:
		m.req.trailers = true
		m.onRequestEnd()
	default:
		return false
	}
	return true
}

func (m *Main) onRequestHeaders(now time.Time, ev *Event) {
	q := &m.req
	q.come(ev, m.way)
	m.answer.carriage = carriageOf(ev)
	f := q.setDeadline(now, ev.Received, m.rules)
	if f != nil {
		m.reject(f, false)
		return
	}
	op, model := question(q.Headers.Path)
	if op != 0 {
		m.onQuestion(op, model)
		return
	}
	f = q.accept(ev, m.way, m.rules)
	switch {
	case f != nil:
		m.reject(f, false)
	case q.scope == scopeBare:
		m.phase = mainResolving
		m.emit(Effect{Op: OpPick})
	default:
		m.phase = mainAwaitBody
		if !q.fullDuplex {
			m.emit(Effect{Op: OpContinue, Of: wire.RequestHeaders})
		}
	}
}

// onQuestion has the runner answer a question that needs no worker: [question].
func (m *Main) onQuestion(op Op, model string) {
	if m.req.Headers.Method != "GET" && m.req.Headers.Method != "HEAD" {
		f := failMethod
		f.Message, f.Header.Value = "Use GET on this path.", "GET, HEAD"
		m.reject(&f, false)
		return
	}
	m.phase = mainRejected
	m.emit(Effect{Op: op, Model: model, Retry: m.mayRetry(&FailNotReady)})
	m.finish(Answered, nil)
}

func (m *Main) onRequestBody(ev *Event) {
	whole, refused := m.req.take(ev, m.rules)
	switch {
	case refused != nil:
		m.reject(refused, false)
	case whole:
		m.onRequestEnd()
	}
}

// injectRoom is more bytes than the injected members ever take.
const injectRoom = wire.BodyRoom

func (m *Main) onRequestEnd() {
	f := m.req.read(m.rules)
	if f != nil {
		m.reject(f, false)
		return
	}
	m.phase = mainResolving
	m.emit(Effect{Op: OpPick})
}

func (m *Main) onPicked(now time.Time, p *Plan) {
	m.plan, m.pickedAt = p, now
	m.booked = ofDecode
	if p.Disaggregated {
		m.booked |= ofPrefill
	}
	if !p.Disaggregated || !p.sent() && !p.Kind.Holds() {
		m.req.Headers.All = nil // only a leg that the plugin sends needs them
	}
	if m.phase != mainResolving || m.link == linkOver { // the attempt ended while tokens were counted
		m.releaseDecode()
		m.releasePrefill()
		if m.link == linkOver || !m.answer.foreign { // a foreign answer still has to pass
			m.done()
		}
		return
	}
	if p.Disaggregated && !p.bySidecar() {
		m.dispatch(now)
	}
	switch {
	case m.req.scope == scopeBare:
		m.pass(now)
	case p.Kind.PrefillFirst():
		m.askPrefill(now)
	default:
		m.onBoth(now, p)
	}
}

// onBoth sends the request to decode. For a pair the plugin sends it to prefill, too, or
// Envoy's mirror does, or decode's sidecar.
func (m *Main) onBoth(now time.Time, p *Plan) {
	body := m.req.giveBody()
	inject := p.Disaggregated && !p.InHeaders && !p.bySidecar()
	shared := p.SentBeside && p.Kind.Together.Shared
	if p.SentBeside && !shared { // its prefill has other members in place of decode's
		m.sendBeside(now, body)
	}
	if inject {
		var members [injectRoom]byte
		body = openai.InjectInPlace(body, m.req.Scan, p.Kind.Together.Members(members[:0], p.meeting()))
		if p.Kind.Holds() {
			m.handover.kv = kvSent // prefill holds KV once its leg is well
		}
	}
	if shared {
		m.sendBeside(now, body)
	}
	m.route(now, body, inject)
	m.req.forget(m.rules)
}

func (m *Main) onRefused(now time.Time, ev *Event) {
	f := ev.Failure
	switch {
	case m.link == linkOver:
		m.done()
	case m.phase == mainResolving && ev.Wait:
		m.wait(now)
	case m.phase == mainResolving:
		m.reject(f, m.way.Repick && m.plan == nil || f.Code == FailNotReady.Code)
	}
}

// onAnswered answers a question. Nothing was booked, and no leg runs.
func (m *Main) onAnswered(im *wire.Immediate) {
	switch {
	case m.link == linkOver:
		m.done()
	case m.phase == mainResolving:
		m.phase, m.req.Body = mainRejected, nil
		m.finish(Answered, nil)
		m.emit(Effect{Op: OpImmediate, Imm: im})
	}
}

// onProxyRefusal lets an answer go to the client unchanged that Envoy, or a filter before
// ours, gives before the request has gone to decode. For example, the body is over a
// limit, or the request took too long to arrive.
func (m *Main) onProxyRefusal(ev *Event) {
	f := failProxy
	switch ev.Headers.Status {
	case "413":
		f = failBodyTooLarge
	case "408":
		f = failTooSlow
	}
	m.answer.foreign = true
	m.giveUp()
	m.finish(Refused, &f)
	m.releaseDecode()
	m.emit(Effect{Op: OpContinue, Of: wire.ResponseHeaders})
}

// onResponseHeaders judges decode's answer before any of it goes to the client, so that a
// bad answer can still lead to a fresh attempt.
func (m *Main) onResponseHeaders(now time.Time, ev *Event) {
	m.answer.head(ev)
	m.timers.stop(timerAnswer, timerProbe)
	if m.plan.bySidecar() {
		m.releasePrefill() // the sidecar has prefill's answer before it asks decode
	}
	m.onAnswerer(ev.Answerer)
	flags := ev.Headers.LocalReply
	if m.way.Plain() { // the worker itself may have set the header: nothing strips it
		flags = ""
	}
	m.handover.unsent()
	if flags == "" || reached(flags) {
		m.taken()
	}
	if flags != "" {
		m.onLocalReply(now, flags)
		return
	}
	s := m.answer.sightOfHead(m.req.Passes())
	if s != blame.Served {
		s = m.unfetched(s)
		f := failureOfDecode(s)
		m.met = openai.Words(ev.Error, m.req.kept)
		f.Said = m.answer.said(&m.req, m.met)
		switch cleaned, quoted := m.plan.Kind.Unquoted(ev.Error); {
		case m.decodeFailed(now, s, ev.Odd, &f):
		case quoted && len(ev.Error) == ev.Headers.Length.Within(wire.MaxWhy):
			f.Status, f.Answer = m.answer.Code(), cleaned
			m.reject(&f, false)
		default:
			m.relay(now) // the worker's own words say more than ours
		}
		return
	}
	m.answer.serves(ev, !m.req.Passes())
	if m.holds() {
		m.phase = mainHolding
		if m.far.awaited() {
			m.heldSince = now
		}
		m.extend(now)
		return
	}
	m.relay(now)
}

// onAnswerer corrects which worker serves the request. If another worker of ours has
// answered, the picked one could not be reached, or the proxy does not have it. In both
// cases it is of no use until a probe says otherwise, so it is charged. An unknown
// address may be a tunnel or a NAT in front of the picked worker: the answer counts as
// that worker's.
func (m *Main) onAnswerer(a *Answerer) {
	if a == nil {
		return
	}
	if a.Known {
		m.emit(Effect{Op: OpCharge, Rank: m.plan.Decode, Charge: blame.Connect})
	}
	m.emit(Effect{Op: OpServed, Rank: a.Rank})
	if a.Known {
		m.plan.Decode = a.Rank
	}
}

// onLocalReply takes an answer that Envoy made itself: no worker gave it. If one of
// Envoy's timers is its cause, the deadline has passed, to which the plugin sets that
// timer.
func (m *Main) onLocalReply(now time.Time, flags string) {
	s := localSight(flags)
	f := failureOfDecode(s)
	f.Said = m.answer.said(&m.req, byEnvoy(flags))
	if !m.decodeFailed(now, s, false, &f) {
		m.reject(&f, false)
	}
}

// onAnswerPiece takes a piece of an answer whose headers have come.
func (m *Main) onAnswerPiece(now time.Time, p piece) {
	a := &m.answer
	if m.phase == mainStreaming || a.foreign {
		if m.met == "" && a.sent == sentNothing && !m.ServesSoFar() { // later pieces begin amid an error
			m.met = openai.Words(p.body, m.req.kept)
		}
		m.onFirstPiece(now, p)
		m.emit(a.pass(p))
		awaitPiece(&m.attempt, now)
		return
	}
	a.hold(p)
	m.onFirstPiece(now, p)
	if m.phase == mainHolding && (a.full() || !m.holds()) {
		m.relay(now)
	}
}

// onFirstPiece looks for first events in a piece of the answer, and acts on what it
// finds.
func (m *Main) onFirstPiece(now time.Time, p piece) {
	found := m.answer.read(p)
	if found == openai.FoundNothing {
		return
	}
	m.emit(Effect{Op: OpFound, Found: found})
	if found == openai.FoundError || found == openai.FoundEnd {
		e := &m.answer.events
		m.onFound(now, &Event{Seen: SightOfEvents(found, e.Status()), Status: e.Status(), Error: e.Error()})
	}
	m.answer.events, m.req.kept = openai.FirstEvents{}, nil
}

// onFound acts on first events of decode's answer that do not serve the request. If none
// of them has gone to the client, a fresh attempt may do better. Without one the events
// go on: the worker's own words say more than ours.
func (m *Main) onFound(now time.Time, ev *Event) {
	if m.plan == nil || m.answer.unserved != "" {
		m.emit(Effect{Op: OpPass})
		return
	}
	if m.phase == mainRouted { // another stream holds the head
		m.answer.status = "200"
		m.handover.unsent()
		m.taken()
	}
	m.timers.stop(timerAnswer, timerProbe)
	seen := m.unfetched(ev.Seen)
	f := failureOfDecode(seen)
	m.met = metIn(seen, ev.Status, openai.Words(ev.Error, m.req.kept))
	f.Said = m.answer.said(&m.req, m.met)
	if m.phase == mainRouted || m.phase == mainHolding {
		if m.decodeFailed(now, seen, ev.Odd, &f) {
			return
		}
	} else if !m.finished {
		m.charge(now, blame.Of(m.decodeLeg(), seen), m.plan.Decode, false)
	}
	m.answer.unserved = seen
	m.emit(Effect{Op: OpPass})
	if m.phase == mainHolding {
		m.relay(now)
	}
}

// onSuspect asks for a probe of each worker that the request waits for. Nothing more
// follows from a few seconds of silence. EventGone or EventMute tells what a probe has found.
func (m *Main) onSuspect(now time.Time) {
	m.timers.stop(timerProbe)
	if !m.awaitsPrefill() || m.far.state == Dispatched {
		return // nobody waits, or no worker has the leg yet
	}
	m.timers.set(timerProbe, now.Add(suspectEvery))
	m.charges.probed = true
	switch {
	case m.far.awaited():
		m.suspect(m.plan.Prefill, m.prefillLeg() == blame.Mirrored)
	case m.phase == mainRouted && m.plan.bySidecar():
		m.suspect(m.plan.Prefill, true)
	case m.phase == mainRouted:
		m.suspect(m.plan.Decode, false)
	}
}

// onSilent acts when decode has all that it needs, and has not answered in time. It is for
// decode what onOverdue is for prefill.
func (m *Main) onSilent(now time.Time, repeat bool) {
	m.timers.stop(timerAnswer)
	if m.phase != mainRouted || repeat && m.leaveDecode(now, blame.Overdue) {
		return
	}
	m.waitOn(blame.Of(m.decodeLeg(), blame.Stuck), m.plan.Decode)
	m.timers.set(timerAnswer, now.Add(m.plan.AnswerWithin))
}

// onGone acts when a rank of the attempt has left discovery, or was set aside or is silent
// after the attempt had asked for a probe. The attempt does not wait for that rank any more;
// but one that is silent may only be busy, and is waited for if no other worker can be tried.
func (m *Main) onGone(now time.Time, ev *Event) {
	if m.plan == nil {
		return
	}
	gone := func(r worker.Rank) bool { return r.In(ev.Rank, ev.Whole) }
	if ev.Kind == EventMute {
		switch {
		case !ev.Repeat:
		case m.far.awaited() && gone(m.plan.Prefill):
			m.leavePrefill(now, blame.Gone)
		case gone(m.plan.Decode):
			m.leaveDecode(now, blame.Gone)
		}
		return
	}
	if m.plan.Disaggregated && gone(m.plan.Prefill) {
		m.onLegFailed(now, Report{State: Failed, Reason: blame.Gone})
	}
	if m.phase == mainRouted && gone(m.plan.Decode) {
		f := failDecodeLost
		if !m.decodeFailed(now, blame.Gone, false, &f) {
			m.reject(&f, false)
		}
	}
}
