package extproc

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// This file is the main leg's part that tells what was seen of its workers. Who is
// charged with what, internal/blame says.

// decodeLeg is which leg the worker that answers serves.
func (m *mainLeg) decodeLeg() blame.Leg {
	if m.plan.disaggregated {
		return blame.Decode
	}
	return blame.Alone
}

// sighting is what was seen of a leg: a row of the blame table.
type sighting struct {
	leg   blame.Leg
	sight blame.Sight
}

func (m *mainLeg) saw(l blame.Leg, s blame.Sight) { m.seen = append(m.seen, sighting{l, s}) }

// decodeFailed charges decode with what was seen of it, and asks for a fresh attempt
// where that may do better: it reports whether it has.
func (m *mainLeg) decodeFailed(now time.Time, s blame.Sight, odd bool, f *failure) bool {
	row := blame.Of(m.decodeLeg(), s)
	f.fresh = m.fresh(row, m.plan.spare.Decode, odd)
	retry := m.mayRetry(f)
	m.charge(now, row, m.plan.decode, retry)
	if retry {
		m.reject(f, true)
	}
	return retry
}

// fresh reports whether another attempt may do better by what the row says; mate says
// that the leg could be tried elsewhere.
func (m *mainLeg) fresh(row blame.Row, mate, odd bool) bool {
	if row.Avoid == blame.Both {
		mate = m.plan.spare.Prefill || m.plan.spare.Decode
	}
	switch row.Fresh {
	case blame.Yes:
		return true
	case blame.IfSpare:
		return mate
	case blame.IfOdd:
		return mate && odd
	default:
		return false
	}
}

// charge tells what was seen of a worker: at once, or, where a fresh attempt is to
// show whose fault it was, to that attempt.
func (m *mainLeg) charge(now time.Time, row blame.Row, at worker.Rank, retry bool) {
	m.saw(row.Leg, row.Sight)
	m.avoid, m.keep = m.avoid[:0], worker.Rank{}
	switch row.Avoid {
	case blame.It:
		m.avoid = append(m.avoid, at)
	case blame.Both:
		m.avoidPair()
	}
	if row.Suspect {
		m.suspect(at, row.Leg == blame.Mirrored && row.Sight == blame.Overdue)
	}
	if retry {
		x := blame.Suspect[worker.Rank]{Worker: at, Charge: row.Charge}
		if row.Pair {
			x.Pair = &[2]worker.Rank{m.plan.prefill, m.plan.decode}
			x.Lone = [2]bool{!m.plan.spare.Prefill, !m.plan.spare.Decode}
		}
		if row.Sight == blame.Overdue {
			x.Within = now.Sub(m.pickedAt)
		}
		var c blame.Charge
		m.plan.suspects, c = m.plan.suspects.And(x)
		m.chargeWith(at, c, row.Charge)
		return
	}
	v, _ := m.plan.suspects.Last(at, row.Charge)
	m.chargeWith(at, v.Charge, row.Charge)
}

// avoidPair has both workers of a pair avoided. Where the two have failed not long ago
// another failure of theirs says nothing new: one of them, decode and prefill by turns, is
// tried with somebody else, which shows whether it is that one.
func (m *mainLeg) avoidPair() {
	switch p := m.plan; {
	case p.failing > 0 && p.spare.Prefill && (p.failing%2 == 1 || !p.spare.Decode):
		m.keep, m.avoid = p.decode, append(m.avoid, p.prefill)
	case p.failing > 0 && p.spare.Decode:
		m.keep, m.avoid = p.prefill, append(m.avoid, p.decode)
	default:
		m.avoid = append(m.avoid, p.decode, p.prefill)
	}
}

// chargeWith tells what a worker is charged with. A refusal or an error of which it is
// not charged counts all the same, so that its pool's rate of them stays known.
func (m *mainLeg) chargeWith(at worker.Rank, c, seen blame.Charge) {
	if c == blame.None && seen != blame.None && seen != blame.Slow {
		c = blame.Held
	}
	if c != blame.None {
		m.emit(effect{op: opCharge, rank: at, charge: c})
	}
}

// suspect has a worker probed. Of a mirrored pair each waits for the other, so a
// silence may be of both.
func (m *mainLeg) suspect(at worker.Rank, both bool) {
	m.emit(effect{op: opSuspect, rank: at})
	if both {
		m.emit(effect{op: opSuspect, rank: m.plan.decode})
	}
}

// served charges the suspects of earlier attempts: this one has served the request. Its
// head alone would be no proof: who answers with nothing, or breaks off, sends one, too.
func (m *mainLeg) served() {
	by := []worker.Rank{m.plan.decode}
	if m.plan.disaggregated {
		by = append(by, m.plan.prefill)
		m.emit(effect{op: opPairServed, rank: m.plan.prefill, other: m.plan.decode})
	}
	for _, v := range m.plan.suspects.Served(m.relayedAt.Sub(m.pickedAt), by...) {
		if v.Pair != nil {
			m.emit(effect{op: opPairFailed, rank: v.Pair[0], other: v.Pair[1]})
		} else {
			m.emit(effect{op: opCharge, rank: v.Worker, charge: v.Charge, proven: true})
		}
	}
	m.plan.suspects = nil
}

// chargeStuck tells of a leg that has taken too long, where nobody else can be tried.
// It is charged only when it has taken so long several times over: the request may be
// one that takes long, and its attempt would end with the worker that is set aside.
func (m *mainLeg) chargeStuck(row blame.Row, at worker.Rank) {
	m.saw(row.Leg, row.Sight)
	m.suspect(at, row.Leg == blame.Mirrored)
	if m.lapses++; m.lapses < stuckLapses {
		return
	}
	if row.Pair && !m.plan.kind.Holds() { // else prefill's answer waits for nobody
		at = m.plan.suspects.Stalled(m.plan.prefill, m.plan.decode, sameWorker)
	}
	m.chargeWith(at, blame.Slow, blame.Slow)
}

// stuckLapses is how many times what a leg may take a worker is waited for before it is
// charged, where nobody else can be tried.
const stuckLapses = 3

func sameWorker(a, b worker.Rank) bool { return a.ID == b.ID }

// suspectAfter is how long a worker is waited for before it is probed: half of what
// it may take, and most at most.
func suspectAfter(limit, most time.Duration) time.Duration {
	return min(max(limit/2, time.Second), most)
}

// When workers are probed for one request.
const (
	suspectPrefill = 2 * time.Second // so long it is waited for at most, though nothing is learned of it
	suspectEvery   = 5 * time.Second
)

// awaitAnswer starts decode's clock: it has all that it needs.
func (m *mainLeg) awaitAnswer(now time.Time) {
	m.lapses = 0
	if m.plan.answerWithin > 0 {
		m.answerBy = now.Add(m.plan.answerWithin)
		m.suspectAt = now.Add(suspectAfter(m.plan.answerWithin, suspectEvery))
	}
}

// onSuspect has those probed whom the request waits for. A probe is all that a silence
// of a few seconds is worth; one that is not answered sets its worker aside, and then
// evGone comes.
func (m *mainLeg) onSuspect(now time.Time) {
	m.suspectAt = time.Time{}
	if !m.awaitsAnswer() || m.leg == legDispatched {
		return // no worker can be silent about what it has not seen
	}
	m.suspectAt, m.suspected = now.Add(suspectEvery), true
	switch {
	case m.waitsForPrefill():
		m.suspect(m.plan.prefill, m.prefillLeg() == blame.Mirrored)
	case m.phase == mainRouted:
		m.suspect(m.plan.decode, false)
	}
}

// onLate takes the end of the time that prefill's leg may take to begin. The last
// attempt goes on waiting, as long as a prefill may take.
func (m *mainLeg) onLate(now time.Time) {
	f := failPrefill
	if m.startBy = (time.Time{}); m.awaitsAnswer() && !m.mayRetry(&f) && now.Sub(m.pickedAt) < m.rules.prefillTimeout {
		m.startBy = now.Add(m.plan.startWithin)
		return
	}
	m.onLegFailed(now, legReport{state: legFailed, reason: blame.NotStarted})
}

// onOverdue takes the end of the time that a prefill may take. Where nobody else can be
// tried the request goes on waiting; the silence is told all the same.
func (m *mainLeg) onOverdue(now time.Time) {
	m.overdueAt = time.Time{}
	if !m.awaitsAnswer() { // nobody waits for it: it is no silence, and of no use any more
		if m.waitsForPrefill() {
			m.abortOrphan(now)
		}
		return
	}
	row, f := blame.Of(m.prefillLeg(), blame.Overdue), failPrefill
	f.fresh = m.fresh(row, m.plan.spare.Prefill, false)
	late := legReport{state: legFailed, reason: blame.Overdue}
	if m.mayRetry(&f) || m.phase == mainPrefilling && m.mayServeAlone(&failPrefill, late) {
		m.onLegFailed(now, late)
		return
	}
	m.chargeStuck(blame.Of(m.prefillLeg(), blame.Stuck), m.plan.prefill)
	m.overdueAt = now.Add(m.plan.overdueAfter)
}

// onSilent is onOverdue for a decode that has all that it needs.
func (m *mainLeg) onSilent(now time.Time) {
	m.answerBy = time.Time{}
	if m.phase != mainRouted {
		return
	}
	f := failDecodeSilent
	if f.fresh = m.fresh(blame.Of(m.decodeLeg(), blame.Overdue), m.plan.spare.Decode, false); m.mayRetry(&f) {
		m.decodeFailed(now, blame.Overdue, false, &f)
		return
	}
	m.chargeStuck(blame.Of(m.decodeLeg(), blame.Stuck), m.plan.decode)
	m.answerBy = now.Add(m.plan.answerWithin)
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
