package extproc

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/extproc/wire"
	"github.com/seed-60ae5743/baton/internal/openai"
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

// mainLeg is the machine of one attempt's main leg; see the phase table in the
// package documentation. It is not safe for concurrent use: the stream that
// owns it takes one event at a time.
type mainLeg struct{ pairing }

// newMainLeg returns the machine of an attempt that nothing has come of.
func newMainLeg(r *rules, w way) mainLeg {
	var m mainLeg
	m.rules, m.way = r, w
	return m
}

// step takes one event and returns what is to be done, in order. The slice is
// valid until the next call.
func (m *mainLeg) step(now time.Time, ev *event) []effect {
	m.out, m.charges.seen = m.out[:0], m.charges.seen[:0]
	switch ev.kind {
	case evClosed:
		m.onClosed(now)
	case evLeg:
		if ev.leg.state == legStarted || m.plan == nil || !m.plan.kind.PrefillFirst() {
			m.onLeg(now, ev.leg) // how a leg of ours ends, its answer says
		}
	case evGone:
		if ev.left || m.charges.probed {
			m.onGone(now, ev)
		}
	case evTimer:
		m.onTimer(now)
	case evDrain:
		m.onDrain()
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
		m.onPrefilled(now, ev)
	case evCollected:
		m.onCollected()
	default:
		if !m.onMessage(now, ev) {
			m.reject(&failProtocol, false)
		}
	}
	return m.out
}

// onMessage takes one of Envoy's messages, and reports false where it is out of order.
func (m *mainLeg) onMessage(now time.Time, ev *event) bool {
	switch m.phase {
	case mainAwaitHeaders, mainAwaitBody, mainResolving, mainPrefilling:
		if m.onRequestMessage(now, ev) {
			return true
		}
	case mainRouted:
		if ev.kind == evResponseHeaders {
			m.onResponseHeaders(now, ev)
			return true
		}
		if ev.kind == evRequestTrailers && !m.req.fullDuplex { // they come once a buffered body is answered
			m.emit(effect{op: opContinue, of: wire.RequestTrailers})
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
			m.rules.buffers.Return(ev.body)
		}
		return true
	case mainEnded, mainLeft, mainLingering, mainDone:
		return true
	}
	// Envoy 1.35 and later may repeat the end of a large body (envoy #46237).
	return ev.kind == evRequestBody && ev.endOfStream && m.phase > mainAwaitBody
}

// onRequestMessage takes a message of Envoy's while the request has not gone to decode,
// and reports false where it is out of order.
func (m *mainLeg) onRequestMessage(now time.Time, ev *event) bool {
	switch {
	case ev.kind == evResponseHeaders: // Envoy has answered, or a filter before ours: another picker, or Envoy in its place
		m.onProxyRefusal(ev)
	case m.phase == mainAwaitHeaders && ev.kind == evRequestHeaders:
		m.onRequestHeaders(now, ev)
	case m.phase == mainAwaitBody && ev.kind == evRequestBody:
		m.onRequestBody(ev)
	case m.phase == mainAwaitBody && ev.kind == evRequestTrailers:
		m.req.trailers = true
		m.onRequestEnd()
	default:
		return false
	}
	return true
}

func (m *mainLeg) onRequestHeaders(now time.Time, ev *event) {
	q := &m.req
	q.come(ev, m.way)
	m.answer.carriage = carriageOf(ev)
	f := q.setDeadline(now, ev.received, m.rules)
	if f != nil {
		m.reject(f, false)
		return
	}
	model, aboutModels := modelsPath(q.headers.Path)
	if aboutModels {
		m.onModels(model)
		return
	}
	f = q.accept(ev, m.way, m.rules)
	switch {
	case f != nil:
		m.reject(f, false)
	case q.scope == scopeBare:
		m.phase = mainResolving
		m.emit(effect{op: opPick})
	default:
		m.phase = mainAwaitBody
		if !q.fullDuplex {
			m.emit(effect{op: opContinue, of: wire.RequestHeaders})
		}
	}
}

// onModels takes a question about models, or about one of them.
func (m *mainLeg) onModels(model string) {
	if m.req.headers.Method != "GET" && m.req.headers.Method != "HEAD" {
		f := failMethod
		f.message, f.allow = "Use GET on this path.", "GET, HEAD"
		m.reject(&f, false)
		return
	}
	m.phase = mainRejected
	m.emit(effect{op: opModels, model: model, retry: m.mayRetry(&failNotReady)})
	m.finish(outcomeAnswered, nil)
}

func (m *mainLeg) onRequestBody(ev *event) {
	whole, refused := m.req.take(ev, m.rules)
	switch {
	case refused != nil:
		m.reject(refused, false)
	case whole:
		m.onRequestEnd()
	}
}

// injectRoom is more than the members we inject ever take.
const injectRoom = wire.BodyRoom

func (m *mainLeg) onRequestEnd() {
	f := m.req.read(m.rules)
	if f != nil {
		m.reject(f, false)
		return
	}
	m.phase = mainResolving
	m.emit(effect{op: opPick})
}

func (m *mainLeg) onPicked(now time.Time, p *plan) {
	m.plan, m.pickedAt = p, now
	m.decodeHeld, m.prefillHeld = true, p.disaggregated
	if !p.disaggregated || !p.kind.PrefillFirst() && p.kind != handoff.Mooncake {
		m.req.headers.All = nil // no leg of ours will need them
	}
	if m.phase != mainResolving || m.link == linkOver { // over while tokens were counted
		m.releaseDecode()
		m.releasePrefill()
		if m.link == linkOver || !m.answer.foreign { // else it has still to pass
			m.done()
		}
		return
	}
	if p.disaggregated {
		m.dispatch(now)
	}
	switch {
	case m.req.scope == scopeBare:
		m.pass(now)
	case p.kind.PrefillFirst():
		m.askPrefill(now)
	default:
		m.onBoth(now, p)
	}
}

// onBoth sends the request on, to decode and, of a pair, by its mirror to prefill.
func (m *mainLeg) onBoth(now time.Time, p *plan) {
	body := m.req.giveBody()
	inject := p.disaggregated && !p.inHeaders
	if inject {
		var members [injectRoom]byte
		body = openai.InjectInPlace(body, m.req.scan, p.appendMembers(members[:0]))
		if p.kind.Holds() {
			m.handover.kv = kvSent // once it is well
		}
	}
	m.route(now, body, inject)
	m.req.forget(m.rules)
}

func (m *mainLeg) onRefused(f *failure) {
	switch {
	case m.link == linkOver:
		m.done()
	case m.phase == mainResolving:
		m.reject(f, m.way.repick && m.plan == nil || f.code == failNotReady.code)
	}
}

// onAnswered answers a question: nothing was booked and nothing runs.
func (m *mainLeg) onAnswered(im *wire.Immediate) {
	switch {
	case m.link == linkOver:
		m.done()
	case m.phase == mainResolving:
		m.phase, m.req.body = mainRejected, nil
		m.finish(outcomeAnswered, nil)
		m.emit(effect{op: opImmediate, imm: im})
	}
}

// onProxyRefusal takes an answer that Envoy or a filter before ours gives before
// there is a decode to answer: the body is over a limit, or all of it too slow. It
// goes to the client as it is.
func (m *mainLeg) onProxyRefusal(ev *event) {
	f := failProxy
	switch ev.headers.Status {
	case "413":
		f = failBodyTooLarge
	case "408":
		f = failTooSlow
	}
	m.answer.foreign = true
	m.giveUp()
	m.finish(outcomeRefused, &f)
	m.releaseDecode()
	m.emit(effect{op: opContinue, of: wire.ResponseHeaders})
}

// onResponseHeaders judges decode's answer while nothing of it has gone to the
// client, so that a bad one can still become a fresh attempt.
func (m *mainLeg) onResponseHeaders(now time.Time, ev *event) {
	m.answer.head(ev)
	m.timers.stop(timerAnswer, timerProbe)
	m.onAnswerer(ev.answerer)
	flags := ev.headers.LocalReply
	if m.way.plain { // nobody keeps a worker from saying it
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
	s := m.answer.sightOfHead(m.req.passes())
	if s != blame.Served {
		s = m.unfetched(s)
		f := failureOfDecode(s)
		if !m.decodeFailed(now, s, ev.odd, &f) {
			m.relay(now) // the worker's own words say more than ours
		}
		return
	}
	m.answer.serves(ev, !m.req.passes())
	if m.holds() {
		m.phase = mainHolding
		m.emit(effect{op: opExtend, wait: extension(m.req.deadline.Sub(now)), holds: m.far.awaited()})
		return
	}
	m.relay(now)
}

// onAnswerer corrects who serves the request. Where another worker of ours does, the
// picked one could not be reached, or the proxy does not have it: either way it is of
// no use until a probe says otherwise. An address that we do not know may be a tunnel
// or a NAT in front of whom we picked: what it answers is said of that one.
func (m *mainLeg) onAnswerer(a *answerer) {
	if a == nil {
		return
	}
	if a.known {
		m.emit(effect{op: opCharge, rank: m.plan.decode, charge: blame.Connect})
	}
	m.emit(effect{op: opServed, rank: a.rank})
	if a.known {
		m.plan.decode = a.rank
	}
}

// onLocalReply takes an answer that Envoy made itself: no worker said it. A timer
// of Envoy's is the deadline that we set.
func (m *mainLeg) onLocalReply(now time.Time, flags string) {
	s := localSight(flags)
	f := failureOfDecode(s)
	if !m.decodeFailed(now, s, false, &f) {
		m.reject(&f, false)
	}
}

// onAnswerPiece takes a piece of an answer whose headers have come.
func (m *mainLeg) onAnswerPiece(now time.Time, p piece) {
	a := &m.answer
	a.some = a.some || len(p.body) > 0
	if m.phase == mainStreaming || a.foreign {
		m.onFirstPiece(now, p)
		m.emit(a.pass(p))
		return
	}
	a.hold(p)
	m.onFirstPiece(now, p)
	if m.phase == mainHolding && (a.full() || !m.holds()) {
		m.relay(now)
	}
}

// onFirstPiece reads a piece of the answer.
func (m *mainLeg) onFirstPiece(now time.Time, p piece) {
	found := m.answer.read(p)
	if found == openai.FoundNothing {
		return
	}
	m.emit(effect{op: opFound, found: found})
	if found == openai.FoundError || found == openai.FoundEnd {
		m.onFound(now, sightOfEvents(found, m.answer.events.Status()), false)
	}
	m.answer.events = openai.FirstEvents{}
}

// onFound takes the word that decode's first events do not serve the request. While
// none of them has gone to the client a fresh attempt may do better; else they go on:
// the worker's own words say more than ours.
func (m *mainLeg) onFound(now time.Time, seen blame.Sight, odd bool) {
	if m.plan == nil || m.answer.unserved != "" {
		m.emit(effect{op: opPass})
		return
	}
	if m.phase == mainRouted { // the head has not come here
		m.answer.status = "200"
		m.handover.unsent()
		m.taken()
	}
	m.timers.stop(timerAnswer, timerProbe)
	seen = m.unfetched(seen)
	f := failureOfDecode(seen)
	if m.phase == mainRouted || m.phase == mainHolding {
		if m.decodeFailed(now, seen, odd, &f) {
			return
		}
	} else if !m.finished {
		m.charge(now, blame.Of(m.decodeLeg(), seen), m.plan.decode, false)
	}
	m.answer.unserved = seen
	m.emit(effect{op: opPass})
	if m.phase == mainHolding {
		m.relay(now)
	}
}

// onSuspect has those probed whom the request waits for. A probe is all that a silence
// of a few seconds is worth; one that is not answered sets its worker aside, and then
// evGone comes.
func (m *mainLeg) onSuspect(now time.Time) {
	m.timers.stop(timerProbe)
	if !m.awaitsAnswer() || m.far.state == legDispatched {
		return // no worker can be silent about what it has not seen
	}
	m.timers.set(timerProbe, now.Add(suspectEvery))
	m.charges.probed = true
	switch {
	case m.far.awaited():
		m.suspect(m.plan.prefill, m.prefillLeg() == blame.Mirrored)
	case m.phase == mainRouted:
		m.suspect(m.plan.decode, false)
	}
}

// onSilent is onOverdue for a decode that has all that it needs.
func (m *mainLeg) onSilent(now time.Time) {
	m.timers.stop(timerAnswer)
	if m.phase != mainRouted {
		return
	}
	f := failDecodeSilent
	f.fresh = mayDoBetter(blame.Of(m.decodeLeg(), blame.Overdue), m.plan, m.plan.spare.Decode, false)
	if m.mayRetry(&f) {
		m.decodeFailed(now, blame.Overdue, false, &f)
		return
	}
	m.chargeStuck(blame.Of(m.decodeLeg(), blame.Stuck), m.plan.decode)
	m.timers.set(timerAnswer, now.Add(m.plan.answerWithin))
}

// onGone takes the word that a rank has left discovery, or was set aside while this
// attempt waited for it longer than it should: it need not wait any more.
func (m *mainLeg) onGone(now time.Time, ev *event) {
	if m.plan == nil {
		return
	}
	gone := func(r worker.Rank) bool { return r.In(ev.rank, ev.whole) }
	if m.plan.disaggregated && gone(m.plan.prefill) {
		m.onLegFailed(now, legReport{state: legFailed, reason: blame.Gone})
	}
	if m.phase == mainRouted && gone(m.plan.decode) {
		f := failDecodeLost
		if !m.decodeFailed(now, blame.Gone, false, &f) {
			m.reject(&f, false)
		}
	}
}
