package extproc

import "time"

// This file is how an attempt ends: its stream, its access log, its prefill leg.

// onClosed ends the main leg's part. The prefill leg may run on (C9).
func (m *mainLeg) onClosed(now time.Time) {
	if m.closed {
		return
	}
	m.closed = true
	switch m.phase {
	case mainLeft: // the end of a stream that we left; the answer still runs
	case mainStreaming:
		m.releaseDecode()
		m.phase = mainEnded
		m.logBy = now.Add(logWait)
		if m.logged.kind != 0 {
			m.conclude(now, m.logged.outcome, m.logged.blame)
		}
	case mainResolving: // evPicked or evRefused is still to come
		m.finish(outcomeClientLeft, nil)
	default:
		m.finish(outcomeClientLeft, nil)
		switch {
		case !m.unsure():
			m.endMain(now)
		case m.logged.kind != 0:
			m.learnt(now, m.logged.reached)
		default:
			m.phase, m.logBy = mainLingering, now.Add(logWait)
		}
	}
}

// logWait is how long the access log may take to tell how an answer ended.
// Without it the answer counts as whole.
const logWait = 2 * time.Second

// endMain releases decode and either waits for the prefill leg or is done. A
// prefill whose KV a decode must take keeps decode booked.
func (m *mainLeg) endMain(now time.Time) {
	m.collect()
	if !m.legRuns() || !m.plan.kind.PrefillFirst() {
		m.releaseDecode()
	}
	if !m.legRuns() && !m.handover.taking {
		m.done()
		return
	}
	m.phase = mainLingering
	if m.legRuns() {
		m.orphanAt = now.Add(m.rules.orphanGrace)
	}
}

func (m *mainLeg) done() {
	m.releaseDecode()
	m.phase = mainDone
	if !m.handover.asked {
		m.body = nil
	}
	m.emit(effect{op: opForget})
}

// onLogged takes Envoy's access log of this attempt: its true end.
func (m *mainLeg) onLogged(now time.Time, ev *event) {
	switch m.phase {
	case mainLeft, mainEnded:
		m.conclude(now, ev.outcome, ev.blame)
	case mainRouted, mainRejected, mainStreaming:
		m.logged = *ev
	case mainLingering:
		if m.unsure() {
			m.learnt(now, ev.reached)
		}
	}
}

// learnt says whether decode has seen the hand-off of a client that left before
// an answer: if so, the KV is its engine's business.
func (m *mainLeg) learnt(now time.Time, reached bool) {
	m.logBy, m.handover.sent = time.Time{}, false
	if reached {
		m.taken()
	}
	m.endMain(now)
}

// conclude ends an attempt whose answer had begun.
func (m *mainLeg) conclude(now time.Time, o outcome, b blame) {
	m.logBy = time.Time{}
	if b != blameNone {
		m.emit(effect{op: opBlame, rank: m.plan.decode, blame: b})
	}
	m.finish(o, nil)
	m.endMain(now)
}
