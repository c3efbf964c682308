package kvindex

// slack returns the room of a new run that begins with n blocks: more than n, since
// most sequences grow block by block.
func slack(n int) uint32 { return uint32(min(n+n/2+8, maxEdge)) }

// extend adds blocks to the tree, as many as one node takes, behind the block whose id is
// given; with id 0 they begin a sequence. The first of them must not be in the tree yet.
// The blocks count for the slots in gain, and have one name each. extend returns the first
// block and how many were added: at least one, with consecutive ids.
func (tr *trie) extend(gain []Slot, after blockID, blocks []Block) (first blockID, k int) {
	var id nodeID
	if after != 0 {
		id = tr.blocks.node(after)
		n := &tr.nodes[id]
		if pos := uint32(after-n.start()) + 1; pos < n.load().length() {
			id = tr.split(id, pos)
		} else if n.kidCount() == 0 {
			k = tr.lengthen(gain, n, id, blocks)
			if k > 0 {
				return after + 1, k
			}
		}
	}
	return tr.grow(gain, id, blocks)
}

// lengthen appends blocks to a node without children, as many as there is room for, and
// returns how many. Every slot in gain must hold the whole node, since afterwards it must
// hold a beginning of the longer run; if one does not, nothing is appended.
func (tr *trie) lengthen(gain []Slot, n *node, id nodeID, blocks []Block) int {
	s := n.load()
	length := s.length()
	for _, slot := range gain {
		if tr.holders.cut(n, slot) != length {
			return 0
		}
	}
	if over := int(length) + len(blocks) - int(n.room); over > 0 {
		n.room += tr.blocks.enlarge(n.start(), n.room, min(n.room/2+slack(over), maxEdge-n.room))
	}
	k := min(len(blocks), int(n.room-length))
	if k == 0 {
		return 0
	}
	tr.fill(id, n.start()+blockID(length), blocks[:k])
	n.stamp = tr.clock
	longer := s.withLength(length + uint32(k))
	if len(gain) == 1 && s.slot() == gain[0] && s.cut() == length {
		set(&n.state, uint64(longer.withHolder(s.slot(), length+uint32(k))))
		return k
	}
	n.state.Store(uint64(longer))
	for _, slot := range gain {
		tr.holders.set(n, slot, length+uint32(k))
	}
	return k
}

// grow adds a child to node p with as many of the blocks as its run has room for. It
// returns the first one, and how many.
func (tr *trie) grow(gain []Slot, p nodeID, blocks []Block) (blockID, int) {
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
	tr.fill(id, start, blocks[:k])
	n.place.Store(place(start, uint32(p)))
	n.state.Store(uint64(n.load().withLength(uint32(k)).withHolder(0, 0)))
	for _, slot := range gain {
		tr.holders.set(n, slot, uint32(k))
	}
	n.end(n.load())
	tr.kids.add(p, id, uint64(blocks[0].Local))
	return start, k
}

// fill writes blocks beyond the length of a node, where queries do not read yet.
func (tr *trie) fill(id nodeID, at blockID, blocks []Block) {
	for i, b := range blocks {
		tr.blocks.write(at+blockID(i), id, b.Local)
	}
}
