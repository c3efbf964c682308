package kvindex

import (
	"math/bits"
	"sync/atomic"

	"github.com/seed-60ae5743/baton/internal/invariants"
)

// The root's children, and those of nodes that have had two or more, are in one hash
// table, by parent and by the hash of the child's first block. Queries search the table
// while a writer changes it: a child keeps its place until it is removed, a removed
// child leaves a mark, and a full table is replaced by a larger one in one store. The
// garbage collector keeps the old table for as long as a query reads it.

const (
	many      = ^uint32(0) // in the low half of node.kids: the children are in the table
	kidShards = 64         // the table is rebuilt one shard at a time
	kidGone   = 1 << 32    // the mark of a removed child: node 0 with a tag
	minKids   = 16         // the places of a new shard
)

// kids finds the child of a node. It owns the word kids of each node, and the table.
type kids struct {
	nodes []node          // of the trie
	local []atomic.Uint64 // the blocks' hashes
	seed  uint64          // of the table's hash; read-only

	shards [kidShards]kidShard
	bytes  int // of the table; writers only

	between func() // see step; set before use
}

// kidShard is one part of the table.
type kidShard struct {
	// tab has a power of two of words: the tag in the high half, the node in the low
	// half. A word of 0 is a free place.
	tab  atomic.Pointer[[]atomic.Uint64]
	live int // writers only
	gone int // writers only
}

// kidWord returns the table's entry for a node. The tag, the shard and the place come
// from different bits of the hash.
func kidWord(h uint64, id nodeID) uint64 { return h<<6>>32<<32 | uint64(id) }

func kidTag(w uint64) uint32 { return uint32(w >> 32) }

// putKid stores the word at the first place for h that has no child. It reports whether
// that was the place of a removed child.
func putKid(words []atomic.Uint64, h, word uint64) bool {
	mask := uint64(len(words) - 1)
	for i := h; ; i++ {
		at := &words[i&mask]
		if w := at.Load(); uint32(w) == 0 {
			at.Store(word)
			return w != 0
		}
	}
}

// step is called between two reads of a query, so that a test can let a writer in
// there. Other builds do nothing.
func (k *kids) step() {
	if invariants.Enabled && k.between != nil {
		k.between()
	}
}

func (k *kids) hash(p nodeID, first uint64) uint64 {
	hi, lo := bits.Mul64(first^k.seed, (uint64(p)+1)*0x9e3779b97f4a7c15|1)
	return hi ^ lo
}

// find returns the child of p whose first block has the given hash, or 0 if there is
// none. If ok is false, a writer was changing that child, and the search has to be made
// again.
func (k *kids) find(p nodeID, first uint64) (id nodeID, ok bool) {
	kids := k.nodes[p].kids.Load()
	if only := uint32(kids); only != many {
		if only == 0 {
			return 0, true
		}
		k.step()
		n := &k.nodes[only]
		place := n.place.Load()
		if uint32(place) != uint32(p) {
			return 0, false
		}
		if k.local[place>>32].Load() != first {
			return 0, true
		}
		return nodeID(only), true
	}
	k.step()
	h := k.hash(p, first)
	tab := k.shards[h>>58].tab.Load()
	if tab == nil {
		return 0, true
	}
	words, tag := *tab, kidTag(kidWord(h, 0))
	mask := uint64(len(words) - 1)
	for i := range uint64(len(words)) {
		at := &words[(h+i)&mask]
		w := at.Load()
		if w == 0 {
			return 0, true
		}
		if kidTag(w) != tag || uint32(w) == 0 {
			continue
		}
		k.step()
		n := &k.nodes[uint32(w)]
		place := n.place.Load()
		k.step()
		if uint32(place) == uint32(p) && k.local[place>>32].Load() == first {
			return nodeID(w), true
		}
		// This is another child with the same tag, or the one searched for while a
		// writer changes it.
		if n.load().changing() || at.Load() != w {
			return 0, false
		}
	}
	return 0, true
}

// add makes id a child of p.
func (k *kids) add(p, id nodeID, first uint64) {
	n := &k.nodes[p]
	kids := n.kids.Load()
	count, only := kids>>32+1, uint32(kids)
	if count == 1 && p != 0 {
		n.kids.Store(1<<32 | uint64(id))
		return
	}
	if only != many && only != 0 {
		k.insert(p, nodeID(only), k.local[k.nodes[only].start()].Load())
	}
	k.insert(p, id, first)
	n.kids.Store(count<<32 | uint64(many))
}

// remove ends that id is a child of p.
func (k *kids) remove(p, id nodeID, first uint64) {
	n := &k.nodes[p]
	kids := n.kids.Load()
	count, only := kids>>32-1, uint32(kids)
	if only == many {
		sh, at := k.place(p, id, first)
		at.Store(max(at.Load()>>32<<32, kidGone))
		sh.live--
		sh.gone++
	}
	if count == 0 && p != 0 {
		n.kids.Store(0)
	} else {
		n.kids.Store(count<<32 | uint64(many))
	}
}

// replace puts id in the place of the child old.
func (k *kids) replace(p, old, id nodeID, first uint64) {
	n := &k.nodes[p]
	if uint32(n.kids.Load()) != many {
		n.kids.Store(1<<32 | uint64(id))
		return
	}
	_, at := k.place(p, old, first)
	at.Store(kidWord(k.hash(p, first), id))
}

// place returns the place of a child that is in the table.
func (k *kids) place(p, id nodeID, first uint64) (*kidShard, *atomic.Uint64) {
	h := k.hash(p, first)
	sh := &k.shards[h>>58]
	words, want := *sh.tab.Load(), kidWord(h, id)
	mask := uint64(len(words) - 1)
	for i := h; ; i++ {
		if at := &words[i&mask]; at.Load() == want {
			return sh, at
		}
	}
}

// only says that id is the only child of a new node.
func (k *kids) only(n *node, id nodeID) { n.kids.Store(1<<32 | uint64(id)) }

func (k *kids) insert(p, id nodeID, first uint64) {
	h := k.hash(p, first)
	sh := &k.shards[h>>58]
	tab := sh.tab.Load()
	if tab == nil || 4*(sh.live+sh.gone+1) > 3*len(*tab) {
		tab = k.rebuild(sh)
	}
	if putKid(*tab, h, kidWord(h, id)) {
		sh.gone--
	}
	sh.live++
}

// rebuild replaces a shard's table by one that has no marks and is at most half
// full.
func (k *kids) rebuild(sh *kidShard) *[]atomic.Uint64 {
	size := minKids
	for size < 2*(sh.live+1) {
		size *= 2
	}
	words := make([]atomic.Uint64, size)
	if old := sh.tab.Load(); old != nil {
		k.bytes -= 8 * len(*old)
		for i := range *old {
			if w := (*old)[i].Load(); uint32(w) != 0 {
				place := k.nodes[uint32(w)].place.Load()
				h := k.hash(nodeID(uint32(place)), k.local[place>>32].Load())
				putKid(words, h, w)
			}
		}
	}
	k.bytes += 8 * len(words)
	sh.gone = 0
	sh.tab.Store(&words)
	return &words
}
