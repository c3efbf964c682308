package health

import "github.com/seed-60ae5743/baton/pkg/worker"

// The budget of second askings, in hundredths of one. An ended request earns
// one: with healthy workers one request in a hundred is asked twice at most.
// Those that are hardly an accident are made beyond it, and taken from it.
const (
	leastMates = -5000
	firstMates = 300
	mostMates  = 500
	keptMates  = 200 // for workers whose refusals are hardly an accident any more
	aMate      = 100
)

// How rarely requests may make a run of refusals by accident that has a mate asked: out
// of the budget, and without.
const (
	rareRun  = 0.02
	rarerRun = 0.001
)

// earnLocked takes that a request has ended at a worker. Of a pair it is decode that
// ends it.
func (t *Tracker) earnLocked(e *entry) {
	if !e.prefill {
		t.budget = min(t.budget+1, mostMates)
	}
}

// AskMate reports whether a request that this worker has refused may be asked once
// more, of another: there is one in service, the worker fails more than its pools do, by
// its rate or by a run of refusals, this one included, and there is budget for it, which
// is then spent. One that recovers is asked for whatever its rate is, and without budget.
// It does not matter whether the refusal has been reported yet.
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

// MateServed takes that a second asking has served its request: it was not in
// vain, and its budget comes back.
func (t *Tracker) MateServed() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.budget = min(t.budget+aMate, mostMates)
}

// hasMateLocked reports whether a pool of e has somebody else in service. One
// that drains is in none.
func (t *Tracker) hasMateLocked(e *entry) bool {
	for _, p := range *e.pools.Load() {
		t.touchLocked()
		others := len(p.members) - int(p.aside.Load())
		if !e.is().aside() {
			others--
		}
		if others > 0 {
			return true
		}
	}
	return false
}
