package extproc

import (
	"strconv"
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/extproc/wire"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/prefill/handoff"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// pairing is what an attempt does with its prefill leg: one that Envoy mirrors beside
// decode, or one that the plugin sends itself, which must have ended before decode may
// begin (docs/behaviour.md#prefill-first).
type pairing struct{ attempt }

// prefillState is how the prefill leg stands.
func (m *pairing) prefillState() legState { return m.far.state }

// prefillMate is who serves the prefill leg that is waited for, where a refusal of its
// could be asked of another worker.
func (m *pairing) prefillMate() (r worker.Rank, ok bool) {
	if !m.far.awaited() || !m.plan.spare.Prefill || !m.asksAgain() {
		return r, false
	}
	return m.plan.prefill, true
}

// prefillAwaited reports whether the prefill leg is neither well nor over.
func (m *pairing) prefillAwaited() bool { return m.far.awaited() }

// unsure reports whether only Envoy's access log can tell if decode has seen
// the hand-off.
func (m *pairing) unsure() bool { return m.handover.unsure() }

// owes reports whether KV may be held for this attempt that only we would have
// taken.
func (m *pairing) owes() bool { return m.phase != mainDone && m.handover.owed() }

// inPlaceOf is the failure of the pair that one worker serves in place of; nil: of none.
func (m *pairing) inPlaceOf() *failure { return m.instead }

// dispatch begins to wait for the prefill leg, which is asked for with what follows.
func (m *pairing) dispatch(now time.Time) {
	p := m.plan
	m.far.state = legDispatched
	m.timers.set(timerBegin, now.Add(p.startWithin))
	m.timers.set(timerLate, now.Add(min(p.overdueAfter, m.rules.prefillTimeout)))
	m.timers.set(timerProbe, now.Add(suspectAfter(p.overdueAfter, suspectPrefill)))
}

// onLeg takes a report of the prefill leg.
func (m *pairing) onLeg(now time.Time, r legReport) {
	switch r.state {
	case legStarted:
		if m.far.state == legDispatched {
			m.far.state = legStarted
			m.timers.stop(timerBegin)
			m.emit(effect{op: opMark, report: r})
		}
	case legWell:
		m.onLegWell(now, r)
	case legFailed:
		m.onLegFailed(now, r)
	case legEnded:
		m.onLegEnded(now, r)
	}
}

func (m *pairing) onLegWell(now time.Time, r legReport) {
	if !m.far.awaited() {
		return
	}
	m.far = farLeg{state: legWell, well: true}
	m.timers.stop(timerLate, timerBegin)
	m.emit(effect{op: opMark, report: r})
	m.charges.saw(m.prefillLeg(), blame.Served)
	m.emit(effect{op: opCharge, rank: m.plan.prefill, charge: blame.Credit})
	if m.phase == mainHolding {
		if !m.holds() {
			m.relay(now)
		}
		return
	}
	if m.phase == mainRouted {
		m.awaitAnswer(now)
	}
	m.maybeLeave()
}

func (m *pairing) onLegEnded(now time.Time, r legReport) {
	if m.far.state == legEnded || m.plan == nil {
		return
	}
	if m.far.awaited() { // it ended without a word
		m.onLegFailed(now, legReport{state: legFailed, reason: blame.Ended})
	}
	m.far.state = legEnded
	m.timers.stop(timerOrphan)
	m.emit(effect{op: opMark, report: r})
	m.releasePrefill()
	if m.phase != mainLingering || m.handover.unsure() {
		return // learnt goes on
	}
	m.collect()
	if m.handover.kv != kvTaking {
		m.done()
	}
}

// onLegFailed is docs/behaviour.md#fresh-attempt: decode is ended at once. While no
// byte has gone to the client the request gets a fresh attempt, else one error.
func (m *pairing) onLegFailed(now time.Time, r legReport) {
	if m.plan == nil || !m.far.awaited() {
		return
	}
	awaited := m.awaitsAnswer()
	if r.reason == blame.BrokeOff && (!awaited || !now.Before(m.req.deadline)) {
		r.reason = blame.Ended // by whoever has ended the attempt
	}
	neverStarted := m.far.state == legDispatched
	m.far.state = legFailed
	if m.plan.kind.Holds() {
		m.handover.giveUp()
	}
	m.timers.stop(timerBegin, timerLate)
	m.emit(effect{op: opMark, report: r})
	f, retry := m.chargePrefill(now, r, awaited)
	switch r.reason {
	case blame.NotStarted, blame.Overdue, blame.Gone:
		// The leg itself does not know that it has failed.
		m.emit(effect{op: opAbortLeg, report: r})
	default: // the leg's own report: it was there, whatever we heard of it before
		neverStarted = false
	}
	if neverStarted {
		// Nothing runs anywhere; a leg that arrives from now on is refused.
		m.far.state = legEnded
		m.releasePrefill()
	}
	m.withoutPrefill(now, f, r, retry)
}

// chargePrefill charges prefill with how its leg has failed. It returns what is answered,
// and whether a fresh attempt is to be made in its place.
func (m *pairing) chargePrefill(now time.Time, r legReport, awaited bool) (*failure, bool) {
	row := blame.Of(m.prefillLeg(), r.reason)
	f := failureOfPrefill(&r)
	if r.reason == blame.TimedOut && !now.Before(m.req.deadline) {
		f = failDeadline
	}
	f.fresh = mayDoBetter(row, m.plan, m.plan.spare.Prefill, r.odd)
	retry := awaited && m.mayRetry(&f)
	m.charge(now, row, m.plan.prefill, retry)
	return &f, retry
}

// withoutPrefill goes on after prefill's leg has failed.
func (m *pairing) withoutPrefill(now time.Time, f *failure, r legReport, retry bool) {
	switch m.phase {
	case mainPrefilling:
		if m.mayServeAlone(f, r) {
			m.instead = f // once the leg's answer is there: it may hold KV
			return
		}
		m.reject(f, retry)
	case mainRouted, mainHolding:
		m.reject(f, retry)
	case mainStreaming:
		m.cut(f)
	case mainLingering:
		if m.far.state == legEnded {
			m.done()
			return
		}
		m.timers.set(timerOrphan, now.Add(m.rules.orphanGrace))
	}
}

// onLate takes the end of the time that prefill's leg may take to begin. The last
// attempt goes on waiting, as long as a prefill may take.
func (m *pairing) onLate(now time.Time) {
	m.timers.stop(timerBegin)
	f := failPrefill
	if m.awaitsAnswer() && !m.mayRetry(&f) && now.Sub(m.pickedAt) < m.rules.prefillTimeout {
		m.timers.set(timerBegin, now.Add(m.plan.startWithin))
		return
	}
	m.onLegFailed(now, legReport{state: legFailed, reason: blame.NotStarted})
}

// onOverdue takes the end of the time that a prefill may take. Where nobody else can be
// tried the request goes on waiting; the silence is told all the same.
func (m *pairing) onOverdue(now time.Time) {
	m.timers.stop(timerLate)
	if m.far.state == legDispatched { // no worker can be late with what it has not seen
		m.timers.set(timerLate, m.timers[timerBegin])
		return
	}
	if !m.awaitsAnswer() { // nobody waits for it: it is no silence, and of no use any more
		if m.far.awaited() {
			m.abortOrphan(now)
		}
		return
	}
	row, f := blame.Of(m.prefillLeg(), blame.Overdue), failPrefill
	f.fresh = mayDoBetter(row, m.plan, m.plan.spare.Prefill, false)
	late := legReport{state: legFailed, reason: blame.Overdue}
	if m.mayRetry(&f) || m.phase == mainPrefilling && m.mayServeAlone(&failPrefill, late) {
		m.onLegFailed(now, late)
		return
	}
	m.chargeStuck(blame.Of(m.prefillLeg(), blame.Stuck), m.plan.prefill)
	m.timers.set(timerLate, now.Add(m.plan.overdueAfter))
}

// orphanAgain is the least time after which a leg is ended once more that has not
// ended.
const orphanAgain = 100 * time.Millisecond

// onOrphan ends a prefill leg that outlives its attempt
// (docs/behaviour.md#client-leaves). A leg at another replica may never report its end:
// past the deadline it is taken as ended.
func (m *pairing) onOrphan(now time.Time) {
	if now.After(m.req.deadline.Add(2 * m.rules.orphanGrace)) {
		m.onLegEnded(now, legReport{state: legEnded, reason: blame.TimedOut})
		return
	}
	m.timers.set(timerOrphan, now.Add(max(m.rules.orphanGrace, orphanAgain)))
	if m.far.state == legDispatched {
		return // not here yet: timerBegin decides
	}
	m.abortOrphan(now)
}

// abortOrphan ends a prefill leg that nobody waits for.
func (m *pairing) abortOrphan(now time.Time) {
	m.timers.set(timerOrphan, now.Add(max(m.rules.orphanGrace, orphanAgain)))
	r := legReport{state: legFailed, reason: blame.Aborted}
	if m.far.awaited() { // our doing, not the worker's
		m.far.state = legFailed
		m.emit(effect{op: opMark, report: r})
	}
	m.emit(effect{op: opAbortLeg, report: r})
}

// askPrefill begins the attempt with prefill alone.
func (m *pairing) askPrefill(now time.Time) {
	m.phase = mainPrefilling
	h, q := &m.handover, &m.req
	h.asked, h.alone = true, handoff.Alone(q.scan)
	body := handoff.AppendPrefill(m.rules.buffers.Borrow(len(q.body)+syncRoom), q.body, q.scan, m.plan.kind, m.plan.handoffID, h.alone)
	if !q.fullDuplex {
		m.emit(effect{op: opExtend, wait: extension(q.deadline.Sub(now))})
	}
	m.emit(effect{
		op: opPrefill, body: body, set: m.legHeaders(m.plan.prefill.DPRank, m.plan.prefillDPSize, m.plan.token),
		wait: min(q.deadline.Sub(now), m.rules.prefillTimeout) + m.rules.orphanGrace,
	})
}

// syncRoom is more than prefill's body grows by.
const syncRoom = 320

// legHeaders lists what we set on a leg of our own: what a mirrored one would have, and in
// place of what Envoy adds there, what we know.
func (m *pairing) legHeaders(dp worker.DPRank, dpSize uint32, token string) []wire.Header {
	set := make([]wire.Header, 0, 8)
	set = append(set, wire.Header{Name: prefill.HeaderLeg, Value: token}, wire.Header{Name: "content-type", Value: "application/json"})
	if m.req.headers.RequestID != "" {
		set = append(set, wire.Header{Name: "x-request-id", Value: m.req.headers.RequestID})
	}
	if m.plan.traceparent != "" {
		set = append(set, wire.Header{Name: "traceparent", Value: m.plan.traceparent})
	}
	for _, name := range m.rules.names.PrefillID {
		set = append(set, wire.Header{Name: name, Value: m.plan.prefill.ID.String()})
	}
	if dpSize > 1 {
		set = append(set, wire.Header{Name: handoff.SGLangDPRankHeader, Value: strconv.FormatUint(uint64(dp), 10)})
	}
	return set
}

// onPrefilled takes prefill's answer, or what became of it.
func (m *pairing) onPrefilled(now time.Time, ev *event) {
	a, h := ev.answer, &m.handover
	if m.plan != nil {
		m.plan.move(ev.moved)
	}
	report, result := h.judge(a, m.plan)
	if result.Held() {
		h.answer, h.result, h.kv = a.body, result, kvOurs
	}
	if m.far.state != legFailed && m.far.state != legEnded {
		if report.state == legFailed {
			m.onLegFailed(now, report) // retries or answers where nothing has been said yet
		} else {
			m.onLeg(now, report)
		}
	}
	switch {
	case m.phase != mainPrefilling:
		m.collect() // nobody waits for it any more
	case m.instead == nil:
		m.afterPrefill(now, a, result)
	case h.held(): // it was given up, and has left KV all the same
		m.reject(m.instead, false)
	default:
		m.serveAlone(now)
		return
	}
	h.asked = false
	if m.phase != mainRouted {
		m.req.forget(m.rules)
	}
	m.onLegEnded(now, legReport{state: legEnded})
}

// goesOn reports whether decode is to get the request after this answer of
// prefill's: nobody has given the attempt up, and it does not end with it.
func (m *pairing) goesOn(a *legAnswer) bool {
	if m.phase != mainPrefilling || m.instead != nil || !a.good() {
		return false
	}
	m.handover.readAnswer(a, m.plan.kind)
	return a.result.Verdict == handoff.HandOff || a.result.Verdict == handoff.Missing
}

// afterPrefill goes on with decode, or answers.
func (m *pairing) afterPrefill(now time.Time, a *legAnswer, result handoff.Result) {
	q := &m.req
	switch {
	case m.handover.alone, result.Verdict == handoff.Finished:
		m.answerWithPrefill(a.body)
	case result.Verdict == handoff.Missing:
		// Decode does the whole prompt itself: right, slow and counted.
		m.emit(effect{op: opMark, report: legReport{state: legFailed, reason: blame.NoHandoff}})
		m.route(now, q.giveBody(), false)
		q.forget(m.rules)
	default:
		body := handoff.AppendDecode(m.rules.buffers.Borrow(len(q.body)+len(a.body)+injectRoom),
			q.body, q.scan, m.plan.kind, a.body, result)
		m.handover.send()
		m.route(now, body, true)
	}
}

// answerWithPrefill is docs/behaviour.md#prefill-answers: what prefill answered is all
// there is to say.
func (m *pairing) answerWithPrefill(answer []byte) {
	body, contentType, err := handoff.AppendFinal(nil, answer, m.req.scan, m.req.body, m.plan.kind)
	if err != nil {
		m.reject(&failPrefill, true)
		return
	}
	m.phase = mainRejected
	m.finish(blame.OK, nil)
	im := &wire.Immediate{Status: 200, Detail: "baton_prefill_answer", Body: body}
	im.Headers = append(im.Headers, wire.Header{Name: "content-type", Value: contentType})
	if m.plan.explain != "" {
		im.Headers = append(im.Headers, wire.Header{Name: prefill.HeaderDecision, Value: m.plan.explain})
	}
	m.collect() // vLLM may hold what it has computed all the same
	m.releaseDecode()
	m.emit(effect{op: opImmediate, imm: im})
}

// mayServeAlone reports whether one worker is to serve the request, whole, where
// f would be its last word (docs/behaviour.md#first-prefill-fails): what failed is
// prefill and not the request, and nobody has named a worker. Prefill workers that are
// busy are back-pressure, and no reason to do without them.
func (m *pairing) mayServeAlone(f *failure, r legReport) bool {
	return m.rules.fallback && f.fresh && !r.busy() && r.reason != blame.Rejected && !m.mayRetry(f) && !m.plan.prefillNamed && !m.plan.decodeNamed
}

// serveAlone ends the part of the pair and has one worker picked.
func (m *pairing) serveAlone(now time.Time) {
	m.onLegEnded(now, legReport{state: legEnded})
	m.releaseDecode()
	m.emit(effect{op: opForget})
	m.plan, m.far, m.handover = nil, farLeg{well: m.far.well}, handover{}
	m.phase = mainResolving
	m.emit(effect{op: opPick, fail: m.instead})
}

// onCollected ends a collecting leg; decode was booked until now.
func (m *pairing) onCollected() {
	if m.handover.kv == kvTaking {
		m.handover.kv = kvNobodys
	}
	m.releaseDecode()
	if m.phase == mainLingering && !m.far.runs() {
		m.done()
	}
}
