package load

import (
	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/invariants"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// heed brings the table in step with the filter and returns who may not be
// picked. A pick applies what has changed since the last one, and looks at every
// rank only where the filter does not know that any more. Where nobody of the
// list is free, those that are being tried may be picked: they are all there is.
func (t *table) heed(b *Book, f Filter) picker.Bits {
	if t.filter != f {
		t.filter, t.version = f, 0
	}
	now, changed, all := f.Changes(t.version, b.changed[:0])
	t.version, b.changed = now, changed
	if all {
		t.learn(b, f)
	} else {
		for _, id := range changed {
			t.apply(b, id, f)
		}
	}
	if t.free == 0 {
		return t.barred
	}
	return t.closed
}

// learn notes what the filter says of each rank.
func (t *table) learn(b *Book, f Filter) {
	copy(t.barred, t.unknown)
	copy(t.closed, t.unknown)
	clear(t.standings)
	t.free = len(t.standings) - t.unknown.Count()
	for i, r := range t.cols.Ranks {
		t.stand(b, i, f.Standing(r))
	}
}

// apply notes what the filter says of a worker's ranks, which may be in other lists
// alone. Its ranks lie together, the first of them first.
func (t *table) apply(b *Book, id worker.ID, f Filter) {
	b.workLocked()
	slot := b.slotLocked(worker.Rank{ID: id})
	if slot < 0 {
		return
	}
	for _, p := range b.entries[slot].places {
		if p.t != t {
			continue
		}
		for i := int(p.at); i < len(t.cols.Ranks) && t.cols.Ranks[i].ID == id; i++ {
			t.stand(b, i, f.Standing(t.cols.Ranks[i]))
		}
	}
}

// stand notes the standing of one rank.
func (t *table) stand(b *Book, i int, s health.Standing) {
	b.workLocked()
	if t.unknown.Has(i) || t.standings[i] == s {
		return
	}
	if t.standings[i] == health.Free {
		t.free--
	}
	t.standings[i] = s
	t.barred.Unset(i)
	t.closed.Unset(i)
	switch s {
	case health.Free:
		t.free++
	case health.Tried:
		t.closed.Set(i)
	case health.Barred:
		t.barred.Set(i)
		t.closed.Set(i)
	}
}

// workLocked counts the ranks that picks look at for the filter, so that tests
// see what it grows with.
func (b *Book) workLocked() {
	if invariants.Enabled {
		b.work++
	}
}
