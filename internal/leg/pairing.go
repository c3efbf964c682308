package leg

import (
	"strconv"
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/engine/handoff"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// pairing is what an attempt does with its prefill leg. The leg runs beside decode, sent by
// the plugin or mirrored by Envoy; or the plugin sends it, and decode begins after its end
// (docs/behaviour.md#prefill-first).
type pairing struct{ attempt }

// PrefillState returns how far the prefill leg has come.
func (m *pairing) PrefillState() State { return m.far.state }

// PrefillMate returns the rank of a prefill leg that is awaited, if another worker could
// be asked after a refusal. Else it returns false.
func (m *pairing) PrefillMate() (r worker.Rank, ok bool) {
	if !m.far.awaited() || !m.plan.Spare.Prefill || !m.asksAgain() {
		return r, false
	}
	return m.plan.Prefill, true
}

// PrefillAwaited reports whether the prefill leg was asked for, and it is not known yet
// whether it is well.
func (m *pairing) PrefillAwaited() bool { return m.far.awaited() }

// Owes reports whether prefill may hold KV for this attempt that is not taken yet.
func (m *pairing) Owes() bool { return m.phase != mainDone && m.handover.owed() }

// InPlaceOf returns the failure of the pair in whose place one worker serves, or nil if
// there was none.
func (m *pairing) InPlaceOf() *Failure { return m.instead }

// dispatch starts the time limits of the prefill leg, which the caller asks for next.
func (m *pairing) dispatch(now time.Time) {
	p := m.plan
	m.far.state = Dispatched
	if !p.sent() { // a leg that the plugin sends waits for the same Envoy as a fresh one would
		m.timers.set(timerBegin, now.Add(p.StartWithin))
	}
	m.awaitPrefill(now)
}

// awaitPrefill starts the time in which prefill has to answer.
func (m *pairing) awaitPrefill(now time.Time) {
	m.timers.set(timerLate, now.Add(min(m.plan.OverdueAfter, m.rules.PrefillTimeout)))
	m.timers.set(timerProbe, now.Add(suspectAfter(m.plan.OverdueAfter)))
}

// onLeg takes a report of the prefill leg.
func (m *pairing) onLeg(now time.Time, r Report) {
	switch r.State {
	case Started:
		if m.far.state == Dispatched {
			m.far.state = Started
			m.timers.stop(timerBegin)
			m.awaitPrefill(now) // only now has the worker the leg
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
	if !m.proves(&r) {
		r.State, r.Reason = Failed, blame.Uncomputed
		r.Said = said(r.Status, m.req.Path.String(), r.Told.against(m.plan.Expected.Tokens))
		m.onLegFailed(now, r)
		return
	}
	m.far = farLeg{state: Well, well: true, cached: r.Cached, counted: r.Counted}
	if m.plan.Prefilled.IsZero() {
		m.plan.Prefilled = now
	}
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
	m.maybeLeave(now)
}

func (m *pairing) onLegEnded(now time.Time, r Report) {
	if m.far.state == Ended || m.plan == nil {
		return
	}
	if m.far.awaited() { // the leg ended without a report
		m.onLegFailed(now, Report{State: Failed, Reason: blame.Ended})
	}
	m.far.state = Ended
	m.timers.stop(timerOrphan)
	m.emit(Effect{Op: OpMark, Report: r})
	m.releasePrefill()
	if m.phase != mainLingering || m.handover.unsure() {
		return // Main.learnt goes on from here
	}
	m.collect()
	if m.handover.kv != kvTaking {
		m.done()
	}
}

// onLegFailed ends decode at once, since the prefill leg has failed
// (docs/behaviour.md#fresh-attempt). If no byte has gone to the client, the request gets
// a fresh attempt if one is left. Else it gets one error.
func (m *pairing) onLegFailed(now time.Time, r Report) {
	if m.plan == nil || !m.far.awaited() {
		return
	}
	awaited := m.awaitsAnswer()
	if r.Reason == blame.BrokeOff && (!awaited || !now.Before(m.req.Deadline)) {
		r.Reason = blame.Ended // the end of the attempt has ended the leg
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
		// The leg itself has not reported this: it may still run.
		m.emit(Effect{Op: OpAbortLeg, Report: r})
	default: // the leg has reported its failure itself, so it was there
		neverStarted = false
	}
	if neverStarted {
		// Nothing runs. A leg that arrives from now on is refused.
		m.far.state = Ended
		m.releasePrefill()
	}
	m.withoutPrefill(now, f, r, retry)
}

// chargePrefill charges prefill with the failure of its leg. It returns the failure to
// answer with, and whether a fresh attempt is made in place of that answer.
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

// withoutPrefill continues the attempt after its prefill leg has failed.
func (m *pairing) withoutPrefill(now time.Time, f *Failure, r Report, retry bool) {
	switch m.phase {
	case mainPrefilling:
		if m.mayServeAlone(f, r) {
			m.instead = f // one worker is picked once the leg's answer is there: it may tell of held KV
			return
		}
		m.reject(f, retry)
	case mainRouted, mainHolding:
		m.reject(f, retry)
	case mainStreaming:
		if m.answer.sightOfStart(m.req.Passes()) == blame.Served { // else the client has decode's own refusal
			m.cut(f)
		}
	case mainLingering:
		if m.far.state == Ended {
			m.done()
			return
		}
		m.timers.set(timerOrphan, now.Add(m.rules.OrphanGrace))
	}
}

// awaitsPrefill reports whether a client waits for the prefill leg: nothing of the answer has gone to
// it, or, if answers are not held for the leg, the head alone.
func (m *pairing) awaitsPrefill() bool {
	return m.awaitsAnswer() || m.phase == mainStreaming && m.link != linkOver && m.far.awaited()
}

// onLate acts when a mirrored leg has not begun in time. The flag repeat says that another
// attempt may be made though the leg may still come; else it is waited for, as long as a
// prefill may take, and so is the leg of the last attempt.
func (m *pairing) onLate(now time.Time, repeat bool) {
	m.timers.stop(timerBegin)
	if m.awaitsPrefill() && !(repeat && m.awaitsAnswer() && m.mayRetry(&failPrefill)) && now.Sub(m.pickedAt) < m.rules.PrefillTimeout {
		m.timers.set(timerBegin, now.Add(m.plan.StartWithin))
		return
	}
	m.onLegFailed(now, Report{State: Failed, Reason: blame.NotStarted})
}

// onOverdue acts when prefill has taken longer than it may. If no other worker can be
// tried, or the flag repeat does not allow it, the request waits on.
func (m *pairing) onOverdue(now time.Time, repeat bool) {
	m.timers.stop(timerLate)
	if m.far.state == Dispatched { // no worker has the leg yet, so none is late
		m.timers.set(timerLate, now.Add(m.plan.OverdueAfter))
		return
	}
	if !m.awaitsPrefill() { // no request waits for the leg: prefill is not late, and its work is of no use
		if m.far.awaited() {
			m.abortOrphan(now)
		}
		return
	}
	if repeat && m.leavePrefill(now, blame.Overdue) {
		return
	}
	m.waitOn(blame.Of(m.prefillLeg(), blame.Stuck), m.plan.Prefill)
	m.timers.set(timerLate, now.Add(m.plan.OverdueAfter))
}

// leavePrefill ends a prefill leg that is silent if another worker can be tried.
func (m *pairing) leavePrefill(now time.Time, seen blame.Sight) (left bool) {
	if !m.mayLeavePrefill() {
		return false
	}
	m.onLegFailed(now, Report{State: Failed, Reason: seen})
	return true
}

func (m *pairing) mayLeavePrefill() bool {
	if !m.awaitsAnswer() {
		return false
	}
	f := failPrefill
	f.Fresh = mayDoBetter(blame.Of(m.prefillLeg(), blame.Overdue), m.plan, m.plan.Spare.Prefill, false)
	return m.mayRetry(&f) || m.phase == mainPrefilling && m.mayServeAlone(&failPrefill, Report{State: Failed, Reason: blame.Overdue})
}

// leaveDecode ends an attempt whose decode is silent if another worker can be tried.
func (m *pairing) leaveDecode(now time.Time, seen blame.Sight) (left bool) {
	f := failDecodeSilent
	return m.mayLeaveDecode(&f) && m.decodeFailed(now, seen, false, &f)
}

func (m *pairing) mayLeaveDecode(f *Failure) bool {
	f.Fresh = mayDoBetter(blame.Of(m.decodeLeg(), blame.Overdue), m.plan, m.plan.Spare.Decode, false)
	return m.phase == mainRouted && m.mayRetry(f)
}

// Waits reports whether the request waits for a worker to return.
func (m *pairing) Waits() bool {
	return m.link != linkOver && (m.phase == mainWaiting || m.phase == mainResolving)
}

// WaitsSince returns since when the request has waited for a worker: now, if it has not yet.
func (m *pairing) WaitsSince(now time.Time) time.Time {
	if m.waitsSince.IsZero() {
		return now
	}
	return m.waitsSince
}

// WouldRepeat reports whether the event, EventTimer or EventMute, would have the attempt give
// up a leg that may still run, for a fresh attempt that does its work once more.
func (m *pairing) WouldRepeat(now time.Time, ev *Event) bool {
	late := m.timers // a copy: to ask puts nothing off
	if !m.awaitsAnswer() || late.excuse(now) {
		return false
	}
	f := failDecodeSilent
	switch {
	case ev.Kind == EventMute:
		return m.charges.probed && (m.far.awaited() && m.mayLeavePrefill() || m.mayLeaveDecode(&f))
	case m.timers.due(timerBegin, now):
		return m.mayRetry(&failPrefill)
	case m.timers.due(timerLate, now):
		return m.far.state == Started && m.mayLeavePrefill()
	default:
		return m.timers.due(timerAnswer, now) && m.mayLeaveDecode(&f)
	}
}

// orphanAgain is the shortest time between two aborts of a leg that does not end.
const orphanAgain = 100 * time.Millisecond

// onOrphan aborts a prefill leg that outlives its attempt
// (docs/behaviour.md#client-leaves). A leg at another replica may never report its end:
// some time after the deadline it counts as ended.
func (m *pairing) onOrphan(now time.Time) {
	if now.After(m.req.Deadline.Add(2 * m.rules.OrphanGrace)) {
		m.onLegEnded(now, Report{State: Ended, Reason: blame.TimedOut})
		return
	}
	m.timers.set(timerOrphan, now.Add(max(m.rules.OrphanGrace, orphanAgain)))
	if m.far.state == Dispatched {
		return // the leg has not begun: timerBegin decides
	}
	m.abortOrphan(now)
}

// abortOrphan aborts a prefill leg that no request waits for.
func (m *pairing) abortOrphan(now time.Time) {
	m.timers.set(timerOrphan, now.Add(max(m.rules.OrphanGrace, orphanAgain)))
	r := Report{State: Failed, Reason: blame.Aborted}
	if m.far.awaited() { // the plugin fails the leg, not the worker
		m.far.state = Failed
		m.emit(Effect{Op: OpMark, Report: r})
	}
	m.emit(Effect{Op: OpAbortLeg, Report: r})
}

// extend has Envoy wait for the reply that it is owed now until the deadline. Our own filters
// wait for MessageTimeout in any case, and most replies come long before that, so they are
// asked later, if at all.
func (m *pairing) extend(now time.Time) {
	if m.way.Speaks == Own {
		m.timers.set(timerExtend, now.Add(extendAfter))
		return
	}
	m.onExtend(now)
}

// extendAfter leaves Envoy's filter most of MessageTimeout for a plugin that is late.
const extendAfter = MessageTimeout / 5

func (m *pairing) onExtend(now time.Time) {
	m.timers.stop(timerExtend)
	if m.phase == mainPrefilling || m.phase == mainHolding || !m.waitsSince.IsZero() && m.phase < mainPrefilling {
		m.emit(Effect{Op: OpExtend, Wait: Extension(m.req.Deadline.Sub(now))})
	}
}

// wait keeps the request until a worker may have returned. Envoy waits for the reply to a
// buffered body meanwhile.
func (m *pairing) wait(now time.Time) {
	m.phase = mainWaiting
	if m.waitsSince.IsZero() {
		m.waitsSince = now
		if !m.req.fullDuplex {
			m.extend(now)
		}
	}
	m.timers.set(timerPick, now.Add(min(max(now.Sub(m.waitsSince), pickAgainFirst), pickAgainEvery)))
}

// How long a request waits before it is tried again: as long as it has waited, within bounds.
const (
	pickAgainFirst = 100 * time.Millisecond
	pickAgainEvery = 500 * time.Millisecond
)

func (m *pairing) pickAgain() {
	m.timers.stop(timerPick)
	if m.phase == mainWaiting {
		m.phase = mainResolving
		m.emit(Effect{Op: OpPick, Fail: m.instead})
	}
}

// askPrefill begins an attempt with the prefill leg alone.
func (m *pairing) askPrefill(now time.Time) {
	m.phase = mainPrefilling
	h, q := &m.handover, &m.req
	alone := handoff.Alone(m.plan.Kind, q.Scan)
	h.asked = askedHandOff
	if alone {
		h.asked = askedResponse
	}
	body := handoff.AppendPrefill(m.rules.Buffers.Borrow(len(q.Body)+syncRoom), q.Body, q.Scan, m.plan.Kind, m.plan.HandoffID, alone)
	if !q.fullDuplex {
		m.extend(now)
	}
	m.sendPrefill(now, body)
}

// sendPrefill has the plugin send the prefill leg, and gives body away.
func (m *pairing) sendPrefill(now time.Time, body []byte) {
	p, q := m.plan, &m.req
	e := Effect{
		Op: OpPrefill, Body: body, Set: m.LegHeaders(p.Prefill.DPRank, p.PrefillDPSize, p.Token, p.PrefillAddr),
		Wait: min(q.Deadline.Sub(now), m.rules.PrefillTimeout) + m.rules.OrphanGrace,
	}
	if !p.Kind.PrefillFirst() { // such a leg tells the same as decode's
		names := &m.rules.Names
		e.Set = appendAll(e.Set, names.WorkerID, p.Decode.ID.String())
		e.Set = appendAll(e.Set, names.DPRank, strconv.FormatUint(uint64(p.Decode.DPRank), 10))
		e.Set = appendAll(e.Set, names.PrefillDPRank, strconv.FormatUint(uint64(p.Prefill.DPRank), 10))
		e.Set, e.Unread = p.appendMeeting(e.Set, names), true
	}
	m.emit(e)
}

// besideRoom is more bytes than prefill's body grows by at a rendezvous, beside what both
// bodies get.
const besideRoom = 64 + injectRoom

// sendBeside has the plugin send the prefill leg that runs beside decode: for one token, and
// not as a stream (docs/behaviour.md#one-token). body is decode's, which has the members that
// both get.
func (m *pairing) sendBeside(now time.Time, body []byte) {
	edits := m.plan.Kind.Together.Prefill(body, m.req.Scan, m.plan.Room)
	m.sendPrefill(now, openai.AppendEdited(m.rules.Buffers.Borrow(len(body)+besideRoom), body, m.req.Scan, edits...))
}

// syncRoom is more bytes than prefill's body grows by.
const syncRoom = 320

// LegHeaders returns the headers that the plugin sets on a leg of its own: those of a
// mirrored leg, and the plugin's values for headers that Envoy adds to a mirrored leg. The
// leg goes to addr: a listener that the plugin alone reaches takes that from here, any other
// from the seal.
func (m *pairing) LegHeaders(dp worker.DPRank, dpSize uint32, token, addr string) []wire.Header {
	set := make([]wire.Header, 0, 16)
	set = append(set, wire.Header{Name: prefill.HeaderLeg, Value: token}, wire.Header{Name: prefill.HeaderPrefillEndpoint, Value: addr},
		wire.Header{Name: "content-type", Value: "application/json"})
	if m.req.Headers.RequestID != "" {
		set = append(set, wire.Header{Name: "x-request-id", Value: m.req.Headers.RequestID})
	}
	if m.plan.Traceparent != "" {
		set = append(set, wire.Header{Name: "traceparent", Value: m.plan.Traceparent})
	}
	set = appendAll(set, m.rules.Names.PrefillID, m.plan.Prefill.ID.String())
	if dpSize > 1 {
		set = append(set, wire.Header{Name: handoff.RankHeader, Value: strconv.FormatUint(uint64(dp), 10)})
	}
	return set
}

// onPrefilled takes the end of a prefill leg that the plugin sent.
func (m *pairing) onPrefilled(now time.Time, ev *Event) {
	a, h := ev.Answer, &m.handover
	if m.plan != nil {
		m.plan.move(ev.Moved)
		m.plan.Prefilled = now
		if !a.Made.IsZero() {
			m.plan.Prefilled = a.Made
		}
	}
	report, result := h.judge(a, m.plan)
	if report.State == Failed {
		report.Said = a.said(&m.req)
	}
	if result.Held() {
		h.answer, h.result, h.kv = a.Body, result, kvOurs
	}
	if m.far.state != Failed && m.far.state != Ended {
		if report.State == Failed {
			m.onLegFailed(now, report) // makes a fresh attempt, or answers, if no answer has begun
		} else {
			m.onLeg(now, report)
		}
	}
	switch {
	case m.phase != mainPrefilling:
		m.collect() // no request waits for the answer any more
	case m.instead == nil:
		m.afterPrefill(now, a, result)
	case h.held(): // prefill has failed, and has left KV that decode has to collect
		m.reject(m.instead, false)
	default:
		m.serveAlone(now)
		return
	}
	h.asked = askedNothing
	if m.phase != mainRouted {
		m.req.forget(m.rules)
	}
	m.onLegEnded(now, Report{State: Ended})
}

// GoesOn reports whether decode is to get the request after this answer of prefill's.
// False means that the attempt was given up, or that it ends with the answer.
func (m *pairing) GoesOn(a *OwnAnswer) bool {
	if m.phase != mainPrefilling || m.instead != nil || !a.good() {
		return false
	}
	m.handover.readAnswer(a, m.plan.Kind)
	return a.result.Verdict == handoff.HandOff || a.result.Verdict == handoff.Missing
}

// afterPrefill sends the request on to decode, or answers it with prefill's answer.
func (m *pairing) afterPrefill(now time.Time, a *OwnAnswer, result handoff.Result) {
	q := &m.req
	switch {
	case m.handover.asked == askedResponse, result.Verdict == handoff.Finished:
		m.answerWithPrefill(a.Body)
	case result.Verdict == handoff.Missing:
		// Decode computes the whole prompt itself: right, but slow, so this is counted.
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

// answerWithPrefill gives the client prefill's answer as the whole response
// (docs/behaviour.md#prefill-answers).
func (m *pairing) answerWithPrefill(answer []byte) {
	body, contentType, err := handoff.AppendFinal(nil, answer, m.req.Scan, m.req.Body, m.plan.Kind)
	if err != nil {
		m.reject(&failPrefill, true)
		return
	}
	m.phase, m.handover.final = mainRejected, contentType
	m.finish(blame.OK, nil)
	im := &wire.Immediate{Status: 200, Detail: "baton_prefill_answer", Body: body}
	im.Headers = append(im.Headers, wire.Header{Name: "content-type", Value: contentType})
	if m.plan.Explain != "" {
		im.Headers = append(im.Headers, wire.Header{Name: prefill.HeaderDecision, Value: m.plan.Explain})
	}
	m.collect() // the engine may hold the KV though nothing needs it
	m.releaseDecode()
	m.emit(Effect{Op: OpImmediate, Imm: im})
}

// PrefillAnswers reports whether the client gets prefill's answer, all at once, and whether as events.
func PrefillAnswers(m *Main) (answers, events bool) {
	return m.handover.final != "", IsEventStream(m.handover.final)
}

// mayServeAlone reports whether one worker is to serve the whole request, which would
// else end with f (docs/behaviour.md#first-prefill-fails). That is so if prefill has
// failed and not the request, and the request names no worker. Busy prefill workers are
// back-pressure, and no reason to serve without them.
func (m *pairing) mayServeAlone(f *Failure, r Report) bool {
	return m.rules.Fallback && f.Fresh && !r.busy() && r.Reason != blame.Rejected && !m.mayRetry(f) && !m.plan.PrefillNamed && !m.plan.DecodeNamed
}

// serveAlone ends the pair's part in the request, and asks for a pick of one worker.
func (m *pairing) serveAlone(now time.Time) {
	m.onLegEnded(now, Report{State: Ended})
	m.releaseDecode()
	m.emit(Effect{Op: OpForget})
	m.plan, m.far, m.handover = nil, farLeg{well: m.far.well}, handover{}
	m.phase = mainResolving
	m.emit(Effect{Op: OpPick, Fail: m.instead})
}

// onCollected takes the end of a collecting leg, and releases decode, which was booked
// until now.
func (m *pairing) onCollected() {
	if m.handover.kv == kvTaking {
		m.handover.kv = kvNobodys
	}
	m.releaseDecode()
	if m.phase == mainLingering && !m.far.runs() {
		m.done()
	}
}
