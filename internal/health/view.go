package health

import (
	"cmp"
	"slices"
	"sync/atomic"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// view is the workers that are not healthy, ordered by id. Immutable, but for
// the trials it points to.
type view struct {
	version uint64
	ids     []worker.ID
	rows    []row

	// Of ids, those that may not be picked and those that only one request at
	// a time may try. All may try the others.
	aside, asked []worker.ID
}

type row struct {
	recovering bool
	open       bool // recovering without a healthy worker beside it: all may try
	trial      *atomic.Uint64
}

// find returns nil for a healthy worker.
func (v *view) find(id worker.ID) *row {
	if len(v.ids) == 0 {
		return nil
	}
	if i, ok := slices.BinarySearch(v.ids, id); ok {
		return &v.rows[i]
	}
	return nil
}

// publishLocked replaces the view.
func (t *Tracker) publishLocked() {
	var off []*entry
	for _, e := range t.workers {
		if e.state != Healthy {
			off = append(off, e)
		}
	}
	slices.SortFunc(off, func(a, b *entry) int { return cmp.Compare(a.id, b.id) })
	v := &view{version: t.view.Load().version + 1}
	for _, e := range off {
		r := row{recovering: e.state == Recovering, trial: e.trial}
		for _, p := range e.pools {
			if p.count(func(s State) bool { return s == Healthy }) == 0 {
				r.open = true
			}
		}
		v.ids = append(v.ids, e.id)
		v.rows = append(v.rows, r)
		switch {
		case !r.recovering:
			v.aside = append(v.aside, e.id)
		case !r.open:
			v.asked = append(v.asked, e.id)
		}
	}
	t.view.Store(v)
}

// Limits returns the workers that may not be picked, and those for which Allows
// must be asked at each pick, both ordered by id. The slices are shared and must
// not be written to; they are others whenever version is. It takes no lock.
func (t *Tracker) Limits() (version uint64, aside, asked []worker.ID) {
	v := t.view.Load()
	return v.version, v.aside, v.asked
}

// Allows reports whether the rank's worker may be picked now. It takes no lock.
func (t *Tracker) Allows(r worker.Rank) bool {
	row := t.view.Load().find(r.ID)
	return row == nil || row.recovering && (row.open || row.trial.Load() == 0)
}

// Aside reports whether nobody may be sent to the worker. Of one that is being
// tried Allows says no too, to all but the request that tries it: who has
// booked a rank asks Aside. It takes no lock.
func (t *Tracker) Aside(id worker.ID) bool {
	row := t.view.Load().find(id)
	return row != nil && !row.recovering
}

// Begin learns that a request was given to the rank. If the request is the one
// that tries a recovering worker it returns a number for End, else 0. It takes
// no lock. Between Allows and Begin of one pick no other pick may come: the
// book's lock sees to that.
func (t *Tracker) Begin(r worker.Rank) (trial uint64) {
	row := t.view.Load().find(r.ID)
	if row == nil || !row.recovering {
		return 0
	}
	n := t.trials.Add(1)
	if !row.trial.CompareAndSwap(0, n) {
		return 0
	}
	return n
}

// End learns that the request has ended, however it did. A trial that had no
// outcome to report makes way for the next. It takes no lock.
func (t *Tracker) End(r worker.Rank, trial uint64) {
	if trial == 0 {
		return
	}
	if row := t.view.Load().find(r.ID); row != nil {
		row.trial.CompareAndSwap(trial, 0)
	}
}
