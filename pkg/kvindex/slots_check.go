//go:build invariants

package kvindex

import "fmt"

// check returns an error for the first fault of I1, or nil.
func (t *Slots) check() error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	free := make(map[Slot]bool, len(t.free))
	for _, s := range t.free {
		if free[s] || int(s) >= len(t.refs) || t.refs[s].refs != 0 {
			return fmt.Errorf("kvindex: I1: slot %d on the free list: expected once and unused", s)
		}
		free[s] = true
	}
	views, err := t.viewSlots()
	if err != nil {
		return err
	}
	ofViews := 0
	for i, e := range t.refs {
		if e.refs < 0 {
			ofViews++
		}
		if e.refs < 0 != views[Slot(i)] {
			return fmt.Errorf("kvindex: I1: slot %d has %d references, in a group of views: %t", i, e.refs, views[Slot(i)])
		}
		s, ok := t.byRank[e.rank]
		if e.refs > 0 && (!ok || s != Slot(i)) {
			return fmt.Errorf("kvindex: I1: slot %d is rank %s's, which has slot %d (%t)", i, e.rank, s, ok)
		}
		if e.refs == 0 && !free[Slot(i)] {
			return fmt.Errorf("kvindex: I1: slot %d is unused and not on the free list", i)
		}
	}
	if len(t.byRank)+len(t.free)+ofViews != len(t.refs) {
		return fmt.Errorf("kvindex: I1: %d ranks, %d free slots and %d of views of %d", len(t.byRank), len(t.free), ofViews, len(t.refs))
	}
	return nil
}

// viewSlots are the slots of the groups of views. Groups are aligned, and share none.
func (t *Slots) viewSlots() (map[Slot]bool, error) {
	views := make(map[Slot]bool)
	for _, groups := range t.views {
		for _, first := range groups {
			if first == 0 {
				continue
			}
			for s := first; s < first+groupSlots; s++ {
				if views[s] || first%groupSlots != 0 {
					return nil, fmt.Errorf("kvindex: I1: slot %d is in two groups of views, or at %d in one", s, first%groupSlots)
				}
				views[s] = true
			}
		}
	}
	return views, nil
}
