package kvindex

import "github.com/seed-60ae5743/baton/pkg/worker"

// slack returns the room of a new run that begins with n blocks: more than n, since
// most sequences grow block by block.
func slack(n int) uint32 { return uint32(min(n+n/2+8, maxEdge)) }

// Store implements [Index].
func (t *Tree) Store(r worker.Rank, e Stored) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	rk := t.idle(r)
	if rk == nil {
		return ErrUnknownRank
	}
	if len(e.Blocks) == 0 && !e.HasParent {
		return nil
	}
	if rk.slot >= maxSlots {
		return ErrNoRoom
	}
	t.clock++
	parent, err := t.parentOf(rk, e)
	if err != nil {
		return err
	}
	if len(e.Blocks) > 0 && rk.lacks(e.Tier) {
		if _, ok := t.planStore(rk, parent, e); !ok {
			rk.stats.Conflicts++
			return ErrConflict
		}
		if rk, parent, err = t.see(rk, parent, e); err != nil {
			return err
		}
	}
	if t.pressed(len(e.Blocks)) {
		if rk, parent, err = t.relieve(rk, parent, e); err != nil {
			return err
		}
	}
	if len(e.Blocks) == 1 && parent != 0 && t.appendOne(rk, parent, e) {
		return nil
	}
	known, ok := t.planStore(rk, parent, e)
	if !ok {
		rk.stats.Conflicts++
		return ErrConflict
	}
	for i, b := range e.Blocks[:known] {
		t.keep(rk, b.Engine, t.plan[i], e.Tier)
		parent = t.plan[i]
	}
	if known < len(e.Blocks) {
		t.extend(&adding{rk: rk, tier: e.Tier, gain: t.gains(rk, e.Tier)}, parent, e.Blocks[known:])
	}
	return nil
}

// parentOf returns the block after which the event's blocks come, or 0 if it is the
// root.
func (t *Tree) parentOf(rk *treeRank, e Stored) (blockID, error) {
	if !e.HasParent {
		return 0, nil
	}
	if b := rk.resolve(t, e.Parent); b != 0 {
		return b, nil
	}
	rk.stats.UnknownParents++
	return 0, ErrUnknownParent
}

// appendOne stores the event if it is of the most frequent kind: one block on Device,
// after the last block of a node without children, all of which the rank holds.
// Otherwise it changes nothing and returns false.
func (t *Tree) appendOne(rk *treeRank, parent blockID, e Stored) bool {
	id := t.blocks.node(parent)
	n := &t.nodes[id]
	s := n.load()
	length, b := s.length(), parent+1
	if e.Tier != Device || len(rk.views) > 1 || n.kids.Load() != 0 || length >= n.room || b != n.start()+blockID(length) {
		return false
	}
	first := s.slot() == rk.slot && s.cut() == length // else the slot's number is in more or in the crowd: another slot holds the node too, such as the rank's view Routed
	if !first && t.cutOf(n, rk.slot) != length {
		return false
	}
	v, found := t.names.put(&rk.names, e.Blocks[0].Engine)
	if found { // the name is known already, or is the parent's
		return false
	}
	*v = nameOf(b, 1<<Device)
	set(&t.blocks.local[b], uint64(e.Blocks[0].Local))
	t.blocks.meta[b] = 1<<32 | uint64(id)
	n.stamp = t.clock
	if first {
		set(&n.state, uint64(s.withLength(length+1).withHolder(rk.slot, length+1)))
	} else {
		n.state.Store(uint64(s.withLength(length + 1)))
		t.setCut(n, rk.slot, length+1)
	}
	rk.lastName, rk.lastBlock = e.Blocks[0].Engine, b
	rk.stats.Blocks++
	rk.stats.TierBlocks[Device]++
	rk.stats.Stored++
	return true
}

// resolve returns the block with the rank's engine hash h, or 0 if there is none.
func (rk *treeRank) resolve(t *Tree, h EngineHash) blockID {
	if rk.lastBlock != 0 && rk.lastName == h {
		return rk.lastBlock
	}
	if p := t.names.find(&rk.names, h); p.b != nil {
		return p.val().block()
	}
	return 0
}

// planStore collects into t.plan the leading blocks of the event that are in the tree
// already, whoever holds them. It returns false if an engine hash of the event already
// names another block of the rank, or occurs twice in the event.
func (t *Tree) planStore(rk *treeRank, parent blockID, e Stored) (known int, ok bool) {
	t.plan = t.plan[:0]
	at, on := parent, true
	for i, b := range e.Blocks {
		if i%ahead == 0 && len(e.Blocks) > 1 && rk.names.n > 0 {
			for _, x := range e.Blocks[i:min(i+ahead, len(e.Blocks))] {
				t.touched += t.names.touch(&rk.names, x.Engine)
			}
		}
		if on {
			if at = t.follow(at, b.Local); at != 0 {
				t.plan = append(t.plan, at)
			} else {
				on = false
			}
		}
		if p := t.names.find(&rk.names, b.Engine); p.b != nil && (!on || p.val().block() != at) {
			return 0, false
		}
	}
	return len(t.plan), t.distinct(e)
}

// follow returns the block after b that has the hash l, or 0 if there is none. After 0
// comes the first block of a sequence.
func (t *Tree) follow(b blockID, l LocalHash) blockID {
	var id nodeID
	if b != 0 {
		id = t.blocks.node(b)
		n := &t.nodes[id]
		if next := b + 1; next < n.start()+blockID(n.load().length()) {
			if LocalHash(t.blocks.local[next].Load()) == l {
				return next
			}
			return 0
		}
	}
	kid, _ := t.kid(id, uint64(l))
	if kid == 0 {
		return 0
	}
	return t.nodes[kid].start()
}

// distinct reports whether the engine hashes of the event, the parent's included, all
// differ.
func (t *Tree) distinct(e Stored) bool {
	if len(e.Blocks) == 1 {
		return !e.HasParent || e.Parent != e.Blocks[0].Engine
	}
	size := 16
	for size < 2*(len(e.Blocks)+1) {
		size *= 2
	}
	if cap(t.seen) < size {
		t.seen = make([]EngineHash, size)
	}
	t.seen = t.seen[:size]
	clear(t.seen)
	zero := false // 0 marks a free place in seen, so a hash of 0 is noted here
	add := func(h EngineHash) bool {
		if h == 0 {
			was := zero
			zero = true
			return !was
		}
		for i := t.names.mix(h); ; i++ {
			switch at := &t.seen[i%uint64(size)]; *at {
			case 0:
				*at = h
				return true
			case h:
				return false
			}
		}
	}
	if e.HasParent {
		add(e.Parent)
	}
	for _, b := range e.Blocks {
		if !add(b.Engine) {
			return false
		}
	}
	return true
}

// keep notes that the rank has the block b of the tree, under the name h, on the tier.
func (t *Tree) keep(rk *treeRank, h EngineHash, b blockID, tier Tier) {
	rk.lastName, rk.lastBlock = h, b
	t.nodes[t.blocks.node(b)].stamp = t.clock
	v, found := t.names.put(&rk.names, h)
	had := uint8(0)
	if found {
		if had = v.tiers(); had&(1<<tier) != 0 {
			rk.stats.Duplicates++
			return
		}
		*v |= 1 << tier
	} else {
		*v = nameOf(b, 1<<tier)
		t.blocks.ref(b)
		rk.stats.Blocks++
	}
	rk.stats.TierBlocks[tier]++
	rk.stats.Stored++
	for i := range rk.views {
		if w := &rk.views[i]; w.view.counts(tier) && had&tiersOf[w.view] == 0 {
			t.hold(w, b)
		}
	}
}

// hold counts one more name of block b in the view.
func (t *Tree) hold(w *treeView, b blockID) {
	id := t.blocks.node(b)
	n := &t.nodes[id]
	pos, cut := uint32(b-n.start()), t.cutOf(n, w.slot)
	switch {
	case pos < cut:
		if w.extra == nil {
			w.extra = make(map[blockID]uint32)
		}
		w.extra[b]++
		return
	case pos > cut: // the rank does not hold the block before it: let a node begin here
		t.split(id, pos)
		pos = 0
	}
	t.setCut(n, w.slot, pos+1)
}

// adding says for whom extend adds new blocks to the tree.
type adding struct {
	gain []Slot    // slots of the views in which the blocks count
	rk   *treeRank // nil: the blocks get no names
	tier Tier
	last blockID // the last block added so far
}

// extend adds blocks to the tree, behind the block whose id is given; with id 0 they
// begin a sequence. The first of them must not be in the tree yet. extend returns the
// id of the last block added.
func (t *Tree) extend(a *adding, after blockID, blocks []Block) blockID {
	var id nodeID
	if after != 0 {
		id = t.blocks.node(after)
		n := &t.nodes[id]
		if pos := uint32(after-n.start()) + 1; pos < n.load().length() {
			id = t.split(id, pos)
		} else if n.kidCount() == 0 {
			blocks = t.lengthen(a, id, blocks)
		}
	}
	for len(blocks) > 0 {
		id, blocks = t.grow(a, id, blocks)
	}
	return a.last
}

// lengthen appends blocks to a node without children, as many as there is room for, and
// returns the rest. Every slot in a.gain must hold the whole node, since afterwards it
// must hold a beginning of the longer run; if one does not, nothing is appended.
func (t *Tree) lengthen(a *adding, id nodeID, blocks []Block) []Block {
	n := &t.nodes[id]
	s := n.load()
	length := s.length()
	for _, slot := range a.gain {
		if t.cutOf(n, slot) != length {
			return blocks
		}
	}
	if over := int(length) + len(blocks) - int(n.room); over > 0 {
		n.room += t.blocks.enlarge(n.start(), n.room, min(n.room/2+slack(over), maxEdge-n.room))
	}
	k := min(len(blocks), int(n.room-length))
	if k == 0 {
		return blocks
	}
	t.fill(a, id, n.start()+blockID(length), blocks[:k])
	n.stamp = t.clock
	longer := s.withLength(length + uint32(k))
	if len(a.gain) == 1 && s.slot() == a.gain[0] && s.cut() == length {
		set(&n.state, uint64(longer.withHolder(s.slot(), length+uint32(k))))
		return blocks[k:]
	}
	n.state.Store(uint64(longer))
	for _, slot := range a.gain {
		t.setCut(n, slot, length+uint32(k))
	}
	return blocks[k:]
}

// grow adds a child to node p with as many of the blocks as its run has room for, and
// returns the child and the rest.
func (t *Tree) grow(a *adding, p nodeID, blocks []Block) (nodeID, []Block) {
	want := slack(len(blocks))
	if x := &t.nodes[p]; x.kidCount() == 0 {
		// The new run continues its parent's, and is likely to grow as much again.
		want = max(want, min(x.room+x.room/2, maxEdge))
	}
	start, room := t.blocks.alloc(want)
	if start == 0 {
		panic("kvindex: no block is free within the budget")
	}
	id := t.newNode()
	n := &t.nodes[id]
	k := min(len(blocks), int(room))
	n.room, n.depth = room, t.nodes[p].depth+t.nodes[p].load().length()
	t.fill(a, id, start, blocks[:k])
	n.place.Store(place(start, uint32(p)))
	n.state.Store(uint64(n.load().withLength(uint32(k)).withHolder(0, 0)))
	for _, slot := range a.gain {
		t.setCut(n, slot, uint32(k))
	}
	n.end(n.load())
	t.addKid(p, id, uint64(blocks[0].Local))
	return id, blocks[k:]
}

// fill writes blocks beyond the length of a node, where queries do not read yet, and
// enters their names if a.rk is set.
func (t *Tree) fill(a *adding, id nodeID, at blockID, blocks []Block) {
	rk, tier := a.rk, a.tier
	a.last = at + blockID(len(blocks)) - 1
	if rk == nil {
		for i, b := range blocks {
			set(&t.blocks.local[at+blockID(i)], uint64(b.Local))
			t.blocks.meta[at+blockID(i)] = 1<<32 | uint64(id)
		}
		return
	}
	for i, b := range blocks {
		x := at + blockID(i)
		set(&t.blocks.local[x], uint64(b.Local))
		t.blocks.meta[x] = 1<<32 | uint64(id)
		v, _ := t.names.put(&rk.names, b.Engine)
		*v = nameOf(x, 1<<tier)
	}
	k := len(blocks)
	rk.lastName, rk.lastBlock = blocks[k-1].Engine, at+blockID(k-1)
	rk.stats.Blocks += k
	rk.stats.TierBlocks[tier] += k
	rk.stats.Stored += uint64(k)
}
