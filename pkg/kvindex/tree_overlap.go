package kvindex

import (
	"runtime"

	"github.com/seed-60ae5743/baton/internal/invariants"
)

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
		if t.walk(chain, dst.Blocks[:cap(dst.Blocks)]) {
			return
		}
	}
	t.torn.Add(1)
	t.mu.Lock()
	defer t.mu.Unlock()
	dst.reset(n)
	t.walk(chain, dst.Blocks[:cap(dst.Blocks)])
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
func (t *Tree) walk(chain []LocalHash, dst []uint32) bool {
	var at nodeID
	s := t.nodes[0].load()
	for depth := 0; depth < len(chain); {
		id, ok := t.kid(at, uint64(chain[depth]))
		if !ok {
			return false
		}
		if id == 0 {
			return s.same(t.nodes[at].load())
		}
		t.step()
		n := &t.nodes[id]
		ns := n.load()
		t.step()
		place := n.place.Load()
		if ns.changing() || uint32(place) != uint32(at) || !s.same(t.nodes[at].load()) {
			return false
		}
		length := int(ns.length())
		start := int(place >> 32)
		if start+length > len(t.blocks.local) {
			return false
		}
		run := t.blocks.local[start : start+length]
		if rest := chain[depth:]; len(run) > len(rest) {
			run = run[:len(rest)]
		}
		t.step()
		m := 0
		for m < len(run) && LocalHash(run[m].Load()) == chain[depth+m] {
			m++
		}
		t.step()
		alive := t.advance(n, ns, uint32(depth), uint32(m), dst)
		t.step()
		if depth += m; m < length || !alive {
			return ns.same(n.load())
		}
		at, s = id, ns
	}
	return s.same(t.nodes[at].load())
}

// step is called between two reads of a query, so that a test can let a writer in
// there. Other builds do nothing.
func (t *Tree) step() {
	if invariants.Enabled && t.between != nil {
		t.between()
	}
}

// advance handles the slots that hold all of the chain up to depth: it adds what each
// of them holds of the node's first m blocks. It reports whether any slot holds all m.
func (t *Tree) advance(n *node, s state, depth, m uint32, dst []uint32) (alive bool) {
	// advanceCrowd overwrites its part of dst, so it comes first.
	if list := n.crowd.Load(); list != 0 {
		alive = t.advanceCrowd(list, depth, m, dst)
	}
	if c := min(s.cut(), m); c > 0 {
		if i := int(s.slot()); i < len(dst) && dst[i] == depth {
			dst[i] = depth + c
			alive = alive || c == m
		}
	}
	for i := range n.more {
		e := holder(n.more[i].Load())
		if c := min(e.cut(), m); c > 0 {
			if i := int(e.slot()); i < len(dst) && dst[i] == depth {
				dst[i] = depth + c
				alive = alive || c == m
			}
		}
	}
	return alive
}

// advanceCrowd is advance for the slots in the node's crowd, which list is.
func (t *Tree) advanceCrowd(list, depth, m uint32, dst []uint32) (alive bool) {
	if int(list) >= len(t.units) {
		return false
	}
	// A writer may have put the list to other use by now, so dst bounds what is read of
	// it.
	most := uint32(len(dst)/groupSlots/unitWords + 1)
	words := min(uint32(t.units[list][0].Load()), uint32(len(t.units))-list, most) * unitWords
	for g := uint32(1); g < words; g++ {
		id := uint32(t.units[list+g/unitWords][g%unitWords].Load())
		from := int(g-1) * groupSlots
		if id == 0 || int(id) >= len(t.units) || from+groupSlots > len(dst) {
			continue
		}
		to := (*[groupSlots]uint32)(dst[from:])
		var top uint64
		if depth == 0 {
			top = t.units[id].copyTo(to, uint64(m))
		} else {
			top = t.units[id].addTo(to, depth, m)
		}
		alive = alive || top >= uint64(m)
	}
	return alive
}

// copyTo writes the cuts of a group, each at most m, to a part of the answer that is
// still zero. It returns the largest.
func (u *unit) copyTo(to *[groupSlots]uint32, m uint64) (top uint64) {
	all := m * 0x1_0001_0001_0001 // a word whose four slots hold all m blocks, as most slots in a crowd do
	for i := range unitWords {
		w := u[i].Load()
		if w == 0 {
			continue
		}
		if w == all {
			n := uint32(m)
			to[4*i], to[4*i+1], to[4*i+2], to[4*i+3] = n, n, n, n
			top = m
			continue
		}
		a, b, c, d := min(w&laneMask, m), min(w>>16&laneMask, m), min(w>>32&laneMask, m), min(w>>48, m)
		top = max(top, a, b, c, d)
		to[4*i] = uint32(a)
		to[4*i+1] = uint32(b)
		to[4*i+2] = uint32(c)
		to[4*i+3] = uint32(d)
	}
	return top
}

// addTo adds its cut, at most m, to each slot of the group that holds all up to depth.
// It returns the largest amount added.
func (u *unit) addTo(to *[groupSlots]uint32, depth, m uint32) (top uint64) {
	for i := range unitWords {
		w := u[i].Load()
		for j := 4 * i; w != 0; j++ {
			if c := min(uint32(w&laneMask), m); c > 0 && to[j%groupSlots] == depth {
				to[j%groupSlots] = depth + c
				top = max(top, uint64(c))
			}
			w >>= 16
		}
	}
	return top
}
