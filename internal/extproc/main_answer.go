package extproc

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/extproc/wire"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/prefill"
)

// onResponseHeaders judges decode's answer while nothing of it has gone to the
// client, so that a bad one can still become a fresh attempt.
func (m *mainLeg) onResponseHeaders(now time.Time, ev *event) {
	m.status, m.answer.headAlone, m.answer.whole = ev.headers.Status, ev.endOfStream, ev.endOfStream
	m.answerBy, m.suspectAt = time.Time{}, time.Time{}
	m.onAnswerer(ev.answerer)
	flags := ev.headers.LocalReply
	if m.way.plain { // nobody keeps a worker from saying it
		flags = ""
	}
	if m.handover.sent = false; flags == "" || reached(flags) {
		m.taken()
	}
	if flags != "" {
		m.onLocalReply(now, flags)
		return
	}
	if s := m.sightOfHead(); s != blame.Served {
		if s == blame.Errored || s == blame.Empty {
			s = m.unfetched(s)
		}
		f := failureOfDecode(s)
		if !m.decodeFailed(now, s, ev.odd, &f) {
			m.relay(now) // the worker's own words say more than ours
		}
		return
	}
	m.answer.streams = m.answer.duplex && isEventStream(ev.headers.ContentType)
	m.readsFirst(ev)
	if m.holds() {
		m.phase = mainHolding
		m.emit(effect{op: opExtend, wait: extension(m.deadline.Sub(now))})
		return
	}
	m.relay(now)
}

// sightOfHead reads decode's head. An answer that ends with it is empty.
func (m *mainLeg) sightOfHead() blame.Sight {
	code := statusOf(m.status)
	if code/100 == 2 && m.answer.headAlone && !m.passing.on {
		return blame.Empty
	}
	return sightOfStatus(code)
}

// sightOfStatus is what the status of a worker's answer says.
func sightOfStatus(code int) blame.Sight {
	switch {
	case code/100 == 2:
		return blame.Served
	case code == 408 || code == 429:
		return blame.Busy
	case code/100 == 4:
		return blame.Rejected
	default:
		return blame.Errored
	}
}

// extension is how long Envoy is to wait for a reply that comes at a deadline, left
// from now. A filter that fails open lets the answer pass when its time is over, so a
// plugin that is late at the deadline has as long as it has for any message.
func extension(left time.Duration) time.Duration {
	return min(left+messageTimeout, maxExtension)
}

const (
	messageTimeout = 5 * time.Second // message_timeout of the shipped configurations
	maxExtension   = time.Hour       // the most that Envoy accepts (max_message_timeout)
)

func (m *mainLeg) waitsForPrefill() bool { return m.leg == legDispatched || m.leg == legStarted }

// onLocalReply takes an answer that Envoy made itself: no worker said it. A timer
// of Envoy's is the deadline that we set.
func (m *mainLeg) onLocalReply(now time.Time, flags string) {
	s := localSight(flags)
	f := failureOfDecode(s)
	if !m.decodeFailed(now, s, false, &f) {
		m.reject(&f, false)
	}
}

func (m *mainLeg) relay(now time.Time) {
	m.phase = mainStreaming
	m.relayedAt = now
	e := effect{op: opRelay, of: wire.ResponseHeaders}
	if m.plan.explain != "" {
		e.set = append(e.set, wire.Header{Name: prefill.HeaderDecision, Value: m.plan.explain})
	}
	m.emit(e)
	m.letAnswerPass()
	m.maybeLeave()
}

// maybeLeave ends our part in a full-duplex stream once nothing more can
// depend on it: from then on neither our crash nor our restart can harm the
// answer. A buffered stream stays: it survives us anyway, and its end is the
// exact moment to release decode. So does one of several replicas: Envoy sends its
// access log to one of them, and not to the one that has left (seen on 1.40).
func (m *mainLeg) maybeLeave() {
	if m.phase != mainStreaming || !m.fullDuplex && !m.draining || m.waitsForPrefill() || m.leg == legFailed {
		return
	}
	if m.answer.sent || m.way.plain || m.rules.replicas && !m.draining {
		return // pieces on their way to us would be lost; or nobody else tells us how it ends
	}
	m.phase = mainLeft
	m.emit(effect{op: opLeave})
	if m.logged.kind != 0 { // it broke off before we had let its headers pass
		m.conclude(m.loggedAt, m.logged.seen)
	}
}

// onLeg takes a report of the prefill leg.
func (m *mainLeg) onLeg(now time.Time, r legReport) {
	switch r.state {
	case legStarted:
		if m.leg == legDispatched {
			m.leg = legStarted
			m.startBy = time.Time{}
			m.emit(effect{op: opMark, report: r})
		}
	case legWell:
		if !m.waitsForPrefill() {
			return
		}
		m.leg, m.well = legWell, true
		m.overdueAt, m.startBy = time.Time{}, time.Time{}
		m.emit(effect{op: opMark, report: r})
		m.saw(m.prefillLeg(), blame.Served)
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
	case legFailed:
		m.onLegFailed(now, r)
	case legEnded:
		m.onLegEnded(now, r)
	}
}

func (m *mainLeg) onLegEnded(now time.Time, r legReport) {
	if m.leg == legEnded || m.plan == nil {
		return
	}
	if m.waitsForPrefill() { // it ended without a word
		m.onLegFailed(now, legReport{state: legFailed, reason: blame.Ended})
	}
	m.leg = legEnded
	m.orphanAt = time.Time{}
	m.emit(effect{op: opMark, report: r})
	m.releasePrefill()
	if m.phase != mainLingering || m.unsure() {
		return // learnt goes on
	}
	if m.collect(); !m.handover.taking {
		m.done()
	}
}

// onLegFailed is docs/behaviour.md#fresh-attempt: decode is ended at once. While no
// byte has gone to the client the request gets a fresh attempt, else one error.
func (m *mainLeg) onLegFailed(now time.Time, r legReport) {
	if m.plan == nil || !m.waitsForPrefill() {
		return
	}
	awaited := m.awaitsAnswer()
	if r.reason == blame.BrokeOff && (!awaited || !now.Before(m.deadline)) {
		r.reason = blame.Ended // by whoever has ended the attempt
	}
	neverStarted := m.leg == legDispatched
	m.leg = legFailed
	if m.plan.kind.Holds() {
		m.handover.held = false
	}
	m.startBy, m.overdueAt = time.Time{}, time.Time{}
	m.emit(effect{op: opMark, report: r})
	row := blame.Of(m.prefillLeg(), r.reason)
	f := failureOfPrefill(&r)
	if r.reason == blame.TimedOut && !now.Before(m.deadline) {
		f = failDeadline
	}
	f.fresh = m.fresh(row, m.plan.spare.Prefill, r.odd)
	retry := awaited && m.mayRetry(&f)
	m.charge(now, row, m.plan.prefill, retry)
	switch r.reason {
	case blame.NotStarted, blame.Overdue, blame.Gone:
		// The leg itself does not know that it has failed.
		m.emit(effect{op: opAbortLeg, report: r})
	default: // the leg's own report: it was there, whatever we heard of it before
		neverStarted = false
	}
	if neverStarted {
		// Nothing runs anywhere; a leg that arrives from now on is refused.
		m.leg = legEnded
		m.releasePrefill()
	}
	switch m.phase {
	case mainPrefilling:
		if m.mayServeAlone(&f, r) {
			m.instead = &f // once the leg's answer is there: it may hold KV
			return
		}
		m.reject(&f, retry)
	case mainRouted, mainHolding:
		m.reject(&f, retry)
	case mainStreaming:
		m.cut(&f)
	case mainLingering:
		if m.leg == legEnded {
			m.done()
			return
		}
		m.orphanAt = now.Add(m.rules.orphanGrace)
	}
}

// awaitsAnswer reports whether the request still waits for its first byte.
func (m *mainLeg) awaitsAnswer() bool {
	return m.phase == mainPrefilling || m.phase == mainRouted || m.phase == mainHolding
}

func (m *mainLeg) prefillLeg() blame.Leg {
	if m.plan.kind.PrefillFirst() {
		return blame.First
	}
	return blame.Mirrored
}

// busy reports whether a leg failed for want of room: the worker says so, or
// Envoy's circuit breaker.
func (r *legReport) busy() bool { return r.reason == blame.Overflow || r.reason == blame.Busy }

// cut ends an answer whose first bytes have gone to the client: with an error event
// where one can be written, else by a reset.
func (m *mainLeg) cut(f *failure) {
	m.finish(blame.Cut, f)
	m.phase = mainRejected
	m.releaseDecode()
	if !m.answer.streams {
		m.emit(effect{op: opImmediate, imm: m.immediate(f, false)})
		return
	}
	var event []byte
	if m.answer.midEvent {
		event = append(event, "\n\n"...)
	}
	event = openai.AppendSSEError(event, f.status, f.kind, f.code, f.message, f.param)
	m.emit(effect{op: opContinue, of: wire.ResponseBody, body: event, endOfStream: true})
	m.emit(effect{op: opLeave})
}

// reject answers the client, or asks Envoy for a fresh attempt when retry is
// wished and one is left.
func (m *mainLeg) reject(f *failure, retry bool) {
	retry = retry && m.mayRetry(f)
	m.giveUp()
	if retry {
		m.finish(blame.Retried, f)
	} else {
		m.finish(f.outcome(), f)
	}
	m.releaseDecode() // before the answer, which may bring the client back at once
	if !m.closed {
		m.emit(effect{op: opImmediate, imm: m.immediate(f, retry)})
	}
}

// giveUp lets go of the request: decode will not answer it.
func (m *mainLeg) giveUp() {
	m.phase = mainRejected
	m.answerBy, m.suspectAt = time.Time{}, time.Time{} // nobody waits any more
	m.dropPieces()
	m.collect()
	if !m.handover.asked && !m.unsure() {
		m.body = nil
	}
}

// mayRetry reports whether a fresh attempt is allowed and makes sense: one that
// would meet the same worker, since the request names it, does not.
func (m *mainLeg) mayRetry(f *failure) bool {
	if !f.fresh || m.attempt >= m.rules.maxAttempts || m.way.plain {
		return false
	}
	if m.plan == nil || m.way.repick {
		return true
	}
	if f.ofPrefill {
		return !m.plan.prefillNamed
	}
	return !m.plan.decodeNamed
}

func (m *mainLeg) finish(o outcome, f *failure) {
	if m.finished {
		return
	}
	m.finished = true
	m.emit(effect{op: opFinish, outcome: o, fail: f})
}

func (m *mainLeg) releaseDecode() {
	if m.decodeHeld && !m.handover.taking {
		m.decodeHeld = false
		m.emit(effect{op: opReleaseDecode})
	}
}

func (m *mainLeg) releasePrefill() {
	if m.prefillHeld {
		m.prefillHeld = false
		m.emit(effect{op: opReleasePrefill})
	}
}
