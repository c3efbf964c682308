package extproc

import (
	"strconv"
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
)

// onClosed ends the main leg's part. The prefill leg may run on
// (docs/behaviour.md#client-leaves).
func (m *mainLeg) onClosed(now time.Time) {
	if m.closed {
		return
	}
	m.closed = true
	m.pieces.drop(m.rules.buffers) // where it never became whole
	switch m.phase {
	case mainLeft: // the end of a stream that we left; the answer still runs
	case mainHolding, mainStreaming: // a held answer may have broken off, and then Envoy makes another attempt by itself
		m.awaitLog(now)
	case mainResolving: // evPicked or evRefused is still to come
		m.finish(blame.Left, nil)
	default:
		if m.phase == mainRouted && m.plan.looks { // it may be held elsewhere
			m.awaitLog(now)
			return
		}
		if m.plan != nil && !m.finished {
			m.saw(m.decodeLeg(), blame.ClientLeft)
		}
		m.finish(blame.Left, nil)
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

// awaitLog waits for the access log to say how the answer has ended.
func (m *mainLeg) awaitLog(now time.Time) {
	m.releaseDecode()
	if m.phase = mainEnded; m.way.plain { // there is none
		m.conclude(now, m.answer.end())
		return
	}
	m.logBy = now.Add(logWait)
	if m.logged.kind != 0 {
		m.concludeLogged(now, &m.logged)
	}
}

// logWait is how long the access log may take to tell how an answer ended.
// Without it nobody knows how the answer ended.
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

// wakeAt returns when the machine wants an evTimer, or the zero time.
func (m *mainLeg) wakeAt() time.Time {
	var at time.Time
	sooner := func(t time.Time) {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	switch m.phase {
	case mainDone:
		return at
	case mainRejected:
	case mainEnded, mainLingering:
		sooner(m.logBy)
	case mainLeft:
		sooner(m.deadline.Add(deadlineSlack))
	default:
		if !m.closed && !m.deadline.IsZero() {
			sooner(m.deadline.Add(deadlineSlack))
		}
	}
	sooner(m.startBy)
	sooner(m.overdueAt)
	sooner(m.orphanAt)
	sooner(m.answerBy)
	sooner(m.suspectAt)
	return at
}

// deadlineSlack lets Envoy's own timer, set to the deadline, go first: ours is
// for the phases in which Envoy has none.
const deadlineSlack = 250 * time.Millisecond

func (m *mainLeg) onTimer(now time.Time) {
	due := func(t time.Time) bool { return !t.IsZero() && !t.After(now) }
	switch {
	case due(m.startBy):
		m.onLate(now)
	case due(m.overdueAt) && m.leg == legDispatched:
		m.overdueAt = m.startBy // no worker can be late with what it has not seen
	case due(m.overdueAt):
		m.onOverdue(now)
	case due(m.answerBy):
		m.onSilent(now)
	case due(m.suspectAt):
		m.onSuspect(now)
	case due(m.orphanAt):
		m.onOrphan(now)
	}
	if m.phase == mainEnded && due(m.logBy) {
		m.concludeLogged(now, &event{seen: m.unlogged(), reached: true})
		return
	}
	if m.phase == mainLingering && due(m.logBy) {
		m.learnt(now, true)
		return
	}
	if m.closed && m.phase != mainLeft || !due(m.deadline.Add(deadlineSlack)) {
		return
	}
	switch m.phase {
	case mainAwaitBody, mainResolving, mainPrefilling, mainRouted, mainHolding:
		if m.phase == mainRouted || m.phase == mainHolding { // Envoy's timer has not told; of prefill's leg its own end tells
			m.saw(m.decodeLeg(), blame.TimedOut)
		}
		m.reject(&failDeadline, false)
	case mainStreaming:
		m.cut(&failDeadline)
	case mainLeft:
		m.conclude(now, m.unlogged())
	}
}

// orphanAgain is the least time after which a leg is ended once more that has not
// ended.
const orphanAgain = 100 * time.Millisecond

// onOrphan ends a prefill leg that outlives its attempt
// (docs/behaviour.md#client-leaves). A leg at another replica may never report its end:
// past the deadline it is taken as ended.
func (m *mainLeg) onOrphan(now time.Time) {
	if now.After(m.deadline.Add(2 * m.rules.orphanGrace)) {
		m.onLegEnded(now, legReport{state: legEnded, reason: blame.TimedOut})
		return
	}
	m.orphanAt = now.Add(max(m.rules.orphanGrace, orphanAgain))
	if m.leg == legDispatched {
		return // not here yet: startBy decides
	}
	m.abortOrphan(now)
}

// abortOrphan ends a prefill leg that nobody waits for.
func (m *mainLeg) abortOrphan(now time.Time) {
	m.orphanAt = now.Add(max(m.rules.orphanGrace, orphanAgain))
	r := legReport{state: legFailed, reason: blame.Aborted}
	if m.waitsForPrefill() { // our doing, not the worker's
		m.leg = legFailed
		m.emit(effect{op: opMark, report: r})
	}
	m.emit(effect{op: opAbortLeg, report: r})
}

// onLogged takes Envoy's access log of this attempt: its true end.
func (m *mainLeg) onLogged(now time.Time, ev *event) {
	if ev.seen == blame.BrokeOff && ev.status != 0 && strconv.Itoa(ev.status) != m.status {
		ev.seen = blame.Unsent // Envoy's own answer went on in its place
	}
	switch m.phase {
	case mainLeft, mainEnded:
		m.concludeLogged(now, ev)
	case mainRouted, mainHolding, mainRejected, mainStreaming:
		m.logged, m.loggedAt = *ev, now
	case mainLingering:
		if m.unsure() {
			m.learnt(now, ev.reached)
		}
	}
}

// concludeLogged is conclude by the access log, which also knows whether decode has
// seen a hand-off whose answer never came here.
func (m *mainLeg) concludeLogged(now time.Time, ev *event) {
	if m.status == "" {
		if m.handover.sent = false; ev.reached {
			m.taken()
		}
	}
	m.conclude(now, ev.seen)
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

// unlogged is what is said of an answer's end that no access log told. Behind a gateway
// Envoy may have told another replica, which cannot know whose it is.
func (m *mainLeg) unlogged() blame.Sight {
	switch {
	case m.status == "":
		return blame.ClientLeft
	case m.rules.replicas && m.way.gateway:
		return m.answer.end()
	default:
		return blame.Unfinished
	}
}

// conclude ends an attempt whose answer had begun. What its head said was charged
// then.
func (m *mainLeg) conclude(now time.Time, s blame.Sight) {
	m.logBy = time.Time{}
	code := statusOf(m.status)
	if s == blame.Empty && m.passing.on {
		s = blame.Served // not everything that passes has a body
	}
	switch head := m.sightOfStart(); {
	case head == blame.Served:
		m.charge(now, blame.Of(m.decodeLeg(), s), m.plan.decode, false)
		if s == blame.Served {
			m.served()
		}
	case s == blame.Served || s == blame.Empty:
		s = head
	}
	out := blame.Of(m.decodeLeg(), s).Outcome
	if out == blame.Retried && m.attempt >= m.rules.maxAttempts {
		out = blame.Failed
	}
	m.finish(out, failureOfEnd(s, code))
	m.endMain(now)
}
