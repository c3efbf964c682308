package leg

import (
	"cmp"
	"strconv"
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
)

// This file has the ends of a main leg's attempt: by the end of its stream, by the access
// log, by a timer.

// onDrain notes that the process is about to end, and leaves the stream if that is
// possible.
func (m *Main) onDrain(now time.Time) {
	if m.link == linkUp {
		m.link = linkDraining
	}
	if m.phase == mainWaiting { // whoever comes after this process may find a worker
		m.reject(&FailNotReady, true)
	}
	m.maybeLeave(now)
}

// onClosed takes the end of the main leg's stream. The prefill leg may run on
// (docs/behaviour.md#client-leaves).
func (m *Main) onClosed(now time.Time) {
	if m.link == linkOver {
		return
	}
	m.link = linkOver
	m.req.pieces.drop(m.rules.Buffers) // of a body that did not become whole
	switch m.phase {
	case mainLeft: // the machine has left this stream, and the answer still runs
	case mainHolding, mainStreaming: // a held answer may have broken off, and then Envoy makes another attempt by itself
		m.awaitLog(now)
	case mainResolving: // EventPicked or EventRefused is still to come
		m.finish(blame.Left, nil)
	default:
		if m.phase == mainRouted && !m.way.Plain() { // another stream may hold an answer that has begun, or Envoy has refused the request
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

// awaitLog waits for the access log, which says how the answer has ended.
func (m *Main) awaitLog(now time.Time) {
	if !m.handover.unsure() { // else decode may have to collect the KV
		m.releaseDecode()
	}
	m.phase = mainEnded
	if m.way.Plain() { // a plain gateway sends no access log
		m.conclude(now, m.answer.end())
		return
	}
	m.timers.set(timerLog, now.Add(LogWait))
	if m.logged.Kind != 0 {
		m.concludeLogged(now, &m.logged)
	}
}

// LogWait is how long the machine waits for the access log to tell how an answer ended.
// After that nobody knows.
const LogWait = 2 * time.Second

// onLogged takes Envoy's access log of this attempt, which tells its true end.
func (m *Main) onLogged(now time.Time, ev *Event) {
	if ev.Seen == blame.BrokeOff && ev.Status != 0 && strconv.Itoa(ev.Status) != m.answer.status {
		ev.Seen = blame.Unsent // the client got an answer of Envoy's in its place
	}
	switch m.phase {
	case mainLeft, mainEnded:
		m.concludeLogged(now, ev)
	case mainLingering:
		if m.handover.unsure() {
			m.learnt(now, ev.Reached)
		}
	case mainDone:
	default: // also before the hand-off leaves: whoever sends it later has to know that decode never will see it
		m.logged, m.loggedAt = *ev, now
	}
}

// concludeLogged concludes the attempt by the access log. If the head of decode's answer
// never came here, the log also tells whether decode has seen the hand-off.
func (m *Main) concludeLogged(now time.Time, ev *Event) {
	m.met = cmp.Or(m.met, ev.Details)
	if !m.answer.HeadCame() {
		m.handover.unsent()
		if ev.Reached {
			m.taken()
		}
		if ev.Seen == blame.NotSent {
			m.unsent(now, ev.Status)
		}
	}
	m.conclude(now, ev.Seen)
}

// unsent notes that Envoy has answered the request itself after the plugin had routed it,
// with this status. Such a request is not mirrored either.
func (m *Main) unsent(now time.Time, status int) {
	switch {
	case m.plan.SentBeside && m.far.awaited():
		m.abortOrphan(now)
	case m.far.state == Dispatched && !m.plan.sent():
		m.far.state = Ended
		m.timers.stop(timerBegin, timerLate)
		m.releasePrefill()
	}
	if status < 500 {
		f := failProxy
		f.Status = status
		m.finish(Refused, &f)
	}
}

// learnt ends the attempt of a client that left before an answer, now that it is known
// whether decode has seen the hand-off. The flag reached says that decode has: then the
// KV is its engine's business.
func (m *Main) learnt(now time.Time, reached bool) {
	m.timers.stop(timerLog)
	m.handover.unsent()
	if reached {
		m.taken()
	}
	m.endMain(now)
}

// WakeAt returns when the machine wants an EventTimer, or the zero time if it wants none.
func (m *Main) WakeAt() time.Time {
	var at time.Time
	switch m.phase {
	case mainDone:
		return at
	case mainEnded, mainLingering:
		at = m.timers[timerLog]
	case mainLeft:
		at = sooner(m.deadlineAt(), m.timers[timerLost])
	default:
		at = m.deadlineAt()
	}
	for _, k := range [...]timer{timerBegin, timerLate, timerAnswer, timerProbe, timerOrphan, timerExtend, timerPick, timerGap} {
		at = sooner(at, m.timers[k])
	}
	return at
}

// deadlineAt returns when the machine itself ends the request at its deadline, or the
// zero time if it does not.
func (m *Main) deadlineAt() time.Time {
	if m.phase == mainRejected || m.req.Deadline.IsZero() || m.link == linkOver && m.phase != mainLeft {
		return time.Time{}
	}
	return m.req.Deadline.Add(deadlineSlack)
}

func (m *Main) onTimer(now time.Time, repeat bool) {
	switch {
	case m.timers.excuse(now):
	case m.timers.due(timerBegin, now):
		m.onLate(now, repeat)
	case m.timers.due(timerLate, now):
		m.onOverdue(now, repeat)
	case m.timers.due(timerAnswer, now):
		m.onSilent(now, repeat)
	case m.timers.due(timerProbe, now):
		m.onSuspect(now)
	case m.timers.due(timerOrphan, now):
		m.onOrphan(now)
	case m.timers.due(timerExtend, now):
		m.onExtend(now)
	case m.timers.due(timerPick, now):
		m.pickAgain()
	case m.timers.due(timerGap, now):
		stalled(&m.attempt, now, m.answer.passed)
	}
	switch {
	case m.phase == mainEnded && m.timers.due(timerLog, now):
		m.concludeLogged(now, &Event{Seen: m.answer.unlogged(m.rules.Replicas && m.way.Gateway()), Reached: true})
	case m.phase == mainLingering && m.timers.due(timerLog, now):
		m.learnt(now, true)
	case past(m.deadlineAt(), now), m.phase == mainLeft && m.timers.due(timerLost, now):
		m.onDeadline(now)
	}
}

// onDeadline ends the request at the client's deadline, if Envoy's own timer has not
// ended it. Of a stream that was left it also ends what nobody tells of any more.
func (m *Main) onDeadline(now time.Time) {
	switch m.phase {
	case mainAwaitBody, mainResolving, mainWaiting, mainPrefilling, mainRouted, mainHolding:
		if m.phase == mainRouted || m.phase == mainHolding { // Envoy has told nothing of decode; the prefill leg tells its own end
			m.charges.saw(m.decodeLeg(), blame.TimedOut)
		}
		m.reject(&failDeadline, false)
	case mainStreaming:
		m.charges.saw(m.decodeLeg(), blame.Expired)
		m.cut(&failDeadline)
	case mainLeft:
		m.conclude(now, m.answer.unlogged(m.rules.Replicas && m.way.Gateway()))
	}
}
