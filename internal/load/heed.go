package load

import (
	"slices"

	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/invariants"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// heed brings the table in step with the filter. A pick applies the changes since the last
// one. It looks at every rank only if the filter no longer knows these changes.
func (t *table) heed(b *Book, f Filter) {
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
}

// narrow reports whether the table has ranks that are health.Tried beside others that are
// free.
func (t *table) narrow() bool {
	return t.free > 0 && !slices.Equal(t.closed, t.barred)
}

// learn notes the filter's standing of each rank.
func (t *table) learn(b *Book, f Filter) {
	copy(t.barred, t.unknown)
	copy(t.closed, t.unknown)
	clear(t.standings)
	t.free = len(t.standings) - t.unknown.Count()
	for i, r := range t.cols.Ranks {
		t.stand(b, i, f.Standing(r))
	}
}

// apply notes the filter's standing of one worker's ranks, which may be in other lists
// only. The ranks of a worker are adjacent, the first of them first.
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

// workLocked counts the ranks that picks look at for the filter, so that a test can see
// what the number depends on.
func (b *Book) workLocked() {
	if invariants.Enabled {
		b.work++
	}
}
