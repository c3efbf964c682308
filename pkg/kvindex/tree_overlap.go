package kvindex

import (
	"runtime"

	"github.com/seed-60ae5743/baton/internal/invariants"
)

const (
	// tries is how often a query begins anew because a writer changed what it
	// was reading, before it takes the writers' lock.
	tries = 64
	// eager is how often it does so at once.
	eager = 4
)

// Overlap implements [Index]. It takes no lock: a query that met a change in
// the making begins anew. Of each rank the answer is such that each of the
// blocks was held, and the one after them was not, at some instant of the call.
func (t *Tree) Overlap(chain []LocalHash, dst *Overlap) {
	n := t.slots.Len()
	for i := range tries {
		if i >= eager {
			runtime.Gosched() // who tore it may be waiting for this processor
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

// walk follows the chain down the tree and writes how far each slot has come.
// It reports false, with dst of no use, where it may have read a change half
// done. Each node matches a block or ends the walk, so that it ends whatever it
// reads; every number read is that of some node or block, so that it reads
// within the arenas.
//
// A node counts if its version and length are the same before and after it was
// read, and the child was found, and had this parent, in between: then the
// child's blocks followed the node's at that time.
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

// step is where a test lets a writer in between two reads of a query. It is
// nothing in other builds.
func (t *Tree) step() {
	if invariants.Enabled && t.between != nil {
		t.between()
	}
}

// advance moves the slots that have come to depth on by what they hold of the
// node's first m blocks, and reports whether any holds all of them.
func (t *Tree) advance(n *node, s state, depth, m uint32, dst []uint32) (alive bool) {
	// A crowd's answer is copied over what is there, so it comes first.
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

// advanceCrowd does so for the holders of a crowd.
func (t *Tree) advanceCrowd(list, depth, m uint32, dst []uint32) (alive bool) {
	if int(list) >= len(t.units) {
		return false
	}
	// The list may be no list any more: the answer bounds what is read of it.
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

// copyTo writes the cuts of a group, at most m, where nothing was written
// before; and returns the largest.
func (u *unit) copyTo(to *[groupSlots]uint32, m uint64) (top uint64) {
	all := m * 0x1_0001_0001_0001 // four ranks that hold all of it, as most do of what many hold
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

// addTo moves on those of a group that have come to depth, and returns the
// largest step.
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
