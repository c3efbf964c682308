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
	const ahead = 16
	for hashes := e.Blocks; len(hashes) > 0; {
		some := hashes[:min(ahead, len(hashes))]
		hashes = hashes[len(some):]
		// Their cache misses side by side.
		var seen uint32
		for _, h := range some {
			seen += t.names.touch(&rk.names, h)
		}
		t.clock += seen & 0 // keeps the reads
		for _, h := range some {
			t.take(rk, h, e.Tier)
		}
	}
	return nil
}

// take removes a name of the rank from a tier.
func (t *Tree) take(rk *treeRank, h EngineHash, tier Tier) {
	v := t.names.find(&rk.names, h)
	if v == nil || v.tiers()&(1<<tier) == 0 {
		rk.stats.UnknownRemoves++
		return
	}
	b := v.block()
	rk.stats.Removed++
	rk.stats.TierBlocks[tier]--
	*v &^= 1 << tier
	if tier == Device {
		t.letGo(rk, b)
	}
	if v.tiers() != 0 {
		return
	}
	t.names.erase(&rk.names, h)
	rk.stats.Blocks--
	if rk.lastName == h {
		rk.lastBlock = 0
	}
	t.blocks.unref(b, 1)
	id := t.blocks.node(b)
	n := &t.nodes[id]
	if t.blocks.refs(b) == 0 && b+1 == n.start()+blockID(n.load().length()) {
		t.trim(id)
	}
}

// letGo undoes one hold.
func (t *Tree) letGo(rk *treeRank, b blockID) {
	if x := rk.extra[b]; x > 1 {
		rk.extra[b] = x - 1
		return
	} else if x == 1 {
		delete(rk.extra, b)
		return
	}
	id := t.blocks.node(b)
	n := &t.nodes[id]
	pos, cut := uint32(b-n.start()), t.cutOf(n, rk.slot)
	if pos+1 < cut { // held on both sides of it: what follows becomes a node
		n = &t.nodes[t.split(id, pos+1)]
	}
	t.setCut(n, rk.slot, pos)
}

// clearRank drops everything the rank has. Its blocks are put in order first:
// then they are visited a node at a time, in the order they lie in memory.
func (t *Tree) clearRank(rk *treeRank) {
	all := t.work[0][:0]
	t.names.each(&rk.names, func(_ EngineHash, v *named) { all = append(all, v.block()) })
	t.names.drop(&rk.names)
	clear(rk.extra)
	rk.lastBlock = 0
	rk.stats.Blocks = 0
	rk.stats.TierBlocks = [numTiers]int{}
	t.work[0] = all
	t.release(rk.slot, t.sortBlocks())
}

// release drops a slot and one name from each of the blocks, which are in
// order.
func (t *Tree) release(slot Slot, blocks []blockID) {
	for i := 0; i < len(blocks); {
		id := t.blocks.node(blocks[i])
		n := &t.nodes[id]
		end := n.start() + blockID(n.load().length())
		if t.cutOf(n, slot) > 0 {
			t.setCut(n, slot, 0)
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

// sortBlocks puts t.work[0] in order, by counting digits of eleven bits, and
// returns it.
func (t *Tree) sortBlocks() []blockID {
	const digit = 11
	from, to := t.work[0], t.work[1]
	if cap(to) < len(from) {
		to = make([]blockID, len(from), cap(from))
	}
	to = to[:len(from)]
	for shift := 0; t.blocks.next>>shift != 0; shift += digit {
		var at [1 << digit]int
		for _, b := range from {
			at[b>>shift%(1<<digit)]++
		}
		sum := 0
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
