package leg

import (
	"strconv"
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
)

// This file is how a main leg's attempt ends: by its stream, the access log or a time.

// onDrain takes the word that the process is about to end.
func (m *Main) onDrain() {
	if m.link == linkUp {
		m.link = linkDraining
	}
	m.maybeLeave()
}

// onClosed ends the main leg's part. The prefill leg may run on
// (docs/behaviour.md#client-leaves).
func (m *Main) onClosed(now time.Time) {
	if m.link == linkOver {
		return
	}
	m.link = linkOver
	m.req.pieces.drop(m.rules.Buffers) // where it never became whole
	switch m.phase {
	case mainLeft: // the end of a stream that we left; the answer still runs
	case mainHolding, mainStreaming: // a held answer may have broken off, and then Envoy makes another attempt by itself
		m.awaitLog(now)
	case mainResolving: // EventPicked or EventRefused is still to come
		m.finish(blame.Left, nil)
	default:
		if m.phase == mainRouted && m.plan.Looks { // it may be held elsewhere
			m.awaitLog(now)
			return
		}
		m.onLeft(now)
	}
}

// onLeft ends an attempt whose client has left before an answer.
func (m *Main) onLeft(now time.Time) {
	if m.plan != nil && !m.finished {
		m.charges.saw(m.decodeLeg(), blame.ClientLeft)
	}
	m.finish(blame.Left, nil)
	switch {
	case !m.handover.unsure():
		m.endMain(now)
	case m.logged.Kind != 0:
		m.learnt(now, m.logged.Reached)
	default:
		m.phase = mainLingering
		m.timers.set(timerLog, now.Add(LogWait))
	}
}

// awaitLog waits for the access log to say how the answer has ended.
func (m *Main) awaitLog(now time.Time) {
	m.releaseDecode()
	m.phase = mainEnded
	if m.way.Plain() { // there is none
		m.conclude(now, m.answer.end())
		return
	}
	m.timers.set(timerLog, now.Add(LogWait))
	if m.logged.Kind != 0 {
		m.concludeLogged(now, &m.logged)
	}
}

// LogWait is how long the access log may take to tell how an answer ended.
// Without it nobody knows how the answer ended.
const LogWait = 2 * time.Second

// onLogged takes Envoy's access log of this attempt: its true end.
func (m *Main) onLogged(now time.Time, ev *Event) {
	if ev.Seen == blame.BrokeOff && ev.Status != 0 && strconv.Itoa(ev.Status) != m.answer.status {
		ev.Seen = blame.Unsent // Envoy's own answer went on in its place
	}
	switch m.phase {
	case mainLeft, mainEnded:
		m.concludeLogged(now, ev)
	case mainRouted, mainHolding, mainRejected, mainStreaming:
		m.logged, m.loggedAt = *ev, now
	case mainLingering:
		if m.handover.unsure() {
			m.learnt(now, ev.Reached)
		}
	}
}

// concludeLogged is conclude by the access log, which also knows whether decode has
// seen a hand-off whose answer never came here.
func (m *Main) concludeLogged(now time.Time, ev *Event) {
	if !m.answer.HeadCame() {
		m.handover.unsent()
		if ev.Reached {
			m.taken()
		}
	}
	m.conclude(now, ev.Seen)
}

// learnt says whether decode has seen the hand-off of a client that left before
// an answer: if so, the KV is its engine's business.
func (m *Main) learnt(now time.Time, reached bool) {
	m.timers.stop(timerLog)
	m.handover.unsent()
	if reached {
		m.taken()
	}
	m.endMain(now)
}

// WakeAt returns when the machine wants an EventTimer, or the zero time.
func (m *Main) WakeAt() time.Time {
	var at time.Time
	switch m.phase {
	case mainDone:
		return at
	case mainEnded, mainLingering:
		at = m.timers[timerLog]
	default:
		at = m.deadlineAt()
	}
	return sooner(at, m.timers.next(timerBegin, timerLate, timerAnswer, timerProbe, timerOrphan))
}

// deadlineAt is when the deadline is ours to keep; zero: it is not.
func (m *Main) deadlineAt() time.Time {
	if m.phase == mainRejected || m.req.Deadline.IsZero() || m.link == linkOver && m.phase != mainLeft {
		return time.Time{}
	}
	return m.req.Deadline.Add(deadlineSlack)
}

func (m *Main) onTimer(now time.Time) {
	switch {
	case m.timers.due(timerBegin, now):
		m.onLate(now)
	case m.timers.due(timerLate, now):
		m.onOverdue(now)
	case m.timers.due(timerAnswer, now):
		m.onSilent(now)
	case m.timers.due(timerProbe, now):
		m.onSuspect(now)
	case m.timers.due(timerOrphan, now):
		m.onOrphan(now)
	}
	switch {
	case m.phase == mainEnded && m.timers.due(timerLog, now):
		m.concludeLogged(now, &Event{Seen: m.answer.unlogged(m.rules.Replicas && m.way.Gateway()), Reached: true})
	case m.phase == mainLingering && m.timers.due(timerLog, now):
		m.learnt(now, true)
	case past(m.deadlineAt(), now):
		m.onDeadline(now)
	}
}

// onDeadline takes the client's deadline, where Envoy's own timer has not.
func (m *Main) onDeadline(now time.Time) {
	switch m.phase {
	case mainAwaitBody, mainResolving, mainPrefilling, mainRouted, mainHolding:
		if m.phase == mainRouted || m.phase == mainHolding { // Envoy's timer has not told; of prefill's leg its own end tells
			m.charges.saw(m.decodeLeg(), blame.TimedOut)
		}
		m.reject(&failDeadline, false)
	case mainStreaming:
		m.cut(&failDeadline)
	case mainLeft:
		m.conclude(now, m.answer.unlogged(m.rules.Replicas && m.way.Gateway()))
	}
}
