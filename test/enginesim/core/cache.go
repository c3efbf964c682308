package core

import (
	"container/heap"
	"crypto/sha256"
	"encoding/binary"
	"slices"
)

// blockSum is the chained hash of one page, twice: own is the engine's, told is for
// events. They differ if the engine separates pages that it publishes under one hash.
type blockSum struct{ own, told [sha256.Size]byte }

// hash returns the engine's hash of the block: the first 16 hex digits of the sum as a
// signed number.
func (b *blockSum) hash() int64 { return int64(binary.BigEndian.Uint64(b.own[:8])) }

// published is the hash in events.
func (b *blockSum) published() int64 { return int64(binary.BigEndian.Uint64(b.told[:8])) }

// chainBlocks appends the sums of the full pages of tokens whose sums are missing. A sum
// is a SHA-256 over the parent's sum or the namespace's root, the ids (little-endian),
// and the pictures in the page.
func chainBlocks(sums []blockSum, tokens []uint32, page int, ns Namespace) []blockSum {
	buf := make([]byte, 0, sha256.Size+4*page)
	link := func(parent []byte, from int) [sha256.Size]byte {
		ids := tokens[from : from+page]
		buf = append(buf[:0], parent...)
		for _, t := range ids {
			buf = binary.LittleEndian.AppendUint32(buf, t)
		}
		for _, p := range ns.Seen.Within(from, from+page) {
			buf = binary.LittleEndian.AppendUint64(append(buf, p.ID...), uint64(p.Offset-from)) //nolint:gosec // a bit pattern
		}
		return sha256.Sum256(buf)
	}
	for i := len(sums); (i+1)*page <= len(tokens); i++ {
		own, told := ns.root(), ns.told().root()
		if i > 0 {
			own, told = sums[i-1].own[:], sums[i-1].told[:]
		}
		sum := blockSum{own: link(own, i*page)}
		sum.told = sum.own
		if ns.told() != ns {
			sum.told = link(told, i*page)
		}
		sums = append(sums, sum)
	}
	return sums
}

// block is a node of the prefix tree.
type block struct {
	hash     int64
	told     int64  // hash in events
	parent   *block // nil at the first page of a prompt
	tokens   []uint32
	children int
	next     *block // the next block of the same node, see cache.nodes
	pins     int    // running requests whose prompt contains this block
	used     uint64 // cache.clock at the last pin or unpin
	heapAt   int    // index in cache.evictable, or -1
}

// cache is one rank's prefix cache: a tree of pages with eviction of the least
// recently used leaf. Not safe for concurrent use; owned by its rank's mutex.
//
// With nodes, pages that were inserted together are a node, as in SGLang's radix tree: a
// match that ends within a node splits it, and a node is evicted as a whole. Without
// nodes each block is evicted alone.
//
// Invariant: a pinned block has a pinned parent, so all unpinned blocks can be evicted
// leaf by leaf.
// Invariant: len(blocks) + private <= capacity.
type cache struct {
	page, capacity int
	blocks         map[int64]*block
	evictable      blockHeap // leaves without pins
	clock          uint64
	pinned         int // blocks with pins
	private        int // blocks of running requests that are not in the tree
	events         []Event
	record         bool // events are published
	nodes          bool
}

func newCache(page, capacity int, record, nodes bool) *cache {
	return &cache{page: page, capacity: capacity, blocks: make(map[int64]*block), record: record, nodes: nodes}
}

// held returns how many blocks running requests keep from eviction.
func (c *cache) held() int { return c.pinned + c.private }

// match appends to path the longest run of cached blocks with which sums begins.
func (c *cache) match(sums []blockSum, path []*block) []*block {
	for i := range sums {
		b := c.blocks[sums[i].hash()]
		if b == nil {
			break
		}
		path = append(path, b)
	}
	if len(path) > 0 {
		path[len(path)-1].next = nil
	}
	return path
}

// extra returns by how many blocks held would grow if a request with the matched path and
// need blocks in total were admitted.
func (c *cache) extra(path []*block, need int) int {
	n := need - len(path)
	for _, b := range path {
		if b.pins == 0 {
			n++
		}
	}
	return n
}

func (c *cache) pin(b *block) {
	if b.pins == 0 {
		c.pinned++
		c.unlist(b)
	}
	b.pins++
	b.used = c.clock
}

func (c *cache) unpin(b *block) {
	b.pins--
	b.used = c.clock
	if b.pins == 0 {
		c.pinned--
		c.maybeList(b)
	}
}

// maybeList makes b evictable if it is a leaf without pins.
func (c *cache) maybeList(b *block) {
	if b.pins == 0 && b.children == 0 && b.heapAt < 0 {
		heap.Push(&c.evictable, b)
	}
}

func (c *cache) unlist(b *block) {
	if b.heapAt >= 0 {
		heap.Remove(&c.evictable, b.heapAt)
	}
}

// reserve pins path, takes private blocks and evicts others until there is room. The
// caller has checked that held() + extra() <= capacity.
func (c *cache) reserve(path []*block, private int) {
	c.clock++
	for _, b := range path {
		c.pin(b)
	}
	c.private += private
	for len(c.blocks)+c.private > c.capacity {
		c.evict()
	}
}

// evict removes the least recently used leaf, or the node that ends with it.
func (c *cache) evict() {
	last := heap.Pop(&c.evictable).(*block)
	node := []*block{last}
	for p := last.parent; p != nil && p.next == node[len(node)-1] && p.pins == 0; p = p.parent {
		node = append(node, p)
	}
	slices.Reverse(node)
	for _, b := range node {
		delete(c.blocks, b.hash)
		c.note(Event{Kind: BlockRemoved, Hash: b.told})
	}
	if p := node[0].parent; p != nil {
		p.children--
		p.next = nil
		c.maybeList(p)
	}
}

// insert turns private blocks of a request into shared ones: the pages of tokens from
// len(path) on. It returns the longer path, which is pinned.
func (c *cache) insert(path []*block, sums []blockSum, tokens []uint32, ns Namespace) []*block {
	c.clock++
	first := len(path)
	for i := first; i < len(sums); i++ {
		h := sums[i].hash()
		b := c.blocks[h]
		if b == nil {
			b = &block{hash: h, told: sums[i].published(), heapAt: -1, tokens: append([]uint32(nil), tokens[i*c.page:(i+1)*c.page]...)}
			ev := Event{Kind: BlockStored, Hash: b.told, Tokens: b.tokens, From: i * c.page, Space: ns.told()}
			if i > 0 {
				b.parent = path[i-1]
				b.parent.children++
				if c.nodes && i > first {
					b.parent.next = b
				}
				c.unlist(b.parent)
				ev.Parent, ev.HasParent = b.parent.told, true
			}
			c.blocks[h] = b
			c.note(ev)
		}
		c.private--
		c.pin(b)
		path = append(path, b)
	}
	return path
}

// release unpins path, the deepest block first, and gives the private blocks back.
func (c *cache) release(path []*block, private int) {
	c.clock++
	for i := len(path) - 1; i >= 0; i-- {
		c.unpin(path[i])
	}
	c.private -= private
}

// clear empties the tree. It must not be called while blocks are held.
func (c *cache) clear() {
	clear(c.blocks)
	c.evictable = nil
	c.note(Event{Kind: AllCleared})
}

func (c *cache) note(e Event) {
	if c.record {
		c.events = append(c.events, e)
	}
}

// blockHeap is a heap of leaves, the least recently used first.
type blockHeap []*block

func (h blockHeap) Len() int           { return len(h) }
func (h blockHeap) Less(i, j int) bool { return h[i].used < h[j].used }
func (h blockHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heapAt, h[j].heapAt = i, j
}

// Push implements heap.Interface.
func (h *blockHeap) Push(x any) {
	b := x.(*block)
	b.heapAt = len(*h)
	*h = append(*h, b)
}

// Pop implements heap.Interface.
func (h *blockHeap) Pop() any {
	old := *h
	b := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	b.heapAt = -1
	return b
}
