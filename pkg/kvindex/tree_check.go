//go:build invariants

package kvindex

import (
	"errors"
	"fmt"
)

// Check walks the whole index and returns an error that names the first invariant that does not
// hold (I1… of the package comment), or nil. It asks each part. It is slow and blocks writers, and
// is in builds with invariants only.
func (t *Tree) Check() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ranks.wait()
	w := truth{bySlot: make(map[Slot]*treeRank), refs: make(map[blockID]uint32), counted: make(map[heldBy]bool)}
	if err := errors.Join(t.slots.check(), t.ranks.check(&w)); err != nil {
		return err
	}
	for r, rk := range t.ranks.all {
		if err := errors.Join(t.ledger.check(rk, &w), t.prompts.checkRank(rk, &w)); err != nil {
			return fmt.Errorf("%w (rank %s)", err, r)
		}
	}
	for _, f := range []func() error{
		func() error { return t.prompts.check(&t.ranks) },
		func() error { return t.trie.check(&w) },
		func() error { return t.ledger.names.check(&t.ranks) },
		t.budget.check, t.eviction.check,
	} {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// truth is what the tables of the ranks say, with which the nodes must agree.
type truth struct {
	bySlot map[Slot]*treeRank
	refs   map[blockID]uint32
	// counted has each block that counts in a view according to the rank's names or
	// sendings.
	counted map[heldBy]bool
}

type heldBy struct {
	slot  Slot
	block blockID
}

// wait returns when no rank is busy.
func (rs *ranks) wait() {
	for busy := true; busy; {
		busy = false
		for _, rk := range rs.all {
			busy = busy || rk.busy
		}
		if busy {
			rs.calm.Wait()
		}
	}
}

// check checks I1.
func (rs *ranks) check(w *truth) error {
	strangers := 0
	for r, rk := range rs.all {
		if s, ok := rs.slots.Slot(r); !ok || s != rk.slot || rk.rank != r {
			return fmt.Errorf("kvindex: I1: rank %s has slot %d here and slot %d (%t) in the table", r, rk.slot, s, ok)
		}
		for _, v := range rk.views {
			if s, ok := rs.slots.View(rk.slot, v.view); !ok || s != v.slot {
				return fmt.Errorf("kvindex: I1: rank %s counts view %d at slot %d, which is at %d (%t)", r, v.view, v.slot, s, ok)
			}
			w.bySlot[v.slot] = rk
		}
		if rk.sent.marks != nil {
			if s, ok := rs.slots.View(rk.slot, Routed); !ok || s != rk.sent.slot {
				return fmt.Errorf("kvindex: I1: rank %s counts what was routed at slot %d, which is at %d (%t)", r, rk.sent.slot, s, ok)
			}
			w.bySlot[rk.sent.slot] = rk
		}
		if !rk.attached {
			strangers++
		}
	}
	if strangers != rs.strangers {
		return fmt.Errorf("kvindex: I1: %d ranks are not attached, %d are counted", strangers, rs.strangers)
	}
	if l := rs.last; l != nil && (!l.attached || rs.all[l.rank] != l) {
		return fmt.Errorf("kvindex: I1: rank %s of the last event is not attached", l.rank)
	}
	return nil
}

// check checks I13.
func (b *budget) check() error {
	if b.beside < 0 || b.beside > b.max/besidePart {
		return fmt.Errorf("kvindex: I13: %d bytes are kept beside the index, at most %d may be", b.beside, b.max/besidePart)
	}
	if b.inUse() > b.max || b.inUse() > b.taken() {
		return fmt.Errorf("kvindex: I13: %d bytes are in use and %d taken, of a budget of %d", b.inUse(), b.taken(), b.max)
	}
	return nil
}

// check checks I14.
func (e *eviction) check() error {
	rk := e.sweep.rank
	if (rk == nil) != (e.sweep.phase == nil) || rk == nil && len(e.sweep.doomed) > 0 {
		return fmt.Errorf("kvindex: I14: a sweep of no rank, or without a phase, with %d names", len(e.sweep.doomed))
	}
	if rk != nil && e.ranks.all[rk.rank] != rk {
		return fmt.Errorf("kvindex: I14: a sweep of rank %s, which is gone", rk.rank)
	}
	if len(e.sweep.doomed) > e.maxDoomed() || len(e.victims) > mostVictims {
		return fmt.Errorf("kvindex: I14: %d names are gathered and %d ranks chosen, at most %d and %d may be",
			len(e.sweep.doomed), len(e.victims), e.maxDoomed(), mostVictims)
	}
	for i, c := range e.sweep.doomed {
		if e.sweep.doomed[max(i-1, 0)/2].depth < c.depth {
			return fmt.Errorf("kvindex: I14: the heap of gathered names is out of order at %d", i)
		}
	}
	return nil
}
