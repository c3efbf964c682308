//go:build invariants

package kvindex

import "fmt"

// check walks the nodes by id: I8, I9, and by the parts I4, I5, I10 and I11. Nodes that are
// not in use have an odd version.
func (tr *trie) check(w *truth) error {
	kids, owner := make(map[nodeID]uint32), make(map[blockID]*node)
	live := []nodeID{0}
	held, units, tabled := 0, 0, 0
	for id := nodeID(1); id <= nodeID(tr.ids.next); id++ {
		n := &tr.nodes[id]
		if n.load().changing() {
			continue
		}
		live, owner[n.start()] = append(live, id), n
		kids[nodeID(n.parent())]++
		blocks, more, err := tr.holders.check(n, w)
		if err != nil {
			return fmt.Errorf("%w (node %d)", err, id)
		}
		held, units = held+blocks, units+more
	}
	if len(live)-1 != tr.ids.used() {
		return fmt.Errorf("kvindex: I8: %d nodes are whole, %d in use", len(live)-1, tr.ids.used())
	}
	if held != len(w.counted) {
		return fmt.Errorf("kvindex: I4: nodes hold %d blocks of ranks, ranks name %d", held, len(w.counted))
	}
	for _, id := range live {
		n := &tr.nodes[id]
		if n.kidCount() != kids[id] {
			return fmt.Errorf("kvindex: I8: node %d counts %d children, has %d", id, n.kidCount(), kids[id])
		}
		if uint32(n.kids.Load()) == many {
			tabled += int(kids[id])
		}
		if err := tr.checkShape(id, n, w); err != nil {
			return err
		}
	}
	if len(w.refs) > 0 {
		return fmt.Errorf("kvindex: I9: %d named blocks are of no node", len(w.refs))
	}
	if units != tr.holders.used {
		return fmt.Errorf("kvindex: I5: %d units are in crowds, %d out", units, tr.holders.used)
	}
	if err := tr.blocks.check(owner); err != nil {
		return err
	}
	return tr.kids.check(tabled)
}

func (tr *trie) checkShape(id nodeID, n *node, w *truth) error {
	if id == 0 {
		return nil
	}
	start, length := n.start(), n.load().length()
	if length == 0 || length > n.room || n.room > maxEdge || int(start)+int(n.room) > int(tr.blocks.next) {
		return fmt.Errorf("kvindex: I8: node %d: blocks %d+%d, room %d of %d", id, start, length, n.room, tr.blocks.next)
	}
	if up := &tr.nodes[n.parent()]; n.depth != up.depth+up.load().length() {
		return fmt.Errorf("kvindex: I8: node %d says %d blocks are before it, its parent %d", id, n.depth, up.depth+up.load().length())
	}
	for b := start; b < start+blockID(length); b++ {
		if tr.blocks.node(b) != id {
			return fmt.Errorf("kvindex: I8: block %d is of node %d, says %d", b, id, tr.blocks.node(b))
		}
		if tr.blocks.refs(b) != w.refs[b] {
			return fmt.Errorf("kvindex: I9: block %d: counted %d names, kept %d", b, w.refs[b], tr.blocks.refs(b))
		}
		delete(w.refs, b)
	}
	if n.kidCount() == 0 && tr.blocks.refs(start+blockID(length)-1) == 0 {
		return fmt.Errorf("kvindex: I8: node %d has a last block without a name and no children", id)
	}
	if got, ok := tr.kids.find(nodeID(n.parent()), tr.blocks.local[start].Load()); got != id || !ok {
		return fmt.Errorf("kvindex: I8: node %d is not found under its parent %d: %d", id, n.parent(), got)
	}
	return nil
}

// check compares a node's cuts with the tables of the ranks: I4 and I5. It returns the sum
// of the cuts, and how many units the node's crowd has.
func (h *holders) check(n *node, w *truth) (sum, units int, err error) {
	length := n.load().length()
	seen := make(map[Slot]bool)
	all, units := h.all(n)
	for _, e := range all {
		if seen[e.slot()] || w.bySlot[e.slot()] == nil || e.cut() > length {
			return 0, 0, fmt.Errorf("kvindex: I5: slot %d holds %d of %d blocks: expected a rank, once", e.slot(), e.cut(), length)
		}
		seen[e.slot()] = true
		sum += int(e.cut())
		for b := n.start(); b < n.start()+blockID(e.cut()); b++ {
			if !w.counted[heldBy{e.slot(), b}] {
				return 0, 0, fmt.Errorf("kvindex: I4: slot %d holds block %d, which its rank does not name", e.slot(), b)
			}
		}
	}
	return sum, units, nil
}

// all returns the cuts of a node, wherever they are kept, and the units of its crowd.
func (h *holders) all(n *node) (all []holder, units int) {
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
		return all, 0
	}
	units = int(h.units[list][0].Load())
	for g := range h.groups(list) {
		units++
		for i := range Slot(groupSlots) {
			slot := Slot(g*groupSlots) + i
			if cut := h.crowdCut(n, slot); cut > 0 {
				all = append(all, holderOf(slot, cut))
			}
		}
	}
	return all, units
}

// check walks the memory of blocks from end to end: I10. owner has the node of each run in
// use, by its first block.
func (r *runs) check(owner map[blockID]*node) error {
	used, free, cold, wasFree := 0, 0, 0, false
	for b := blockID(1); b < r.next; {
		if n := owner[b]; n != nil {
			used += int(n.room)
			b += blockID(n.room)
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

// check compares the table with its counts, and with how many children nodes have in it: I11.
func (k *kids) check(tabled int) error {
	total, bytes := 0, 0
	for i := range k.shards {
		sh := &k.shards[i]
		live, gone := 0, 0
		if tab := sh.tab.Load(); tab != nil {
			bytes += 8 * len(*tab)
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
	if total != tabled {
		return fmt.Errorf("kvindex: I11: the table has %d children, nodes have %d in it", total, tabled)
	}
	if bytes != k.bytes {
		return fmt.Errorf("kvindex: I11: the table has %d bytes, counts %d", bytes, k.bytes)
	}
	return nil
}
