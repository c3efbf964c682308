package kvindex

import "runtime"

const (
	// tries is how often a query is walked without the lock. If a writer disturbs every
	// try, the query takes the writers' lock.
	tries = 64
	// eager is how many of the tries follow each other at once.
	eager = 4
)

// Overlap implements [Index]. It takes no lock: a query that met a half-made change
// begins again. For each rank there was an instant during the call when it held each of
// the blocks counted and did not hold the next one.
func (t *Tree) Overlap(chain []LocalHash, dst *Overlap) {
	n := t.slots.Len()
	for i := range tries {
		if i >= eager {
			runtime.Gosched() // the disturbing writer may be waiting for this processor
		}
		dst.reset(n)
		if t.trie.walk(chain, dst.Blocks[:cap(dst.Blocks)]) {
			return
		}
	}
	t.torn.Add(1)
	t.mu.Lock()
	defer t.mu.Unlock()
	dst.reset(n)
	t.trie.walk(chain, dst.Blocks[:cap(dst.Blocks)])
}

// walk follows the chain down the tree and writes for each slot how many blocks it
// holds. It returns false if it may have read a half-made change; dst is then of no
// use. It ends whatever it reads, since each node matches a block or ends the walk. It
// stays within the arenas, since every number that it reads belongs to some node or
// block.
//
// A node counts if its version and length are the same before and after the node was
// read and its child was found with this node as its parent. Then the child's blocks
// followed the node's at that time.
func (tr *trie) walk(chain []LocalHash, dst []uint32) bool {
	var at nodeID
	s := tr.nodes[0].load()
	for depth := 0; depth < len(chain); {
		id, ok := tr.kids.find(at, uint64(chain[depth]))
		if !ok {
			return false
		}
		if id == 0 {
			return s.same(tr.nodes[at].load())
		}
		tr.kids.step()
		n := &tr.nodes[id]
		ns := n.load()
		tr.kids.step()
		place := n.place.Load()
		if ns.changing() || uint32(place) != uint32(at) || !s.same(tr.nodes[at].load()) {
			return false
		}
		length := int(ns.length())
		start := int(place >> 32)
		if start+length > len(tr.blocks.local) {
			return false
		}
		run := tr.blocks.local[start : start+length]
		if rest := chain[depth:]; len(run) > len(rest) {
			run = run[:len(rest)]
		}
		tr.kids.step()
		m := 0
		for m < len(run) && LocalHash(run[m].Load()) == chain[depth+m] {
			m++
		}
		tr.kids.step()
		alive := tr.holders.advance(n, ns, uint32(depth), uint32(m), dst)
		tr.kids.step()
		depth += m
		if m < length || !alive {
			return ns.same(n.load())
		}
		at, s = id, ns
	}
	return s.same(tr.nodes[at].load())
}
