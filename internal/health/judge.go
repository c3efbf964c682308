package health

import (
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Report takes what a request has met at a rank. Reports about unknown workers are
// ignored.
func (t *Tracker) Report(rank worker.Rank, r Report, now time.Time) {
	if r.Outcome == NotStarted {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.find(rank)
	if e == nil {
		return
	}
	t.earnLocked(e)
	switch r.Outcome {
	case OK:
		t.rateLocked(e, true)
		t.servedLocked(e, now)
	case ServerError:
		t.rateLocked(e, false)
		t.erredLocked(e, r, now)
	case Refused:
		t.rateLocked(e, false)
		if r.Proven {
			t.erredLocked(e, r, now)
		}
	case BrokeOff, ConnectionLost:
		t.rateLocked(e, false)
		t.erredLocked(e, r, now)
		t.suspectLocked(e, now)
	case Overdue, Timeout:
		t.slowLocked(e, r, now)
		t.suspectLocked(e, now)
	case Unreached:
		t.unreachedLocked(e, r, now)
	case ConnectFailed:
		t.condemnLocked(e, reasonOf(r.Outcome), now)
	}
}

// unreachedLocked takes that a connection to e is said to have been refused. Whoever reaches the
// plugin's port can say so, so only the plugin's own question condemns: it begins at once, and until
// its answer requests go to mates. What is said until then counts once, as a failed request: a
// worker that answers the plugin, and not the data plane, is set aside as one that fails.
func (t *Tracker) unreachedLocked(e *entry, r Report, now time.Time) {
	if e.is().aside() {
		return
	}
	if e.agenda == nil && e.flight == grounded {
		t.rateLocked(e, false)
		t.erredLocked(e, r, now)
	}
	if e.is() == Healthy {
		t.moveLocked(e, Doubted, false, reasonOf(r.Outcome), now)
	}
	t.suspectLocked(e, now)
}

// rateLocked counts an ended request of e, for e and in the sums of its pools.
func (t *Tracker) rateLocked(e *entry, good bool) {
	next := e.rate.and(good)
	for _, p := range *e.pools.Load() {
		t.touchLocked()
		p.sum = p.sum.less(e.rate).plus(next)
	}
	e.rate = next
	e.refusals++
	if good {
		e.refusals = 0
	}
}

// Began must be called when a worker's answer has begun and is no refusal. Without it a
// run of refusals would look longer than it is when many requests run: answers end later
// than refusals.
func (t *Tracker) Began(r worker.Rank, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.find(r); e != nil {
		e.refusals = 0
		t.believeLocked(e, ReasonAnswered, now)
	}
}

func (t *Tracker) servedLocked(e *entry, now time.Time) {
	e.heard, e.serverErrors, e.sparedFor, e.slow, e.lates = true, 0, "", false, 0
	if now.After(e.servedAt) {
		e.servedAt = now
	}
	switch e.is() {
	case Recovering:
		e.relapses = 0
		t.moveLocked(e, Healthy, false, ReasonAnswered, now)
	case Doubted:
		t.believeLocked(e, ReasonAnswered, now)
	case Aside, Probing:
		if e.reason.silence() {
			t.moveLocked(e, Recovering, false, ReasonAnswered, now)
		}
	}
}

// erredLocked takes a server error. Errors that all workers of a pool have alike are
// caused by the requests. So, without proof, they count against a worker only as a run
// that the others' rate does not explain, or, during its trial, if it fails more than the
// others do. No request makes a worker break off an answer that it has begun, as far as is
// known: for that a shorter run is enough.
func (t *Tracker) erredLocked(e *entry, r Report, now time.Time) {
	rare := chance
	if r.Outcome == BrokeOff {
		rare = chanceOfBreak
	}
	e.serverErrors++
	trial := e.is() == Recovering
	if e.serverErrors < t.cfg.ServerErrors && !trial {
		return
	}
	if r.Proven || trial && t.oddLocked(e, e.rate) || t.everyPoolLocked(e, func(others tally) bool { return others.unlikely(e.serverErrors, rare) }) {
		t.judgeLocked(e, ReasonServerErrors, now)
	}
}

// slowLocked takes a request that was too slow. One request alone may be slow by its own
// fault, in all its attempts.
func (t *Tracker) slowLocked(e *entry, r Report, now time.Time) {
	if e.is().aside() || !r.Since.IsZero() && r.Since.Before(e.servedAt) {
		return
	}
	another := e.slow && (r.Request == 0 || r.Request != e.slowRequest)
	e.slow, e.slowRequest = true, r.Request
	if another {
		t.judgeLocked(e, reasonOf(r.Outcome), now)
	}
}

// judgeLocked sets a worker aside for what requests have met, if its pools have room.
func (t *Tracker) judgeLocked(e *entry, r Reason, now time.Time) {
	if e.is().aside() {
		return
	}
	if !e.room() {
		if e.sparedFor == "" && t.cfg.Hooks.Spared != nil {
			t.cfg.Hooks.Spared(e.rank, r, now)
		}
		e.sparedFor = r
		return
	}
	t.setAsideLocked(e, false, r, now)
}

// doubtLocked takes that the page of a worker in service does not come. That is silence
// and no proof: SGLang's page waits until a prefill batch has ended, and any page waits
// for an event loop that is late (docs/engines.md#health). A worker that recovers gets one
// request at a time already.
func (t *Tracker) doubtLocked(e *entry, r Reason, now time.Time) {
	if e.is() == Healthy && !e.servedAt.After(e.asked) {
		t.moveLocked(e, Doubted, false, r, now)
	}
}

// believeLocked ends the doubt of a worker that has been heard from.
func (t *Tracker) believeLocked(e *entry, r Reason, now time.Time) {
	e.lates, e.heard = 0, true
	if e.is() == Doubted {
		t.moveLocked(e, Healthy, false, r, now)
	}
}

// condemnLocked sets aside a worker that cannot be reached. No share limits it, since
// such a worker could serve no request. If the worker was aside by judgement already, it
// makes room for others, and is aside because it cannot be reached from now on: requests that wait for it
// wait in vain. The other ranks of the worker may be dead too: they become suspects.
func (t *Tracker) condemnLocked(e *entry, r Reason, now time.Time) {
	if !e.is().aside() {
		t.setAsideLocked(e, true, r, now)
		for _, mate := range (*t.known.Load())[e.rank.ID] {
			t.touchLocked()
			t.suspectLocked(mate, now)
		}
		return
	}
	if (r.proof() || r == ReasonUnconnected) && !e.reason.proof() && !e.reason.silence() {
		t.moveLocked(e, e.is(), true, r, now) // a probe that is under way goes on
		return
	}
	t.countLocked(e, -1)
	e.dead, e.refused = true, e.refused || r.proof()
	t.countLocked(e, 1)
	if (r.proof() || r == ReasonUnconnected) && e.kept.Swap(false) {
		t.changes.note(e.rank.ID)
	}
}

func (t *Tracker) setAsideLocked(e *entry, dead bool, r Reason, now time.Time) {
	if e.is() == Recovering {
		e.relapses = min(e.relapses+1, maxRelapses)
	}
	e.sparedFor = ""
	t.moveLocked(e, Aside, dead, r, now)
	t.scheduled.put(&e.turn, now.Add(t.jitterLocked(min(t.cfg.ProbeInterval<<(2*min(e.relapses, mostQuadrupled)), t.cfg.MaxHold))))
	t.nudge()
}

// Suspect asks for a probe of the rank as soon as possible: one at a time, and at most
// one in a ProbeInterval. A worker that is aside is probed in any case, and an unknown one is
// ignored.
func (t *Tracker) Suspect(r worker.Rank, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.find(r); e != nil {
		t.suspectLocked(e, now)
	}
}

func (t *Tracker) suspectLocked(e *entry, now time.Time) {
	if e.is().aside() || e.agenda != nil || e.flight != grounded {
		return
	}
	due := now
	if next := e.asked.Add(t.cfg.ProbeInterval); next.After(due) && !e.asked.IsZero() {
		due = next
	}
	t.suspects.put(&e.turn, due)
	t.nudge()
}
