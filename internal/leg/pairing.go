package leg

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

// PrefillState is how the prefill leg stands.
func (m *pairing) PrefillState() State { return m.far.state }

// PrefillMate is who serves the prefill leg that is waited for, where a refusal of its
// could be asked of another worker.
func (m *pairing) PrefillMate() (r worker.Rank, ok bool) {
	if !m.far.awaited() || !m.plan.Spare.Prefill || !m.asksAgain() {
		return r, false
	}
	return m.plan.Prefill, true
}

// PrefillAwaited reports whether the prefill leg is neither well nor over.
func (m *pairing) PrefillAwaited() bool { return m.far.awaited() }

// Unsure reports whether only Envoy's access log can tell if decode has seen
// the hand-off.
func (m *pairing) Unsure() bool { return m.handover.unsure() }

// Owes reports whether KV may be held for this attempt that only we would have
// taken.
func (m *pairing) Owes() bool { return m.phase != mainDone && m.handover.owed() }

// InPlaceOf is the failure of the pair that one worker serves in place of; nil: of none.
func (m *pairing) InPlaceOf() *Failure { return m.instead }

// dispatch begins to wait for the prefill leg, which is asked for with what follows.
func (m *pairing) dispatch(now time.Time) {
	p := m.plan
	m.far.state = Dispatched
	m.timers.set(timerBegin, now.Add(p.StartWithin))
	m.timers.set(timerLate, now.Add(min(p.OverdueAfter, m.rules.PrefillTimeout)))
	m.timers.set(timerProbe, now.Add(suspectAfter(p.OverdueAfter, suspectPrefill)))
}

// onLeg takes a report of the prefill leg.
func (m *pairing) onLeg(now time.Time, r Report) {
	switch r.State {
	case Started:
		if m.far.state == Dispatched {
			m.far.state = Started
			m.timers.stop(timerBegin)
			m.emit(Effect{Op: OpMark, Report: r})
		}
	case Well:
		m.onLegWell(now, r)
	case Failed:
		m.onLegFailed(now, r)
	case Ended:
		m.onLegEnded(now, r)
	}
}

func (m *pairing) onLegWell(now time.Time, r Report) {
	if !m.far.awaited() {
		return
	}
	m.far = farLeg{state: Well, well: true}
	m.timers.stop(timerLate, timerBegin)
	m.emit(Effect{Op: OpMark, Report: r})
	m.charges.saw(m.prefillLeg(), blame.Served)
	m.emit(Effect{Op: OpCharge, Rank: m.plan.Prefill, Charge: blame.Credit})
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

func (m *pairing) onLegEnded(now time.Time, r Report) {
	if m.far.state == Ended || m.plan == nil {
		return
	}
	if m.far.awaited() { // it ended without a word
		m.onLegFailed(now, Report{State: Failed, Reason: blame.Ended})
	}
	m.far.state = Ended
	m.timers.stop(timerOrphan)
	m.emit(Effect{Op: OpMark, Report: r})
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
func (m *pairing) onLegFailed(now time.Time, r Report) {
	if m.plan == nil || !m.far.awaited() {
		return
	}
	awaited := m.AwaitsAnswer()
	if r.Reason == blame.BrokeOff && (!awaited || !now.Before(m.req.Deadline)) {
		r.Reason = blame.Ended // by whoever has ended the attempt
	}
	neverStarted := m.far.state == Dispatched
	m.far.state = Failed
	if m.plan.Kind.Holds() {
		m.handover.giveUp()
	}
	m.timers.stop(timerBegin, timerLate)
	m.emit(Effect{Op: OpMark, Report: r})
	f, retry := m.chargePrefill(now, r, awaited)
	switch r.Reason {
	case blame.NotStarted, blame.Overdue, blame.Gone:
		// The leg itself does not know that it has failed.
		m.emit(Effect{Op: OpAbortLeg, Report: r})
	default: // the leg's own report: it was there, whatever we heard of it before
		neverStarted = false
	}
	if neverStarted {
		// Nothing runs anywhere; a leg that arrives from now on is refused.
		m.far.state = Ended
		m.releasePrefill()
	}
	m.withoutPrefill(now, f, r, retry)
}

// chargePrefill charges prefill with how its leg has failed. It returns what is answered,
// and whether a fresh attempt is to be made in its place.
func (m *pairing) chargePrefill(now time.Time, r Report, awaited bool) (*Failure, bool) {
	row := blame.Of(m.prefillLeg(), r.Reason)
	f := failureOfPrefill(&r)
	if r.Reason == blame.TimedOut && !now.Before(m.req.Deadline) {
		f = failDeadline
	}
	f.Fresh = mayDoBetter(row, m.plan, m.plan.Spare.Prefill, r.Odd)
	retry := awaited && m.mayRetry(&f)
	m.charge(now, row, m.plan.Prefill, retry)
	return &f, retry
}

// withoutPrefill goes on after prefill's leg has failed.
func (m *pairing) withoutPrefill(now time.Time, f *Failure, r Report, retry bool) {
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
		if m.far.state == Ended {
			m.done()
			return
		}
		m.timers.set(timerOrphan, now.Add(m.rules.OrphanGrace))
	}
}

// onLate takes the end of the time that prefill's leg may take to begin. The last
// attempt goes on waiting, as long as a prefill may take.
func (m *pairing) onLate(now time.Time) {
	m.timers.stop(timerBegin)
	f := failPrefill
	if m.AwaitsAnswer() && !m.mayRetry(&f) && now.Sub(m.pickedAt) < m.rules.PrefillTimeout {
		m.timers.set(timerBegin, now.Add(m.plan.StartWithin))
		return
	}
	m.onLegFailed(now, Report{State: Failed, Reason: blame.NotStarted})
}

// onOverdue takes the end of the time that a prefill may take. Where nobody else can be
// tried the request goes on waiting; the silence is told all the same.
func (m *pairing) onOverdue(now time.Time) {
	m.timers.stop(timerLate)
	if m.far.state == Dispatched { // no worker can be late with what it has not seen
		m.timers.set(timerLate, m.timers[timerBegin])
		return
	}
	if !m.AwaitsAnswer() { // nobody waits for it: it is no silence, and of no use any more
		if m.far.awaited() {
			m.abortOrphan(now)
		}
		return
	}
	row, f := blame.Of(m.prefillLeg(), blame.Overdue), failPrefill
	f.Fresh = mayDoBetter(row, m.plan, m.plan.Spare.Prefill, false)
	late := Report{State: Failed, Reason: blame.Overdue}
	if m.mayRetry(&f) || m.phase == mainPrefilling && m.mayServeAlone(&failPrefill, late) {
		m.onLegFailed(now, late)
		return
	}
	m.chargeStuck(blame.Of(m.prefillLeg(), blame.Stuck), m.plan.Prefill)
	m.timers.set(timerLate, now.Add(m.plan.OverdueAfter))
}

// orphanAgain is the least time after which a leg is ended once more that has not
// ended.
const orphanAgain = 100 * time.Millisecond

// onOrphan ends a prefill leg that outlives its attempt
// (docs/behaviour.md#client-leaves). A leg at another replica may never report its end:
// past the deadline it is taken as ended.
func (m *pairing) onOrphan(now time.Time) {
	if now.After(m.req.Deadline.Add(2 * m.rules.OrphanGrace)) {
		m.onLegEnded(now, Report{State: Ended, Reason: blame.TimedOut})
		return
	}
	m.timers.set(timerOrphan, now.Add(max(m.rules.OrphanGrace, orphanAgain)))
	if m.far.state == Dispatched {
		return // not here yet: timerBegin decides
	}
	m.abortOrphan(now)
}

// abortOrphan ends a prefill leg that nobody waits for.
func (m *pairing) abortOrphan(now time.Time) {
	m.timers.set(timerOrphan, now.Add(max(m.rules.OrphanGrace, orphanAgain)))
	r := Report{State: Failed, Reason: blame.Aborted}
	if m.far.awaited() { // our doing, not the worker's
		m.far.state = Failed
		m.emit(Effect{Op: OpMark, Report: r})
	}
	m.emit(Effect{Op: OpAbortLeg, Report: r})
}

// askPrefill begins the attempt with prefill alone.
func (m *pairing) askPrefill(now time.Time) {
	m.phase = mainPrefilling
	h, q := &m.handover, &m.req
	h.asked, h.alone = true, handoff.Alone(q.Scan)
	body := handoff.AppendPrefill(m.rules.Buffers.Borrow(len(q.Body)+syncRoom), q.Body, q.Scan, m.plan.Kind, m.plan.HandoffID, h.alone)
	if !q.fullDuplex {
		m.emit(Effect{Op: OpExtend, Wait: Extension(q.Deadline.Sub(now))})
	}
	m.emit(Effect{
		Op: OpPrefill, Body: body, Set: m.LegHeaders(m.plan.Prefill.DPRank, m.plan.PrefillDPSize, m.plan.Token),
		Wait: min(q.Deadline.Sub(now), m.rules.PrefillTimeout) + m.rules.OrphanGrace,
	})
}

// syncRoom is more than prefill's body grows by.
const syncRoom = 320

// LegHeaders lists what we set on a leg of our own: what a mirrored one would have, and in
// place of what Envoy adds there, what we know.
func (m *pairing) LegHeaders(dp worker.DPRank, dpSize uint32, token string) []wire.Header {
	set := make([]wire.Header, 0, 8)
	set = append(set, wire.Header{Name: prefill.HeaderLeg, Value: token}, wire.Header{Name: "content-type", Value: "application/json"})
	if m.req.Headers.RequestID != "" {
		set = append(set, wire.Header{Name: "x-request-id", Value: m.req.Headers.RequestID})
	}
	if m.plan.Traceparent != "" {
		set = append(set, wire.Header{Name: "traceparent", Value: m.plan.Traceparent})
	}
	for _, name := range m.rules.Names.PrefillID {
		set = append(set, wire.Header{Name: name, Value: m.plan.Prefill.ID.String()})
	}
	if dpSize > 1 {
		set = append(set, wire.Header{Name: handoff.SGLangDPRankHeader, Value: strconv.FormatUint(uint64(dp), 10)})
	}
	return set
}

// onPrefilled takes prefill's answer, or what became of it.
func (m *pairing) onPrefilled(now time.Time, ev *Event) {
	a, h := ev.Answer, &m.handover
	if m.plan != nil {
		m.plan.move(ev.Moved)
	}
	report, result := h.judge(a, m.plan)
	if result.Held() {
		h.answer, h.result, h.kv = a.Body, result, kvOurs
	}
	if m.far.state != Failed && m.far.state != Ended {
		if report.State == Failed {
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
	m.onLegEnded(now, Report{State: Ended})
}

// GoesOn reports whether decode is to get the request after this answer of
// prefill's: nobody has given the attempt up, and it does not end with it.
func (m *pairing) GoesOn(a *OwnAnswer) bool {
	if m.phase != mainPrefilling || m.instead != nil || !a.good() {
		return false
	}
	m.handover.readAnswer(a, m.plan.Kind)
	return a.result.Verdict == handoff.HandOff || a.result.Verdict == handoff.Missing
}

// afterPrefill goes on with decode, or answers.
func (m *pairing) afterPrefill(now time.Time, a *OwnAnswer, result handoff.Result) {
	q := &m.req
	switch {
	case m.handover.alone, result.Verdict == handoff.Finished:
		m.answerWithPrefill(a.Body)
	case result.Verdict == handoff.Missing:
		// Decode does the whole prompt itself: right, slow and counted.
		m.emit(Effect{Op: OpMark, Report: Report{State: Failed, Reason: blame.NoHandoff}})
		m.route(now, q.giveBody(), false)
		q.forget(m.rules)
	default:
		body := handoff.AppendDecode(m.rules.Buffers.Borrow(len(q.Body)+len(a.Body)+injectRoom),
			q.Body, q.Scan, m.plan.Kind, a.Body, result)
		m.handover.send()
		m.route(now, body, true)
	}
}

// answerWithPrefill is docs/behaviour.md#prefill-answers: what prefill answered is all
// there is to say.
func (m *pairing) answerWithPrefill(answer []byte) {
	body, contentType, err := handoff.AppendFinal(nil, answer, m.req.Scan, m.req.Body, m.plan.Kind)
	if err != nil {
		m.reject(&failPrefill, true)
		return
	}
	m.phase = mainRejected
	m.finish(blame.OK, nil)
	im := &wire.Immediate{Status: 200, Detail: "baton_prefill_answer", Body: body}
	im.Headers = append(im.Headers, wire.Header{Name: "content-type", Value: contentType})
	if m.plan.Explain != "" {
		im.Headers = append(im.Headers, wire.Header{Name: prefill.HeaderDecision, Value: m.plan.Explain})
	}
	m.collect() // vLLM may hold what it has computed all the same
	m.releaseDecode()
	m.emit(Effect{Op: OpImmediate, Imm: im})
}

// mayServeAlone reports whether one worker is to serve the request, whole, where
// f would be its last word (docs/behaviour.md#first-prefill-fails): what failed is
// prefill and not the request, and nobody has named a worker. Prefill workers that are
// busy are back-pressure, and no reason to do without them.
func (m *pairing) mayServeAlone(f *Failure, r Report) bool {
	return m.rules.Fallback && f.Fresh && !r.busy() && r.Reason != blame.Rejected && !m.mayRetry(f) && !m.plan.PrefillNamed && !m.plan.DecodeNamed
}

// serveAlone ends the part of the pair and has one worker picked.
func (m *pairing) serveAlone(now time.Time) {
	m.onLegEnded(now, Report{State: Ended})
	m.releaseDecode()
	m.emit(Effect{Op: OpForget})
	m.plan, m.far, m.handover = nil, farLeg{well: m.far.well}, handover{}
	m.phase = mainResolving
	m.emit(Effect{Op: OpPick, Fail: m.instead})
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
