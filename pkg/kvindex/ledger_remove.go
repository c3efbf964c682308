package kvindex

// takeSome removes names of the rank from a tier. It finds all names first and then
// their blocks, so that the cache misses of each step overlap.
func (l *ledger) takeSome(rk *treeRank, hashes []EngineHash, tier Tier) {
	tr := l.trie
	var at [ahead]spot
	if rk.names.n > 0 {
		for _, h := range hashes {
			l.touched += l.names.touch(&rk.names, h)
		}
	}
	for i, h := range hashes {
		at[i] = l.names.find(&rk.names, h)
		if at[i].b != nil {
			l.touched += tr.nodes[tr.blocks.node(at[i].val().block())].room
		}
	}
	for i, h := range hashes {
		p := at[i]
		if p.b != nil && !p.has(h) { // an erase has moved the name, or the event has it twice
			p = l.names.find(&rk.names, h)
		}
		if p.b == nil || p.val().tiers()&(1<<tier) == 0 {
			rk.stats.UnknownRemoves++
			continue
		}
		if tier == Device {
			rk.gone.note(LocalHash(tr.blocks.local[p.val().block()].Load()), l.removed())
		}
		if !l.takeLast(rk, h, p, tier) {
			l.take(rk, h, p, tier)
		}
	}
}

// takeLast removes the name if the case is the most frequent one: the last block of a
// node without children that only this rank holds, on Device alone. Otherwise it
// changes nothing and returns false.
func (l *ledger) takeLast(rk *treeRank, h EngineHash, at spot, tier Tier) bool {
	v := at.val()
	if v.tiers() != 1<<Device || tier != Device || len(rk.views) > 1 || len(rk.views[0].extra) > 0 || !l.trie.pop(v.block(), rk.slot) {
		return false
	}
	l.names.erase(&rk.names, h, at)
	rk.forget(h)
	rk.stats.Removed++
	rk.stats.TierBlocks[Device]--
	rk.stats.Blocks--
	return true
}

// take removes the name h from a tier that it has. The spot is where the table has the
// name.
func (l *ledger) take(rk *treeRank, h EngineHash, at spot, tier Tier) {
	tr := l.trie
	v := at.val()
	b := v.block()
	rk.stats.Removed++
	rk.stats.TierBlocks[tier]--
	*v &^= 1 << tier
	for i := range rk.views {
		if w := &rk.views[i]; w.view.counts(tier) && v.tiers()&tiersOf[w.view] == 0 {
			l.letGo(w, b)
			if w.view == OnDevice && tr.holders.cut(&tr.nodes[tr.blocks.node(b)], w.slot) <= tr.pos(b) {
				l.prompts.disprove(rk, b)
			}
		}
	}
	if v.tiers() != 0 {
		return
	}
	l.names.erase(&rk.names, h, at)
	rk.stats.Blocks--
	rk.forget(h)
	tr.blocks.unref(b, 1)
	id := tr.blocks.node(b)
	n := &tr.nodes[id]
	if tr.blocks.refs(b) == 0 && b+1 == n.start()+blockID(n.load().length()) {
		tr.trim(id)
	}
}

// letGo counts one name of block b less in the view; it undoes hold.
func (l *ledger) letGo(w *treeView, b blockID) {
	tr := l.trie
	if x := w.extra[b]; x > 1 {
		w.extra[b] = x - 1
		return
	} else if x == 1 {
		delete(w.extra, b)
		return
	}
	id := tr.blocks.node(b)
	n := &tr.nodes[id]
	pos, cut := uint32(b-n.start()), tr.holders.cut(n, w.slot)
	if pos >= cut { // the view is being filled and has not come to this node
		return
	}
	if pos+1 < cut { // the blocks after b are held too: let them begin a node
		n = &tr.nodes[tr.split(id, pos+1)]
	}
	tr.holders.set(n, w.slot, pos)
}

// release removes the rank from the nodes of the sorted blocks, and one name from each
// block.
func (l *ledger) release(rk *treeRank, blocks []blockID) {
	tr := l.trie
	seen := 0
	for i := 0; i < len(blocks); {
		if seen <= i { // read ahead several blocks, so that their cache misses overlap
			some := blocks[i:min(i+ahead, len(blocks))]
			seen = i + len(some)
			for _, b := range some {
				l.touched += uint32(tr.blocks.meta[b])
			}
			for _, b := range some {
				l.touched += tr.nodes[tr.blocks.node(b)].room
			}
		}
		id := tr.blocks.node(blocks[i])
		n := &tr.nodes[id]
		end := n.start() + blockID(n.load().length())
		for _, w := range rk.views {
			if tr.holders.cut(n, w.slot) > 0 {
				tr.holders.set(n, w.slot, 0)
			}
		}
		for ; i < len(blocks) && blocks[i] < end; i++ {
			tr.blocks.unref(blocks[i], 1)
		}
		if tr.blocks.refs(end-1) == 0 {
			tr.trim(id)
		}
	}
}

// removed counts a removal from Device. The caller holds mu.
func (l *ledger) removed() uint32 {
	if n := uint32(l.removals.Add(1)); n != 0 {
		return n
	}
	return uint32(l.removals.Add(1)) // 0 stands for never
}

// cleared notes that an event has cleared the rank.
func (l *ledger) cleared(rk *treeRank) {
	rk.gone.all = l.removed()
	rk.stats.Clears++
}

// drop removes a name from every tier. It counts as Shed, not as Removed.
func (l *ledger) drop(rk *treeRank, h EngineHash, p spot) {
	removed := rk.stats.Removed
	if !l.takeLast(rk, h, p, Device) {
		tiers := p.val().tiers()
		for tier := range numTiers {
			if tiers>>tier&1 != 0 {
				l.take(rk, h, p, tier)
			}
		}
	}
	rk.stats.Removed = removed
	rk.stats.Shed++
}

// forgetAll begins to clear a rank: what the ledger knows of it apart from its names.
func (l *ledger) forgetAll(rk *treeRank) {
	for i := range rk.views {
		rk.views[i].extra = nil
	}
	rk.lastBlock = 0
	rk.stats.Blocks = 0
	rk.stats.TierBlocks = [numTiers]int{}
}
