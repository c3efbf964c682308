package kvindex

// trie is the tree of blocks: nodes, the memory of their blocks, their children and their
// holders. It knows no names, and no rank but by a slot. It owns the nodes' words state,
// place, room, stamp and depth; the other words belong to kids and holders.
type trie struct {
	// Queries read the atomic words of these fields without a lock; see node.
	blocks  runs
	nodes   []node
	kids    kids
	holders holders

	// Writers only.
	ids   pool   // of nodes
	clock uint32 // counts stores
}

// tick begins a store: what it touches is younger than what was stored before.
func (tr *trie) tick() { tr.clock++ }

// renew makes a node as young as the present store.
func (tr *trie) renew(id nodeID) { tr.nodes[id].stamp = tr.clock }

// follow returns the block after b that has the hash l, or 0 if there is none. After 0
// comes the first block of a sequence.
func (tr *trie) follow(b blockID, l LocalHash) blockID {
	var id nodeID
	if b != 0 {
		id = tr.blocks.node(b)
		n := &tr.nodes[id]
		if next := b + 1; next < n.start()+blockID(n.load().length()) {
			if LocalHash(tr.blocks.local[next].Load()) == l {
				return next
			}
			return 0
		}
	}
	kid, _ := tr.kids.find(id, uint64(l))
	if kid == 0 {
		return 0
	}
	return tr.nodes[kid].start()
}

// match returns how many of the first n blocks of the run at start are the chain's.
func (tr *trie) match(start blockID, n int, chain []LocalHash) int {
	run := tr.blocks.local[start : int(start)+n]
	for i := range run {
		if LocalHash(run[i].Load()) != chain[i] {
			return i
		}
	}
	return n
}

// run implements the interface chains. The caller holds mu.
func (tr *trie) run(block uint32, dst []LocalHash) (first, parent uint32, _ []LocalHash) {
	n := &tr.nodes[tr.blocks.node(blockID(block))]
	start := n.start()
	for b := start; b < start+blockID(n.load().length()); b++ {
		dst = append(dst, LocalHash(tr.blocks.local[b].Load()))
	}
	if p := n.parent(); p != 0 {
		x := &tr.nodes[p]
		parent = uint32(x.start()) + x.load().length() - 1
	}
	return uint32(start), parent, dst
}

// before returns the block before b in its sequence, or 0 if b is the first one.
func (tr *trie) before(b blockID) blockID {
	n := &tr.nodes[tr.blocks.node(b)]
	if b > n.start() {
		return b - 1
	}
	id := n.parent()
	if id == 0 {
		return 0
	}
	p := &tr.nodes[id]
	return p.start() + blockID(p.load().length()) - 1
}

// follows reports whether x is b or comes after b in a sequence.
func (tr *trie) follows(x, b blockID) bool {
	for node := tr.blocks.node(b); x != 0; {
		id := tr.blocks.node(x)
		if id == node {
			return x >= b
		}
		x = tr.before(tr.nodes[id].start())
	}
	return false
}

// add returns a node that queries take as one that is being changed, until end.
func (tr *trie) add() nodeID {
	id := nodeID(tr.ids.get())
	n := &tr.nodes[id]
	if s := n.load(); !s.changing() {
		n.state.Store(uint64(s + versionOne)) // the node was never used so far
	}
	tr.holders.clear(n)
	n.stamp = tr.clock
	return id
}

// free frees a node without children, and its run.
func (tr *trie) free(id nodeID) {
	n := &tr.nodes[id]
	n.begin()
	parent := n.parent()
	start := n.start()
	tr.kids.remove(nodeID(parent), id, tr.blocks.local[start].Load())
	tr.holders.dropCrowd(n)
	n.place.Store(place(0, noParent))
	tr.blocks.release(start, n.room)
	tr.ids.put(uint32(id))
}

// split cuts the node before its block k. The tail keeps the id, so that its children
// keep their parent. split returns the new head.
func (tr *trie) split(id nodeID, k uint32) nodeID {
	head := tr.add()
	h, n := &tr.nodes[head], &tr.nodes[id]
	start, parent := n.start(), n.parent()
	s := n.load()
	h.place.Store(place(start, parent))
	tr.kids.only(h, id)
	h.room, h.stamp, h.depth = k, n.stamp, n.depth
	hs := h.load().withLength(k).withHolder(s.slot(), min(s.cut(), k))
	tr.holders.copyTo(h, n, k)

	s = n.begin()
	for i := range k {
		tr.blocks.setNode(start+blockID(i), head)
	}
	n.place.Store(place(start+blockID(k), uint32(head)))
	n.room -= k
	n.depth += k
	tr.holders.reduce(n, k)
	h.end(hs)
	tr.kids.replace(nodeID(parent), id, head, tr.blocks.local[start].Load())
	n.end(s.withLength(s.length()-k).withHolder(s.slot(), s.cut()-min(s.cut(), k)))
	return head
}

// pos returns the position of a block in its node.
func (tr *trie) pos(b blockID) uint32 { return uint32(b - tr.nodes[tr.blocks.node(b)].start()) }

// trim removes the blocks at the node's end that no rank names and no routed prompt
// needs. If none is left it frees the node, and then trims the parent.
func (tr *trie) trim(id nodeID) {
	for id != 0 {
		n := &tr.nodes[id]
		if n.kidCount() > 0 {
			return
		}
		s, start := n.load(), n.start()
		length := s.length()
		for length > 0 && tr.blocks.refs(start+blockID(length)-1) == 0 {
			length--
		}
		if length > 0 {
			if length < s.length() {
				// One store, with another version: a query that has read beyond the new
				// end begins again.
				n.state.Store(uint64((s + 2*versionOne).withLength(length)))
			}
			return
		}
		parent := nodeID(n.parent())
		tr.free(id)
		id = parent
	}
}

// mayPush reports whether a block may be pushed after the block given, for the slot: it
// is the last one of a node without children, which has room, and the slot holds all of
// the node.
func (tr *trie) mayPush(after blockID, slot Slot) (nodeID, bool) {
	id := tr.blocks.node(after)
	n := &tr.nodes[id]
	length := n.load().length()
	if n.kids.Load() != 0 || length >= n.room || after+1 != n.start()+blockID(length) {
		return 0, false
	}
	return id, tr.holders.cut(n, slot) == length
}

// push adds a block with one name to the end of a node, for a slot, and returns it.
func (tr *trie) push(id nodeID, slot Slot, l LocalHash) blockID {
	n := &tr.nodes[id]
	s := n.load()
	length := s.length()
	b := n.start() + blockID(length)
	tr.blocks.write(b, id, l)
	n.stamp = tr.clock
	if s.slot() == slot && s.cut() == length {
		set(&n.state, uint64(s.withLength(length+1).withHolder(slot, length+1)))
		return b
	}
	// The slot's number is in more or in the crowd: another slot holds the node too, such
	// as the rank's view Routed.
	n.state.Store(uint64(s.withLength(length + 1)))
	tr.holders.set(n, slot, length+1)
	return b
}

// pop removes a block with one name if it is the last one, but not the only one, of a
// node without children, and only the slot holds it. Otherwise it changes nothing and
// returns false.
func (tr *trie) pop(b blockID, slot Slot) bool {
	n := &tr.nodes[tr.blocks.node(b)]
	s := n.load()
	pos := uint32(b - n.start())
	if pos == 0 || s.length() != pos+1 || s.cut() != pos+1 || s.slot() != slot || n.kids.Load() != 0 ||
		tr.blocks.refs(b) != 1 || tr.blocks.refs(b-1) == 0 {
		return false
	}
	set(&n.state, uint64((s+2*versionOne).withLength(pos).withHolder(slot, pos)))
	tr.blocks.unref(b, 1)
	return true
}

// freshen makes the nodes above no older than node id.
func (tr *trie) freshen(id nodeID) {
	for stamp := tr.nodes[id].stamp; id != 0; {
		id = nodeID(tr.nodes[id].parent())
		n := &tr.nodes[id]
		if id == 0 || tr.clock-n.stamp <= tr.clock-stamp {
			return
		}
		n.stamp = stamp
	}
}
