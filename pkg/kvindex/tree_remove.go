package kvindex

import "github.com/seed-60ae5743/baton/pkg/worker"

// Remove implements [Index].
func (t *Tree) Remove(r worker.Rank, e Removed) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	rk := t.rank(r)
	if rk == nil {
		return ErrUnknownRank
	}
	for hashes := e.Blocks; len(hashes) > 0; {
		some := hashes[:min(ahead, len(hashes))]
		hashes = hashes[len(some):]
		t.makeRoom(len(some)) // a removal in the middle takes a node
		t.takeSome(rk, some, e.Tier)
	}
	return nil
}

// takeSome removes names of the rank from a tier: first it finds them all, then
// their blocks, so that the misses of each step overlap.
func (t *Tree) takeSome(rk *treeRank, hashes []EngineHash, tier Tier) {
	var at [ahead]spot
	if rk.names.n > 0 {
		for _, h := range hashes {
			t.touched += t.names.touch(&rk.names, h)
		}
	}
	for i, h := range hashes {
		if at[i] = t.names.find(&rk.names, h); at[i].b != nil {
			t.touched += t.nodes[t.blocks.node(at[i].val().block())].room
		}
	}
	for i, h := range hashes {
		p := at[i]
		if p.b != nil && !p.has(h) { // erasing another has moved it, or it is here twice
			p = t.names.find(&rk.names, h)
		}
		if p.b == nil || p.val().tiers()&(1<<tier) == 0 {
			rk.stats.UnknownRemoves++
		} else if !t.takeLast(rk, h, p, tier) {
			t.take(rk, h, p, tier)
		}
	}
}

// takeLast does what most removals ask for, the last block of a run that this
// rank alone holds, and reports false, with nothing done, if it is another.
func (t *Tree) takeLast(rk *treeRank, h EngineHash, at spot, tier Tier) bool {
	v := at.val()
	b := v.block()
	n := &t.nodes[t.blocks.node(b)]
	s := n.load()
	pos := uint32(b - n.start())
	if v.tiers() != 1<<Device || tier != Device || len(rk.views) > 1 || len(rk.views[0].extra) > 0 || pos == 0 ||
		s.length() != pos+1 || s.cut() != pos+1 || s.slot() != rk.slot || n.kids.Load() != 0 ||
		t.blocks.refs(b) != 1 || t.blocks.refs(b-1) == 0 {
		return false
	}
	set(&n.state, uint64((s+2*versionOne).withLength(pos).withHolder(rk.slot, pos)))
	t.blocks.unref(b, 1)
	t.names.erase(&rk.names, h, at)
	rk.forget(h)
	rk.stats.Removed++
	rk.stats.TierBlocks[Device]--
	rk.stats.Blocks--
	return true
}

// forget drops a name from the cache of the last one.
func (rk *treeRank) forget(h EngineHash) {
	if rk.lastName == h {
		rk.lastBlock = 0
	}
}

// take removes a name, from where it is and from a tier that it has.
func (t *Tree) take(rk *treeRank, h EngineHash, at spot, tier Tier) {
	v := at.val()
	b := v.block()
	rk.stats.Removed++
	rk.stats.TierBlocks[tier]--
	*v &^= 1 << tier
	for i := range rk.views {
		if w := &rk.views[i]; w.view.counts(tier) && v.tiers()&tiersOf[w.view] == 0 {
			t.letGo(w, b)
			if w.view == OnDevice && t.cutOf(&t.nodes[t.blocks.node(b)], w.slot) <= t.pos(b) {
				t.disprove(rk, b)
			}
		}
	}
	if v.tiers() != 0 {
		return
	}
	t.names.erase(&rk.names, h, at)
	rk.stats.Blocks--
	rk.forget(h)
	t.blocks.unref(b, 1)
	id := t.blocks.node(b)
	n := &t.nodes[id]
	if t.blocks.refs(b) == 0 && b+1 == n.start()+blockID(n.load().length()) {
		t.trim(id)
	}
}

// letGo undoes one hold.
func (t *Tree) letGo(w *treeView, b blockID) {
	if x := w.extra[b]; x > 1 {
		w.extra[b] = x - 1
		return
	} else if x == 1 {
		delete(w.extra, b)
		return
	}
	id := t.blocks.node(b)
	n := &t.nodes[id]
	pos, cut := uint32(b-n.start()), t.cutOf(n, w.slot)
	if pos+1 < cut { // held on both sides of it: what follows becomes a node
		n = &t.nodes[t.split(id, pos+1)]
	}
	t.setCut(n, w.slot, pos)
}

// clearRank drops everything the rank has. Its blocks are put in order first:
// then they are visited a node at a time, in the order they lie in memory.
func (t *Tree) clearRank(rk *treeRank) {
	t.work[0] = t.names.take(&rk.names, t.work[0][:0])
	for i := range rk.views {
		clear(rk.views[i].extra)
	}
	t.forgetRouted(rk)
	rk.lastBlock = 0
	rk.stats.Blocks = 0
	rk.stats.TierBlocks = [numTiers]int{}
	t.release(rk, t.sortBlocks())
}

// release drops a rank from the nodes of the blocks, which are in order, and
// one name from each of them.
func (t *Tree) release(rk *treeRank, blocks []blockID) {
	for i := 0; i < len(blocks); {
		id := t.blocks.node(blocks[i])
		n := &t.nodes[id]
		end := n.start() + blockID(n.load().length())
		for _, w := range rk.views {
			if t.cutOf(n, w.slot) > 0 {
				t.setCut(n, w.slot, 0)
			}
		}
		var b blockID
		for ; i < len(blocks) && blocks[i] < end; i++ {
			b = blocks[i]
			t.blocks.unref(b, 1)
		}
		if b+1 == end {
			t.trim(id)
		}
	}
}

// sortBlocks puts t.work[0] in order, by counting digits of twelve bits, and
// returns it.
func (t *Tree) sortBlocks() []blockID {
	const digit = 12
	from, to := t.work[0], t.work[1]
	if cap(to) < len(from) {
		to = make([]blockID, len(from), cap(from))
	}
	to = to[:len(from)]
	for shift := 0; t.blocks.next>>shift != 0; shift += digit {
		var at [1 << digit]uint32
		for _, b := range from {
			at[b>>shift%(1<<digit)]++
		}
		sum := uint32(0)
		for i, n := range at {
			at[i], sum = sum, sum+n
		}
		for _, b := range from {
			d := b >> shift % (1 << digit)
			to[at[d]] = b
			at[d]++
		}
		from, to = to, from
	}
	t.work[0], t.work[1] = from, to
	return from
}
