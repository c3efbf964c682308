//go:build invariants

package kvindex

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Check walks the whole index and returns an error that names the first invariant that does not
// hold (I1… of the package comment), or nil. It is slow and blocks writers, and is in builds with
// invariants only.
func (t *Tree) Check() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for busy := true; busy; {
		busy = false
		for _, rk := range t.ranks {
			busy = busy || rk.busy
		}
		if busy {
			t.calm.Wait()
		}
	}
	if err := t.slots.check(); err != nil {
		return err
	}
	c := treeCheck{t: t, bySlot: make(map[Slot]*treeRank), refs: make(map[blockID]uint32), counted: make(map[heldBy]bool)}
	for _, f := range []func() error{c.checkRanks, c.checkNodes, c.checkRuns, c.checkKids, c.checkMemory} {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

type heldBy struct {
	slot  Slot
	block blockID
}

// treeCheck is what Check finds in its walk, to be compared with the counts that the
// Tree keeps.
type treeCheck struct {
	t      *Tree
	bySlot map[Slot]*treeRank
	refs   map[blockID]uint32
	// counted has each block that counts in a view according to the rank's names.
	counted map[heldBy]bool
	live    []nodeID // parents before children
	kids    int      // how many children are in the table
	units   int
}

func (c *treeCheck) checkRanks() error {
	for r, rk := range c.t.ranks {
		if s, ok := c.t.slots.Slot(r); !ok || s != rk.slot || rk.rank != r {
			return fmt.Errorf("kvindex: I1: rank %s has slot %d here and slot %d (%t) in the table", r, rk.slot, s, ok)
		}
		for _, w := range rk.views {
			if s, ok := c.t.slots.View(rk.slot, w.view); !ok || s != w.slot {
				return fmt.Errorf("kvindex: I1: rank %s counts view %d at slot %d, which is at %d (%t)", r, w.view, w.slot, s, ok)
			}
			c.bySlot[w.slot] = rk
		}
		if err := errors.Join(c.checkNames(rk), c.checkRouted(rk)); err != nil {
			return fmt.Errorf("%w (rank %s)", err, r)
		}
	}
	return c.checkSendings()
}

func (c *treeCheck) checkNames(rk *treeRank) (err error) {
	t, n := c.t, 0
	var tiers [numTiers]int
	extra := make([]map[blockID]uint32, len(rk.views))
	for i := range extra {
		extra[i] = make(map[blockID]uint32)
	}
	t.names.each(&rk.names, func(h EngineHash, v *named) {
		n++
		if fault := c.checkName(rk, h, v); fault != nil {
			err = fault
			return
		}
		for i := range numTiers {
			tiers[i] += int(v.tiers() >> i & 1)
		}
		c.countIn(rk, *v, extra)
	})
	if err != nil {
		return err
	}
	for i, w := range rk.views {
		if !maps.Equal(extra[i], w.extra) {
			return fmt.Errorf("kvindex: I3: view %d: counted further names %v, kept %v", w.view, extra[i], w.extra)
		}
	}
	if w := rk.views[len(rk.views)-1]; w.making {
		maps.DeleteFunc(c.counted, func(h heldBy, _ bool) bool {
			return h.slot == w.slot && t.cutOf(&t.nodes[t.blocks.node(h.block)], w.slot) == 0
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
func (c *treeCheck) checkName(rk *treeRank, h EngineHash, v *named) error {
	b := v.block()
	if v.tiers() == 0 || b == 0 || b >= c.t.blocks.next {
		return fmt.Errorf("kvindex: I2: name %x: block %d, tiers %b", h, b, v.tiers())
	}
	if p := c.t.names.find(&rk.names, h); p.b == nil || p.val() != v {
		return fmt.Errorf("kvindex: I12: name %x is not found where it is", h)
	}
	return nil
}

// countIn counts a name in each view that counts its tiers. A view counts a block once; extra
// has the further names of the same block, by view.
func (c *treeCheck) countIn(rk *treeRank, v named, extra []map[blockID]uint32) {
	b := v.block()
	c.refs[b]++
	for i, w := range rk.views {
		if v.tiers()&tiersOf[w.view] == 0 {
			continue
		}
		if c.counted[heldBy{w.slot, b}] {
			extra[i][b]++
		}
		c.counted[heldBy{w.slot, b}] = true
	}
}

// checkNodes walks the nodes by id. Nodes that are not in use have an odd version.
func (c *treeCheck) checkNodes() error {
	t := c.t
	kids := make(map[nodeID]uint32)
	held := 0
	for id := nodeID(1); id <= nodeID(t.nodeIDs.next); id++ {
		n := &t.nodes[id]
		if n.load().changing() {
			continue
		}
		c.live = append(c.live, id)
		kids[nodeID(n.parent())]++
		got, err := c.checkHolders(id, n)
		if err != nil {
			return err
		}
		held += got
	}
	if len(c.live) != t.nodeIDs.used() {
		return fmt.Errorf("kvindex: I8: %d nodes are whole, %d in use", len(c.live), t.nodeIDs.used())
	}
	if held != len(c.counted) {
		return fmt.Errorf("kvindex: I4: nodes hold %d blocks of ranks, ranks name %d", held, len(c.counted))
	}
	for _, id := range append(c.live, 0) {
		n := &t.nodes[id]
		if n.kidCount() != kids[id] {
			return fmt.Errorf("kvindex: I8: node %d counts %d children, has %d", id, n.kidCount(), kids[id])
		}
		if uint32(n.kids.Load()) == many {
			c.kids += int(kids[id])
		}
		if err := c.checkShape(id, n); err != nil {
			return err
		}
	}
	return nil
}

func (c *treeCheck) checkShape(id nodeID, n *node) error {
	t := c.t
	if id == 0 {
		return nil
	}
	start, length := n.start(), n.load().length()
	if length == 0 || length > n.room || n.room > maxEdge || int(start)+int(n.room) > int(t.blocks.next) {
		return fmt.Errorf("kvindex: I8: node %d: blocks %d+%d, room %d of %d", id, start, length, n.room, t.blocks.next)
	}
	if up := &t.nodes[n.parent()]; n.depth != up.depth+up.load().length() {
		return fmt.Errorf("kvindex: I8: node %d says %d blocks are before it, its parent %d", id, n.depth, up.depth+up.load().length())
	}
	for b := start; b < start+blockID(length); b++ {
		if t.blocks.node(b) != id {
			return fmt.Errorf("kvindex: I8: block %d is of node %d, says %d", b, id, t.blocks.node(b))
		}
		if t.blocks.refs(b) != c.refs[b] {
			return fmt.Errorf("kvindex: I9: block %d: counted %d names, kept %d", b, c.refs[b], t.blocks.refs(b))
		}
		delete(c.refs, b)
	}
	if n.kidCount() == 0 && t.blocks.refs(start+blockID(length)-1) == 0 {
		return fmt.Errorf("kvindex: I8: node %d has a last block without a name and no children", id)
	}
	if got, ok := t.kid(nodeID(n.parent()), t.blocks.local[start].Load()); got != id || !ok {
		return fmt.Errorf("kvindex: I8: node %d is not found under its parent %d: %d", id, n.parent(), got)
	}
	return nil
}

// checkHolders compares a node's cuts with the names of the ranks, and returns the
// cuts' sum.
func (c *treeCheck) checkHolders(id nodeID, n *node) (int, error) {
	s := n.load()
	seen, sum := make(map[Slot]bool), 0
	for _, e := range c.holders(n) {
		if seen[e.slot()] || c.bySlot[e.slot()] == nil || e.cut() > s.length() {
			return 0, fmt.Errorf("kvindex: I5: node %d of %d blocks: slot %d holds %d: expected a rank, once", id, s.length(), e.slot(), e.cut())
		}
		seen[e.slot()] = true
		sum += int(e.cut())
		for b := n.start(); b < n.start()+blockID(e.cut()); b++ {
			if !c.counted[heldBy{e.slot(), b}] {
				return 0, fmt.Errorf("kvindex: I4: node %d: slot %d holds block %d, which its rank does not name", id, e.slot(), b)
			}
		}
	}
	return sum, nil
}

// holders are the cuts of a node, wherever they are kept. It counts the units of its crowd.
func (c *treeCheck) holders(n *node) []holder {
	var all []holder
	if s := n.load(); s.cut() > 0 {
		all = append(all, holderOf(s.slot(), s.cut()))
	}
	for i := range n.more {
		if e := holder(n.more[i].Load()); e != 0 {
			all = append(all, e)
		}
	}
	list := n.crowd.Load()
	if list == 0 {
		return all
	}
	c.units += int(c.t.units[list][0].Load())
	for g := uint32(0); c.t.groupAt(list, g) != nil; g++ {
		if c.t.groupAt(list, g).Load() == 0 {
			continue
		}
		c.units++
		for i := range Slot(groupSlots) {
			slot := Slot(g*groupSlots) + i
			if cut := c.t.crowdCut(n, slot); cut > 0 {
				all = append(all, holderOf(slot, cut))
			}
		}
	}
	return all
}

// checkRuns walks the memory of blocks from end to end.
func (c *treeCheck) checkRuns() error {
	r := &c.t.blocks
	if len(c.refs) > 0 {
		return fmt.Errorf("kvindex: I9: %d named blocks are of no node", len(c.refs))
	}
	owner := make(map[blockID]nodeID)
	for _, id := range c.live {
		owner[c.t.nodes[id].start()] = id
	}
	used, free, cold, wasFree := 0, 0, 0, false
	for b := blockID(1); b < r.next; {
		if id, ok := owner[b]; ok {
			used += int(c.t.nodes[id].room)
			b += blockID(c.t.nodes[id].room)
			wasFree = false
			continue
		}
		size := blockID(r.meta[b] >> 32)
		if uint32(r.meta[b]) != freeMark || size == 0 || r.meta[b+size-1] != r.meta[b] || wasFree {
			return fmt.Errorf("kvindex: I10: blocks from %d are neither a node's nor a free run that stands alone", b)
		}
		for p := b/pageBlocks + 1; (p+1)*pageBlocks < b+size; p++ {
			if r.cold.has(uint32(p)) {
				cold++
			}
		}
		wasFree = true
		free++
		b += size
	}
	if cold != r.cold.n {
		return fmt.Errorf("kvindex: I10: %d pages inside free runs were given back, counted %d", cold, r.cold.n)
	}
	listed := 0
	for l, b := range r.heads {
		if (b != 0) != (r.some[l/64]>>(l%64)&1 != 0) {
			return fmt.Errorf("kvindex: I10: list of runs of %d: its mark is wrong", l)
		}
		for prev := blockID(0); b != 0; listed++ {
			links := r.local[b].Load()
			if blockID(links>>32) != prev || listOf(uint32(r.meta[b]>>32)) != uint32(l) || uint32(r.meta[b]) != freeMark {
				return fmt.Errorf("kvindex: I10: free run %d is linked wrongly", b)
			}
			prev, b = b, blockID(uint32(links))
		}
	}
	if used != r.used || listed != free {
		return fmt.Errorf("kvindex: I10: counted %d blocks in use and %d free runs, kept %d and %d", used, free, r.used, listed)
	}
	return nil
}

func (c *treeCheck) checkKids() error {
	total := 0
	for i := range c.t.kidShards {
		sh := &c.t.kidShards[i]
		live, gone := 0, 0
		if tab := sh.tab.Load(); tab != nil {
			for j := range *tab {
				switch w := (*tab)[j].Load(); {
				case w == 0:
				case uint32(w) == 0:
					gone++
				default:
					live++
				}
			}
		}
		if live != sh.live || gone != sh.gone {
			return fmt.Errorf("kvindex: I11: shard %d counts %d children and %d marks, has %d and %d", i, sh.live, sh.gone, live, gone)
		}
		total += live
	}
	if total != c.kids {
		return fmt.Errorf("kvindex: I11: the table has %d children, nodes have %d in it", total, c.kids)
	}
	return nil
}

func (c *treeCheck) checkMemory() error {
	segs := make(map[uint32]bool)
	for r, rk := range c.t.ranks {
		before := len(segs)
		for _, id := range rk.names.dir {
			segs[id] = true
		}
		if len(segs)-before != rk.names.segs {
			return fmt.Errorf("kvindex: I12: rank %s has %d segments, counts %d", r, len(segs)-before, rk.names.segs)
		}
	}
	if len(segs) != c.t.names.segs.used() {
		return fmt.Errorf("kvindex: I12: %d segments are in tables, %d out", len(segs), c.t.names.segs.used())
	}
	halves := 0 // of pages: a segment alone gives back two halves, one of a pair three
	for _, id := range c.t.names.segs.cold {
		if !c.t.names.cold.has(id - 1) {
			return fmt.Errorf("kvindex: I12: segment %d has no memory and no mark of it", id)
		}
		halves += 1 + c.t.names.pagesOf(id-1)
	}
	if len(c.t.names.segs.cold) != c.t.names.cold.n {
		return fmt.Errorf("kvindex: I12: %d segments have no memory, %d are marked", len(c.t.names.segs.cold), c.t.names.cold.n)
	}
	if halves != 2*c.t.names.pages {
		return fmt.Errorf("kvindex: I12: %d half pages of segments were given back, counted %d pages", halves, c.t.names.pages)
	}
	if c.units != c.t.unitsUsed {
		return fmt.Errorf("kvindex: I5: %d units are in crowds, %d out", c.units, c.t.unitsUsed)
	}
	return nil
}
