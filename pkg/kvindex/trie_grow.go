package kvindex

// slack returns the room of a new run that begins with n blocks: more than n, since
// most sequences grow block by block.
func slack(n int) uint32 { return uint32(min(n+n/2+8, maxEdge)) }

// adding says for whom extend adds new blocks to the tree.
type adding struct {
	gain   []Slot    // slots of the views in which the blocks count
	ledger *ledger   // enters the blocks' names; nil: they get none
	rk     *treeRank // set if ledger is
	tier   Tier
	last   blockID // the last block added so far
}

// extend adds blocks to the tree, behind the block whose id is given; with id 0 they
// begin a sequence. The first of them must not be in the tree yet. extend returns the
// id of the last block added.
func (tr *trie) extend(a *adding, after blockID, blocks []Block) blockID {
	var id nodeID
	if after != 0 {
		id = tr.blocks.node(after)
		n := &tr.nodes[id]
		if pos := uint32(after-n.start()) + 1; pos < n.load().length() {
			id = tr.split(id, pos)
		} else if n.kidCount() == 0 {
			blocks = tr.lengthen(a, id, blocks)
		}
	}
	for len(blocks) > 0 {
		id, blocks = tr.grow(a, id, blocks)
	}
	return a.last
}

// lengthen appends blocks to a node without children, as many as there is room for, and
// returns the rest. Every slot in a.gain must hold the whole node, since afterwards it
// must hold a beginning of the longer run; if one does not, nothing is appended.
func (tr *trie) lengthen(a *adding, id nodeID, blocks []Block) []Block {
	n := &tr.nodes[id]
	s := n.load()
	length := s.length()
	for _, slot := range a.gain {
		if tr.holders.cut(n, slot) != length {
			return blocks
		}
	}
	if over := int(length) + len(blocks) - int(n.room); over > 0 {
		n.room += tr.blocks.enlarge(n.start(), n.room, min(n.room/2+slack(over), maxEdge-n.room))
	}
	k := min(len(blocks), int(n.room-length))
	if k == 0 {
		return blocks
	}
	tr.fill(a, id, n.start()+blockID(length), blocks[:k])
	n.stamp = tr.clock
	longer := s.withLength(length + uint32(k))
	if len(a.gain) == 1 && s.slot() == a.gain[0] && s.cut() == length {
		set(&n.state, uint64(longer.withHolder(s.slot(), length+uint32(k))))
		return blocks[k:]
	}
	n.state.Store(uint64(longer))
	for _, slot := range a.gain {
		tr.holders.set(n, slot, length+uint32(k))
	}
	return blocks[k:]
}

// grow adds a child to node p with as many of the blocks as its run has room for, and
// returns the child and the rest.
func (tr *trie) grow(a *adding, p nodeID, blocks []Block) (nodeID, []Block) {
	want := slack(len(blocks))
	if x := &tr.nodes[p]; x.kidCount() == 0 {
		// The new run continues its parent's, and is likely to grow as much again.
		want = max(want, min(x.room+x.room/2, maxEdge))
	}
	start, room := tr.blocks.alloc(want)
	if start == 0 {
		panic("kvindex: no block is free within the budget")
	}
	id := tr.add()
	n := &tr.nodes[id]
	k := min(len(blocks), int(room))
	n.room, n.depth = room, tr.nodes[p].depth+tr.nodes[p].load().length()
	tr.fill(a, id, start, blocks[:k])
	n.place.Store(place(start, uint32(p)))
	n.state.Store(uint64(n.load().withLength(uint32(k)).withHolder(0, 0)))
	for _, slot := range a.gain {
		tr.holders.set(n, slot, uint32(k))
	}
	n.end(n.load())
	tr.kids.add(p, id, uint64(blocks[0].Local))
	return id, blocks[k:]
}

// fill writes blocks beyond the length of a node, where queries do not read yet.
func (tr *trie) fill(a *adding, id nodeID, at blockID, blocks []Block) {
	for i, b := range blocks {
		tr.blocks.write(at+blockID(i), id, b.Local)
	}
	a.last = at + blockID(len(blocks)) - 1
	if a.ledger != nil {
		a.ledger.enter(a.rk, at, blocks, a.tier)
	}
}
