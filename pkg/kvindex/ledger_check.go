//go:build invariants

package kvindex

import (
	"fmt"
	"maps"
	"slices"
)

// check checks what the ledger has of a rank: I2, I3, I4, I6 and I12. It counts it in w.
func (l *ledger) check(rk *treeRank, w *truth) (err error) {
	n := 0
	var tiers [numTiers]int
	extra := make([]map[blockID]uint32, len(rk.views))
	for i := range extra {
		extra[i] = make(map[blockID]uint32)
	}
	l.names.each(&rk.names, func(h EngineHash, v *named) {
		n++
		if fault := l.checkName(rk, h, v); fault != nil {
			err = fault
			return
		}
		for i := range numTiers {
			tiers[i] += int(v.tiers() >> i & 1)
		}
		w.countIn(rk, *v, extra)
	})
	if err != nil {
		return err
	}
	for i, v := range rk.views {
		if !maps.Equal(extra[i], v.extra) {
			return fmt.Errorf("kvindex: I3: view %d: counted further names %v, kept %v", v.view, extra[i], v.extra)
		}
	}
	if v := rk.views[len(rk.views)-1]; v.making {
		maps.DeleteFunc(w.counted, func(h heldBy, _ bool) bool {
			return h.slot == v.slot && l.trie.holders.cut(&l.trie.nodes[l.trie.blocks.node(h.block)], v.slot) == 0
		})
	}
	for tier, kept := range tiers {
		if v := viewOf(Tier(tier)); kept > 0 && !slices.ContainsFunc(rk.views, func(w treeView) bool { return w.view == v }) {
			return fmt.Errorf("kvindex: I4: %d blocks are on tier %s, which no view counts", kept, Tier(tier))
		}
	}
	if n != rk.names.n || n != rk.stats.Blocks || tiers != rk.stats.TierBlocks {
		return fmt.Errorf("kvindex: I6: counted %v of %d blocks, kept %v of %d and %d", tiers, n, rk.stats.TierBlocks, rk.stats.Blocks, rk.names.n)
	}
	return nil
}

// checkName checks one name of a rank by itself.
func (l *ledger) checkName(rk *treeRank, h EngineHash, v *named) error {
	b := v.block()
	if v.tiers() == 0 || b == 0 || b >= l.trie.blocks.next {
		return fmt.Errorf("kvindex: I2: name %x: block %d, tiers %b", h, b, v.tiers())
	}
	if p := l.names.find(&rk.names, h); p.b == nil || p.val() != v {
		return fmt.Errorf("kvindex: I12: name %x is not found where it is", h)
	}
	return nil
}

// countIn counts a name in each view that counts its tiers. A view counts a block once; extra
// has the further names of the same block, by view.
func (w *truth) countIn(rk *treeRank, v named, extra []map[blockID]uint32) {
	b := v.block()
	w.refs[b]++
	for i, x := range rk.views {
		if v.tiers()&tiersOf[x.view] == 0 {
			continue
		}
		if w.counted[heldBy{x.slot, b}] {
			extra[i][b]++
		}
		w.counted[heldBy{x.slot, b}] = true
	}
}

// check checks the segments, I12.
func (s *nameStore) check(rs *ranks) error {
	segs := make(map[uint32]bool)
	for r, rk := range rs.all {
		before := len(segs)
		for _, id := range rk.names.dir {
			segs[id] = true
		}
		if len(segs)-before != rk.names.segs {
			return fmt.Errorf("kvindex: I12: rank %s has %d segments, counts %d", r, len(segs)-before, rk.names.segs)
		}
	}
	if len(segs) != s.segs.used() {
		return fmt.Errorf("kvindex: I12: %d segments are in tables, %d out", len(segs), s.segs.used())
	}
	halves := 0 // of pages: a segment alone gives back two halves, one of a pair three
	for _, id := range s.segs.cold {
		if !s.cold.has(id - 1) {
			return fmt.Errorf("kvindex: I12: segment %d has no memory and no mark of it", id)
		}
		halves += 1 + s.pagesOf(id-1)
	}
	if len(s.segs.cold) != s.cold.n {
		return fmt.Errorf("kvindex: I12: %d segments have no memory, %d are marked", len(s.segs.cold), s.cold.n)
	}
	if halves != 2*s.pages {
		return fmt.Errorf("kvindex: I12: %d half pages of segments were given back, counted %d pages", halves, s.pages)
	}
	return nil
}
