package kvindex

import "maps"

// see gives the rank the view that a tier's blocks are the first to need. What
// is in it already is what the next narrower one counts, since no block of the
// tier was there before; so it is entered by node.
func (t *Tree) see(rk *treeRank, tier Tier) {
	view, ok := viewOf(tier)
	if !ok || view == OnDevice {
		return
	}
	from := &rk.views[0]
	for i := range rk.views {
		w := &rk.views[i]
		if w.view == view {
			return
		}
		if w.view < view && w.view > from.view {
			from = w
		}
	}
	add := treeView{view: view, slot: t.slots.needView(rk.slot, view), extra: maps.Clone(from.extra)}
	if add.slot >= maxSlots {
		return
	}
	t.names.each(&rk.names, func(_ EngineHash, v *named) {
		n := &t.nodes[t.blocks.node(v.block())]
		if cut := t.cutOf(n, from.slot); cut > 0 && t.cutOf(n, add.slot) == 0 {
			t.setCut(n, add.slot, cut)
		}
	})
	rk.views = append(rk.views, add)
}

// gains returns the slots of the views that a tier's blocks count in. They are
// good until it is called again.
func (t *Tree) gains(rk *treeRank, tier Tier) []Slot {
	out := t.gain[:0]
	for _, w := range rk.views {
		if w.view.counts(tier) {
			out = append(out, w.slot)
		}
	}
	return out
}
