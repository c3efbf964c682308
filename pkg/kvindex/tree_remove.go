package kvindex

import "github.com/seed-60ae5743/baton/pkg/worker"

// removeSlice is how many blocks of an event are removed before other writers get the
// lock.
const removeSlice = 1024

// Remove implements [Index].
func (t *Tree) Remove(r worker.Rank, e Removed) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.idle(r) == nil {
		return ErrUnknownRank
	}
	for done := 0; done < len(e.Blocks); done += ahead {
		if done%removeSlice == removeSlice-ahead {
			t.giveUp()
		}
		if t.pressed(ahead) { // removing a block in the middle of a run takes a new node
			t.shedShare(ahead)
		}
		rk := t.idle(r)
		if rk == nil {
			return ErrUnknownRank
		}
		t.takeSome(rk, e.Blocks[done:min(done+ahead, len(e.Blocks))], e.Tier)
	}
	return nil
}

// takeSome removes names of the rank from a tier. It finds all names first and then
// their blocks, so that the cache misses of each step overlap.
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
		if p.b != nil && !p.has(h) { // an erase has moved the name, or the event has it twice
			p = t.names.find(&rk.names, h)
		}
		if p.b == nil || p.val().tiers()&(1<<tier) == 0 {
			rk.stats.UnknownRemoves++
			continue
		}
		if tier == Device {
			rk.gone.note(LocalHash(t.blocks.local[p.val().block()].Load()), t.removed())
		}
		if !t.takeLast(rk, h, p, tier) {
			t.take(rk, h, p, tier)
		}
	}
}

// takeLast removes the name if the case is the most frequent one: the last block of a
// node without children that only this rank holds, on Device alone. Otherwise it
// changes nothing and returns false.
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

// forget removes a name from the cache of the last stored block.
func (rk *treeRank) forget(h EngineHash) {
	if rk.lastName == h {
		rk.lastBlock = 0
	}
}

// take removes the name h from a tier that it has. The spot is where the table has the
// name.
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

// letGo counts one name of block b less in the view; it undoes hold.
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
	if pos >= cut { // the view is being filled and has not come to this node
		return
	}
	if pos+1 < cut { // the blocks after b are held too: let them begin a node
		n = &t.nodes[t.split(id, pos+1)]
	}
	t.setCut(n, w.slot, pos)
}

const (
	// clearSlice is how many names or blocks are cleared before other writers get the
	// lock.
	clearSlice = 1 << 15
	// clearPart is about how many names of a rank are sorted together.
	clearPart = 32 * clearSlice
)

// clearRank drops everything that the rank has, in slices. It sorts the blocks first,
// so that it visits each node once and in the order of memory. A query in between sees
// what it would see if the blocks were removed one by one.
func (t *Tree) clearRank(rk *treeRank) {
	if t.sweep.rank == rk {
		t.sweep.stop()
	}
	for i := range rk.views {
		rk.views[i].extra = nil
	}
	rk.lastBlock = 0
	rk.stats.Blocks = 0
	rk.stats.TierBlocks = [numTiers]int{}
	rk.busy = true
	for t.forgetSome(rk) {
		t.giveUp()
	}
	work := t.work // other ranks' clears may need a sorter while mu is given up
	t.work = sorter{}
	for from, more := uint64(0), true; more; {
		work[0] = work[0][:0]
		for more && len(work[0]) < clearPart {
			from, work[0] = t.names.take(&rk.names, from, clearSlice, work[0])
			if more = from != 0; more {
				t.giveUp()
			}
		}
		all := work[0]
		if end := t.blocks.next; len(all) <= clearSlice {
			all = work.sort(end)
		} else {
			t.mu.Unlock() // the rank is busy, so its blocks stay
			all = work.sort(end)
			t.mu.Lock()
		}
		for len(all) > clearSlice {
			t.release(rk, all[:clearSlice])
			all = all[clearSlice:]
			t.giveUp()
		}
		t.release(rk, all)
	}
	t.work = work
	t.finish(rk)
}

// release removes the rank from the nodes of the sorted blocks, and one name from each
// block.
func (t *Tree) release(rk *treeRank, blocks []blockID) {
	seen := 0
	for i := 0; i < len(blocks); {
		if seen <= i { // read ahead several blocks, so that their cache misses overlap
			some := blocks[i:min(i+ahead, len(blocks))]
			seen = i + len(some)
			for _, b := range some {
				t.touched += uint32(t.blocks.meta[b])
			}
			for _, b := range some {
				t.touched += t.nodes[t.blocks.node(b)].room
			}
		}
		id := t.blocks.node(blocks[i])
		n := &t.nodes[id]
		end := n.start() + blockID(n.load().length())
		for _, w := range rk.views {
			if t.cutOf(n, w.slot) > 0 {
				t.setCut(n, w.slot, 0)
			}
		}
		for ; i < len(blocks) && blocks[i] < end; i++ {
			t.blocks.unref(blocks[i], 1)
		}
		if t.blocks.refs(end-1) == 0 {
			t.trim(id)
		}
	}
}

// sorter sorts blocks between two slices.
type sorter [2][]blockID

// sort sorts the blocks in s[0] by counting digits of twelve bits, and returns them.
// Their ids must be lower than the argument.
func (s *sorter) sort(end blockID) []blockID {
	const digit = 12
	from, to := s[0], s[1]
	if cap(to) < len(from) {
		to = make([]blockID, len(from), cap(from))
	}
	to = to[:len(from)]
	for shift := 0; end>>shift != 0; shift += digit {
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
	s[0], s[1] = from, to
	return from
}
