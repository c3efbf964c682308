package kvindex

import "sync/atomic"

// nodeID is the index of a node in Tree.nodes; 0 is the root, which has no blocks.
type nodeID uint32

const (
	noParent  = ^uint32(0)
	nodeSlots = 7 // holders whose numbers are in the node itself
)

// node is a run of blocks without a branch, and how much of it each holder has, in one
// cache line. A holder is the slot of a rank or of a view. Writers change nodes with
// Tree.mu held; queries meanwhile read the atomic fields. Invariant: I8–I11.
type node struct {
	state atomic.Uint64 // see state
	place atomic.Uint64 // the first block; in the low half the parent, or noParent
	kids  atomic.Uint64 // the number of children; in the low half the only child, 0, or many
	crowd atomic.Uint32 // the list of the crowd: holders for which the node has no place; 0: none
	more  [nodeSlots - 1]atomic.Uint32
	room  uint32 // blocks for which the run has room; writers only
	stamp uint32 // when something was last stored here; writers only
	depth uint32 // blocks before the run in its sequence; writers only
}

// state is the word of a node that changes most often: length, first holder and
// version.
//
//	version 24 | slot 20 | cut 10 | length 10
//
// The version is odd while a writer changes, in more than one step, what queries read
// of the node, and in nodes that are not in use. Every change gives the node another
// version, apart from two kinds: a longer run, and holders that come, go, or hold more
// or fewer blocks. So if a query finds the same version and length at its end, the
// blocks that it has read were the node's all the time.
type state uint64

const (
	maxSlots   = 1 << 20
	versionOne = 1 << 40
)

func (s state) length() uint32 { return uint32(s) & maxEdge }
func (s state) cut() uint32    { return uint32(s>>10) & maxEdge }
func (s state) slot() Slot     { return Slot(s>>20) & (maxSlots - 1) }
func (s state) changing() bool { return s&versionOne != 0 }

// same reports whether the blocks read when the state was s were the node's until it
// was t.
func (s state) same(t state) bool { return (s^t)>>40 == 0 && s.length() == t.length() }

func (s state) withLength(n uint32) state { return s&^maxEdge | state(n) }
func (s state) withHolder(slot Slot, cut uint32) state {
	return s>>40<<40 | state(slot)<<20 | state(cut)<<10 | s&maxEdge
}

// holder is a slot, and how many of a node's first blocks count for it. A cut of 0 is
// no holder.
type holder uint32

func holderOf(s Slot, cut uint32) holder {
	if cut == 0 {
		return 0
	}
	return holder(s)<<10 | holder(cut)
}

func (h holder) cut() uint32 { return uint32(h) & maxEdge }
func (h holder) slot() Slot  { return Slot(h >> 10) }

func (n *node) load() state { return state(n.state.Load()) }

func (n *node) start() blockID         { return blockID(n.place.Load() >> 32) }
func (n *node) parent() uint32         { return uint32(n.place.Load()) }
func (n *node) kidCount() uint32       { return uint32(n.kids.Load() >> 32) }
func place(b blockID, p uint32) uint64 { return uint64(b)<<32 | uint64(p) }

// begin and end enclose a change that queries must not see half done: end takes the
// state that begin returned, with the changes.
func (n *node) begin() state {
	s := n.load() + versionOne
	n.state.Store(uint64(s))
	return s
}

func (n *node) end(s state) { n.state.Store(uint64(s + versionOne)) }

// newNode returns a node that queries take as one that is being changed, until end.
func (t *Tree) newNode() nodeID {
	id := nodeID(t.nodeIDs.get())
	n := &t.nodes[id]
	if s := n.load(); !s.changing() {
		n.state.Store(uint64(s + versionOne)) // the node was never used so far
	}
	for i := range n.more {
		if n.more[i].Load() != 0 {
			n.more[i].Store(0)
		}
	}
	n.stamp = t.clock
	return id
}

// freeNode frees a node without children, and its run.
func (t *Tree) freeNode(id nodeID) {
	n := &t.nodes[id]
	n.begin()
	parent := n.parent()
	start := n.start()
	t.removeKid(nodeID(parent), id, t.blocks.local[start].Load())
	t.dropCrowd(n)
	n.kids.Store(0)
	n.place.Store(place(0, noParent))
	t.blocks.release(start, n.room)
	t.nodeIDs.put(uint32(id))
}

// split cuts the node before its block k. The tail keeps the id, so that its children
// keep their parent. split returns the new head.
func (t *Tree) split(id nodeID, k uint32) nodeID {
	head := t.newNode()
	h, n := &t.nodes[head], &t.nodes[id]
	start, parent := n.start(), n.parent()
	s := n.load()
	h.place.Store(place(start, parent))
	h.kids.Store(1<<32 | uint64(id))
	h.room, h.stamp, h.depth = k, n.stamp, n.depth
	hs := h.load().withLength(k).withHolder(s.slot(), min(s.cut(), k))
	for i := range n.more {
		e := holder(n.more[i].Load())
		h.more[i].Store(uint32(holderOf(e.slot(), min(e.cut(), k))))
	}
	t.copyCrowd(h, n, k)

	s = n.begin()
	for i := range k {
		t.blocks.setNode(start+blockID(i), head)
	}
	n.place.Store(place(start+blockID(k), uint32(head)))
	n.room -= k
	n.depth += k
	for i := range n.more {
		e := holder(n.more[i].Load())
		n.more[i].Store(uint32(holderOf(e.slot(), e.cut()-min(e.cut(), k))))
	}
	t.cutCrowd(n, k)
	h.end(hs)
	t.replaceKid(nodeID(parent), id, head, t.blocks.local[start].Load())
	n.end(s.withLength(s.length()-k).withHolder(s.slot(), s.cut()-min(s.cut(), k)))
	return head
}

// cutOf returns how many of the node's first blocks count for the slot.
func (t *Tree) cutOf(n *node, slot Slot) uint32 {
	if s := n.load(); s.cut() > 0 && s.slot() == slot {
		return s.cut()
	}
	for i := range n.more {
		if e := holder(n.more[i].Load()); e != 0 && e.slot() == slot {
			return e.cut()
		}
	}
	return t.crowdCut(n, slot)
}

// setCut changes what cutOf returns. A holder keeps its place in the node until it is
// gone, so that a query which reads the places in order cannot miss it.
func (t *Tree) setCut(n *node, slot Slot, cut uint32) {
	s := n.load()
	if s.cut() > 0 && s.slot() == slot {
		n.state.Store(uint64(s.withHolder(slot, cut)))
		return
	}
	free := -1
	for i := range n.more {
		e := holder(n.more[i].Load())
		if e == 0 {
			free = i
		} else if e.slot() == slot {
			n.more[i].Store(uint32(holderOf(slot, cut)))
			return
		}
	}
	switch {
	case t.crowdCut(n, slot) > 0:
		t.setCrowdCut(n, slot, cut)
	case cut == 0:
	case s.cut() == 0:
		n.state.Store(uint64(s.withHolder(slot, cut)))
	case free >= 0:
		n.more[free].Store(uint32(holderOf(slot, cut)))
	default:
		t.setCrowdCut(n, slot, cut)
	}
}

// pos returns the position of a block in its node.
func (t *Tree) pos(b blockID) uint32 { return uint32(b - t.nodes[t.blocks.node(b)].start()) }

// trim removes the blocks at the node's end that no rank names and no routed prompt
// needs. If none is left it frees the node, and then trims the parent.
func (t *Tree) trim(id nodeID) {
	for id != 0 {
		n := &t.nodes[id]
		if n.kidCount() > 0 {
			return
		}
		s, start := n.load(), n.start()
		length := s.length()
		for length > 0 && t.blocks.refs(start+blockID(length)-1) == 0 {
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
		t.freeNode(id)
		id = parent
	}
}
