package kvindex

import "sync/atomic"

// nodeID is the index of a node in trie.nodes; 0 is the root, which has no blocks.
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
