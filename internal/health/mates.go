package health

import "github.com/seed-60ae5743/baton/pkg/worker"

// The budget for asking a mate, in hundredths of a request. Each ended request earns one
// hundredth, so that with healthy workers at most one in a hundred is asked twice.
// Requests whose refusal is surely no accident may overdraw it.
const (
	leastMates = -5000
	firstMates = 300
	mostMates  = 500
	keptMates  = 200 // kept for workers whose refusals are hardly by accident
	aMate      = 100
)

// How likely a run of refusals by accident may be for a mate to be asked: within the
// budget, and beyond it.
const (
	rareRun  = 0.02
	rarerRun = 0.001
)

// earnLocked adds to the budget for a request that has ended at a worker. Of a pair, only
// the decode worker counts.
func (t *Tracker) earnLocked(e *entry) {
	if !e.prefill {
		t.budget = min(t.budget+1, mostMates)
	}
}

// AskMate reports whether a request that this worker has refused may be sent once more,
// to another worker. It needs another worker in service, a worker here that fails more
// than its pools do (by its rate, or by a run of refusals with this one), and budget,
// which is then spent. If the worker is recovering, the answer is yes whatever its rate
// is, and costs no budget. The refusal may have been reported already, or not yet.
func (t *Tracker) AskMate(r worker.Rank) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.find(r)
	if e == nil || !t.hasMateLocked(e) {
		return false
	}
	if e.is() == Recovering {
		return true // it is on trial, one request at a time
	}
	rate := e.rate.and(false)
	worse := func(z float64) bool {
		return t.everyPoolLocked(e, func(others tally) bool { return rate.worse(others, z) })
	}
	run := func(chance float64) bool {
		return t.everyPoolLocked(e, func(others tally) bool { return others.sudden(e.refusals+1, chance) })
	}
	switch {
	case worse(5), run(rarerRun):
		t.budget = max(t.budget-aMate, leastMates)
		return true // no accident
	case t.budget < aMate:
		return false
	case run(rareRun):
	case !t.oddLocked(e, rate), t.budget < keptMates+aMate && !worse(3):
		return false
	}
	t.budget -= aMate
	return true
}

// MateServed returns the budget that AskMate has spent, after the mate has served the
// request.
func (t *Tracker) MateServed() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.budget = min(t.budget+aMate, mostMates)
}

// hasMateLocked reports whether a pool of e has another worker in service. Draining
// workers are in no pool.
func (t *Tracker) hasMateLocked(e *entry) bool {
	for _, p := range *e.pools.Load() {
		t.touchLocked()
		if p.others(e) > 0 {
			return true
		}
	}
	return false
}
