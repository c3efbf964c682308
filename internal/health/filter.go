package health

import (
	"slices"

	"github.com/seed-60ae5743/baton/internal/invariants"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Standing is what may be picked of a worker.
type Standing uint8

// The standings. The zero value is Free.
const (
	Free   Standing = iota // healthy
	Half                   // recovering: one request may try it
	Tried                  // recovering, and a request tries it: only where nobody beside it is Free
	Barred                 // aside
)

func (e *entry) is() State { return State(e.state.Load()) }

func (e *entry) standing() Standing {
	switch e.is() {
	case Healthy:
		return Free
	case Recovering:
		if e.trial.Load() == 0 {
			return Half
		}
		return Tried
	default:
		return Barred
	}
}

// find returns nil for an unknown worker. What its ranks have in common is what is known
// of any of them.
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

// Looked returns how many workers callers have had looked up: the work of a decision,
// for tests. It counts where invariants are compiled in.
func (t *Tracker) Looked() int64 { return t.looked.Load() }

// Changes appends to dst the workers whose Standing may have changed since the
// version that an earlier call returned, some more than once. all says that it is
// not known any more, or not yet (since is 0), who they are: it may be anyone.
func (t *Tracker) Changes(since uint64, dst []worker.ID) (now uint64, changed []worker.ID, all bool) {
	return t.changes.after(since, dst)
}

// Standing returns what may be picked of the rank; of an unknown worker, all. It
// takes no lock.
func (t *Tracker) Standing(r worker.Rank) Standing {
	if t.limited.Load() == 0 {
		return Free
	}
	if e := t.find(r); e != nil {
		return e.standing()
	}
	return Free
}

// Allows reports whether the rank may be picked now, beside all others of its pools. It
// takes no lock.
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

// open reports whether a pool of it has nobody who is healthy: then all
// requests may try those that recover.
func (e *entry) open() bool {
	for _, p := range *e.pools.Load() {
		if p.healthy.Load() == 0 {
			return true
		}
	}
	return false
}

// Aside reports whether nobody may be sent to the rank. Of one that is being
// tried Allows says no too, to all but the request that tries it: who has
// booked a rank asks Aside. It takes no lock.
func (t *Tracker) Aside(r worker.Rank) bool { return t.Standing(r) == Barred }

// AllAside reports whether nobody may be sent to any rank of the worker. It takes no lock.
func (t *Tracker) AllAside(id worker.ID) bool {
	es := (*t.known.Load())[id]
	return len(es) > 0 && !slices.ContainsFunc(es, func(e *entry) bool { return !e.is().aside() })
}

// Spare reports whether somebody of the key and role is not aside, but for those
// given. It takes no lock, and looks at nobody but those.
func (t *Tracker) Spare(k worker.Key, role worker.Role, but ...worker.Rank) bool {
	p := (*t.byRole.Load())[poolKey{k, role}]
	if p == nil {
		return false
	}
	n := len(p.members) - int(p.aside.Load())
	for i, r := range but {
		e := t.find(r)
		if e == nil || e.is().aside() || !slices.Contains(*e.pools.Load(), p) {
			continue
		}
		if !slices.ContainsFunc(but[:i], func(x worker.Rank) bool { return x.In(r, !e.ownPort) }) {
			n--
		}
	}
	return n > 0
}

// Begin learns that a request was given to the rank. If the request is the one
// that tries a recovering worker it returns a number for End, else 0. Between
// Standing, or Allows, and Begin of one pick no other pick may come: the book's
// lock sees to that.
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

// End learns that the request has ended, however it did. A trial that had no
// outcome to report makes way for the next.
func (t *Tracker) End(r worker.Rank, trial uint64) {
	if trial == 0 {
		return
	}
	if e := t.find(r); e != nil && e.trial.CompareAndSwap(trial, 0) {
		t.changes.note(r.ID)
	}
}
