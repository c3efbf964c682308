package health

import (
	"slices"

	"github.com/seed-60ae5743/baton/internal/invariants"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Standing says which requests may be sent to a worker.
type Standing uint8

// The standings. The zero value is Free.
const (
	Free   Standing = iota // healthy
	Half                   // recovering: one request may try it
	Tried                  // doubted, recovering while a request tries it, or aside and kept by a pool: requests may be sent only if its pool has no Free worker
	Barred                 // aside
)

func (e *entry) is() State { return State(e.state.Load()) }

func (e *entry) standing() Standing {
	switch e.is() {
	case Healthy:
		return Free
	case Doubted:
		return Tried
	case Recovering:
		if e.trial.Load() == 0 {
			return Half
		}
		return Tried
	default:
		if e.kept.Load() {
			return Tried
		}
		return Barred
	}
}

// find returns nil for an unknown worker. If its ranks share a port, all of them have one
// entry.
func (t *Tracker) find(r worker.Rank) *entry {
	if invariants.Enabled {
		t.looked.Add(1)
	}
	switch es := (*t.known.Load())[r.ID]; {
	case len(es) == 1:
		return es[0]
	case uint64(r.DPRank) < uint64(len(es)):
		return es[r.DPRank]
	default:
		return nil
	}
}

// Looked returns how many workers callers have looked up: the work of a decision, for
// tests. It counts only in builds with invariants.
func (t *Tracker) Looked() int64 { return t.looked.Load() }

// Changes appends to dst the workers whose Standing may have changed since a version,
// which an earlier call has returned; a worker may come twice. If all is true, any worker
// may have changed: the version is 0, or too old.
func (t *Tracker) Changes(since uint64, dst []worker.ID) (now uint64, changed []worker.ID, all bool) {
	return t.changes.after(since, dst)
}

// Standing returns the standing of the rank; Free for an unknown worker. It takes no
// lock.
func (t *Tracker) Standing(r worker.Rank) Standing {
	if t.limited.Load() == 0 {
		return Free
	}
	if e := t.find(r); e != nil {
		return e.standing()
	}
	return Free
}

// Allows reports whether the rank may be picked now. It takes no lock.
func (t *Tracker) Allows(r worker.Rank) bool {
	if t.limited.Load() == 0 {
		return true
	}
	e := t.find(r)
	return e == nil || e.allowed()
}

func (e *entry) allowed() bool {
	s := e.standing()
	return s < Tried || s == Tried && e.open()
}

// AllowsSome reports whether a rank of the worker may be picked now. It takes no lock.
func (t *Tracker) AllowsSome(id worker.ID) bool {
	es := (*t.known.Load())[id]
	return len(es) == 0 || slices.ContainsFunc(es, (*entry).allowed)
}

// open reports whether a pool of e has no healthy worker: then all requests may try the
// ones that recover or are doubted.
func (e *entry) open() bool {
	for _, p := range *e.pools.Load() {
		if p.healthy.Load() == 0 {
			return true
		}
	}
	return false
}

// Aside reports whether no request may be sent to the rank. It differs from Allows for a
// worker that recovers while a request tries it: Allows then returns false, but the
// request that tries it has booked it, and may be sent. It takes no lock.
func (t *Tracker) Aside(r worker.Rank) bool { return t.Standing(r) == Barred }

// Away reports whether the rank is aside or doubted: what waits elsewhere gains nothing at
// it. It takes no lock.
func (t *Tracker) Away(r worker.Rank) bool {
	if t.limited.Load() == 0 {
		return false
	}
	e := t.find(r)
	return e != nil && e.is().away()
}

// Spare reports whether the pool of the key and role has a rank that is neither aside nor
// doubted, apart from those given. It takes no lock, and looks only at the given ones.
func (t *Tracker) Spare(k worker.Key, role worker.Role, but ...worker.Rank) bool {
	p := (*t.byRole.Load())[poolKey{k, role}]
	if p == nil {
		return false
	}
	n := len(p.members) - int(p.aside.Load()) - int(p.doubted.Load())
	for i, r := range but {
		e := t.find(r)
		if e == nil || e.is().away() || !slices.Contains(*e.pools.Load(), p) {
			continue
		}
		if !slices.ContainsFunc(but[:i], func(x worker.Rank) bool { return x.In(r, !e.ownPort) }) {
			n--
		}
	}
	return n > 0
}

// MayReturn reports whether a rank of the key and role is set aside and not known to refuse
// connections: a request that finds no worker may wait for it. It takes no lock.
func (t *Tracker) MayReturn(k worker.Key, role worker.Role) bool {
	p := (*t.byRole.Load())[poolKey{k, role}]
	return p != nil && p.returning.Load() > 0
}

// Judged reports whether a probe of the rank is due or under way, and nothing of it has answered
// so far.
func (t *Tracker) Judged(r worker.Rank) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.find(r)
	unheard := e != nil && (e.is() == Healthy || e.is() == Doubted && (e.reason == ReasonSilent || e.reason == reasonOf(Unreached)))
	return unheard && (e.agenda != nil || e.flight == onSuspicion)
}

// Begin must be called when a request is booked on the rank. If the request is the one
// that tries a recovering worker, Begin returns a number for End, else 0. No other pick
// may come between Standing or Allows and Begin of one pick: internal/load's lock ensures
// that.
func (t *Tracker) Begin(r worker.Rank) (trial uint64) {
	if t.limited.Load() == 0 {
		return 0
	}
	e := t.find(r)
	if e == nil || e.is() != Recovering {
		return 0
	}
	n := t.trials.Add(1)
	if !e.trial.CompareAndSwap(0, n) {
		return 0
	}
	t.changes.note(r.ID)
	return n
}

// End must be called when the request has ended, in any way. If it was a trial and its
// outcome was not reported, another request may try the worker.
func (t *Tracker) End(r worker.Rank, trial uint64) {
	if trial == 0 {
		return
	}
	if e := t.find(r); e != nil && e.trial.CompareAndSwap(trial, 0) {
		t.changes.note(r.ID)
	}
}
