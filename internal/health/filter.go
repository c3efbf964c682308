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

// find returns nil for an unknown worker.
func (t *Tracker) find(id worker.ID) *entry {
	if invariants.Enabled {
		t.looked.Add(1)
	}
	return (*t.known.Load())[id]
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

// Standing returns what may be picked of the worker; of an unknown one, all. It
// takes no lock.
func (t *Tracker) Standing(id worker.ID) Standing {
	if t.limited.Load() == 0 {
		return Free
	}
	if e := t.find(id); e != nil {
		return e.standing()
	}
	return Free
}

// Allows reports whether the rank's worker may be picked now, beside all workers
// of its pools. It takes no lock.
func (t *Tracker) Allows(r worker.Rank) bool {
	if t.limited.Load() == 0 {
		return true
	}
	e := t.find(r.ID)
	if e == nil {
		return true
	}
	s := e.standing()
	return s < Tried || s == Tried && e.open()
}

// open reports whether a pool of the worker has nobody who is healthy: then all
// requests may try those that recover.
func (e *entry) open() bool {
	for _, p := range *e.pools.Load() {
		if p.healthy.Load() == 0 {
			return true
		}
	}
	return false
}

// Aside reports whether nobody may be sent to the worker. Of one that is being
// tried Allows says no too, to all but the request that tries it: who has
// booked a rank asks Aside. It takes no lock.
func (t *Tracker) Aside(id worker.ID) bool { return t.Standing(id) == Barred }

// Spare reports whether a worker of the key and role is not aside, but for those
// given. It takes no lock, and looks at no worker but those.
func (t *Tracker) Spare(k worker.Key, role worker.Role, but ...worker.ID) bool {
	p := (*t.byRole.Load())[poolKey{k, role}]
	if p == nil {
		return false
	}
	n := len(p.members) - int(p.aside.Load())
	for i, id := range but {
		if slices.Contains(but[:i], id) {
			continue
		}
		if e := t.find(id); e != nil && !e.is().aside() && slices.Contains(*e.pools.Load(), p) {
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
	e := t.find(r.ID)
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
	if e := t.find(r.ID); e != nil && e.trial.CompareAndSwap(trial, 0) {
		t.changes.note(r.ID)
	}
}
