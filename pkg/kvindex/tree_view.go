package kvindex

import (
	"maps"
	"slices"
)

// seeSlice is how many of a rank's segments are entered into a new view before other
// writers get the lock.
const seeSlice = 32

// lacks reports whether a view has to be added or filled before a block on the tier is
// stored.
func (rk *treeRank) lacks(tier Tier) bool {
	if rk.views[len(rk.views)-1].making {
		return true
	}
	view := viewOf(tier)
	return !slices.ContainsFunc(rk.views, func(w treeView) bool { return w.view == view })
}

// see adds the view that blocks on the event's tier need, and fills it in slices. It
// returns the rank and the parent as they are afterwards. On an error the view stays
// partly filled, and the rank's next event continues: until the view is filled, nothing
// is stored for the rank.
func (t *Tree) see(rk *treeRank, parent blockID, e Stored) (*treeRank, blockID, error) {
	r, one := rk.rank, e
	one.Blocks = e.Blocks[:1]
	for i := 1; rk.lacks(e.Tier); i++ {
		w := &rk.views[len(rk.views)-1]
		if !w.making {
			if w = t.addView(rk, e.Tier); w == nil {
				break
			}
		}
		full, err := w.making && t.enterSome(rk, w), error(nil)
		switch {
		case full:
			rk, parent, err = t.relieve(rk, parent, one)
		case i%seeSlice == 0:
			rk, parent, err = t.again(r, e)
		}
		if err != nil {
			return rk, 0, err
		}
	}
	return rk, parent, nil
}

// addView adds a view with nothing entered so far. It returns nil if there is no slot
// for the view.
func (t *Tree) addView(rk *treeRank, tier Tier) *treeView {
	view := viewOf(tier)
	slot := t.slots.needView(rk.slot, view)
	if slot >= maxSlots {
		return nil
	}
	t.credit = 0 // with another slot, a store into a crowd may take more
	w := treeView{view: view, slot: slot, making: view.widens()}
	if w.making {
		w.extra = maps.Clone(rk.narrower(view).extra)
	}
	rk.views = append(rk.views, w)
	return &rk.views[len(rk.views)-1]
}

// narrower returns the widest view of the rank that is narrower than view.
func (rk *treeRank) narrower(view View) *treeView {
	best := &rk.views[0]
	for i := range rk.views {
		if w := &rk.views[i]; w.view < view && w.view > best.view {
			best = w
		}
	}
	return best
}

// enterSome enters the blocks of one segment's names into a view that is being filled.
// It reports whether there is no room for more. Since the rank has no block on the new
// tier yet, the view holds what the next narrower view holds; so whole nodes are
// entered at once.
func (t *Tree) enterSome(rk *treeRank, w *treeView) (full bool) {
	if len(rk.names.dir) == 0 {
		w.making = false
		return false
	}
	from := rk.narrower(w.view)
	id, next := t.names.segmentAt(&rk.names, w.next)
	for i, seg := 0, t.names.segment(id); i < len(seg); i++ {
		for _, v := range seg[i].val {
			if v == 0 {
				continue
			}
			n := &t.nodes[t.blocks.node(v.block())]
			if cut := t.cutOf(n, from.slot); cut > 0 && t.cutOf(n, w.slot) == 0 {
				if t.short(1) {
					return true
				}
				t.setCut(n, w.slot, cut)
			}
		}
	}
	w.next, w.making = next, next != 0
	return false
}

// gains returns the slots of the rank's views in which blocks on the tier count. They
// are valid until the next call.
func (t *Tree) gains(rk *treeRank, tier Tier) []Slot {
	out := t.gain[:0]
	for _, w := range rk.views {
		if w.view.counts(tier) {
			out = append(out, w.slot)
		}
	}
	return out
}
