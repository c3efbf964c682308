package kvindex

import (
	"cmp"
	"slices"
)

// A sweep drops that part of one rank's blocks that was stored longest ago. It works in
// steps; between two steps anything else may happen:
//
//  1. A sample of the rank's names gives the limit: the lowest key that goes. The
//     key of a block is its age and then its depth, so that among blocks of one age
//     the ends of sequences go first.
//  2. Every name of the rank is looked at. Blocks at or over the limit are
//     gathered. Each other block makes the nodes above its node as new as its own,
//     so that no block stays while a block before it goes.
//  3. The gathered blocks are removed, deepest first, so that at no time a
//     block stays without those before it. A block stays after all if it has been
//     stored again meanwhile, or a new block follows it.
//  4. Segments of the rank's table that have become nearly empty are joined.
//
// What is stored during the sweep makes the nodes above it young.
type sweep struct {
	rank   *treeRank // nil: there is no sweep
	phase  func(*Tree)
	from   uint64 // the mixed hash at which the next step continues
	began  uint32 // the value of Tree.clock when the sweep began
	limit  uint64 // the lowest key that goes
	share  int    // how many names are to go
	doomed doomed
	done   int // how many names have gone, and segments been freed
}

const (
	shedShare   = 8   // a sweep drops one part in so many
	scratchPart = 64  // the part of the budget that the gathered names may take
	sampled     = 512 // buckets that the sample reads
	segNames    = 512 // more than the names of a segment, and a power of two
	dropStep    = 4 * ahead
	mergeStep   = 16
	// sparseBelow is the average of names a segment below which joining segments pays:
	// most pairs of segments then have few enough names.
	sparseBelow = mergeBelow / 2 * 9 / 10
)

func (s *sweep) stop() {
	*s = sweep{doomed: s.doomed[:0]}
}

// shedStep does one step of the sweep, or begins a sweep. It returns false if no rank
// has anything to drop.
func (t *Tree) shedStep() bool {
	switch {
	case t.tooWarm():
		t.giveBack()
	case t.sweep.rank != nil:
		t.sweep.phase(t)
	default:
		return t.beginSweep()
	}
	return true
}

// sparse reports whether a table is so empty that joining its segments frees more than
// dropping names.
func (n *names) sparse() bool { return n.segs > 1 && n.n < n.segs*sparseBelow }

// mostVictims is how many ranks victim chooses at once: looking at all ranks is slow if
// there are thousands.
const mostVictims = 256

// sheddable reports whether a sweep of the rank may free something.
func (t *Tree) sheddable(rk *treeRank) bool {
	return !rk.busy && rk.names.segs > 0 && (rk.barren != t.reliefs || rk.barrens < 2)
}

// victim returns a rank to shed from, or nil if there is none. It prefers ranks with a
// sparse table, since joining segments drops no blocks; then ranks that hold nearly as
// much as the one that holds most.
func (t *Tree) victim() *treeRank {
	for len(t.victims) > 0 {
		last := len(t.victims) - 1
		rk := t.victims[last]
		t.victims = t.victims[:last]
		if t.ranks[rk.rank] == rk && t.sheddable(rk) {
			return rk
		}
	}
	most := 0
	for _, rk := range t.ranks {
		if !t.sheddable(rk) {
			continue
		}
		if most = max(most, rk.names.n); rk.names.sparse() && len(t.victims) < mostVictims {
			t.victims = append(t.victims, rk)
		}
	}
	if len(t.victims) == 0 {
		for _, rk := range t.ranks {
			if t.sheddable(rk) && rk.names.n >= most-most/shedShare && len(t.victims) < mostVictims {
				t.victims = append(t.victims, rk)
			}
		}
	}
	if len(t.victims) == 0 {
		return nil
	}
	return t.victim()
}

// beginSweep begins a sweep of a rank. It returns false if there is no rank to sweep.
func (t *Tree) beginSweep() bool {
	rk := t.victim()
	if rk == nil {
		return false
	}
	t.credit = 0
	t.sweep.rank, t.sweep.began = rk, t.clock-1 // so blocks that the present event made young count as young
	t.sweep.share = max(1, min(rk.names.n/shedShare, t.maxDoomed()*3/4))
	if rk.names.sparse() {
		t.sweep.phase = (*Tree).mergeSome
		return true
	}
	t.sampleKeys()
	return true
}

func (t *Tree) maxDoomed() int { return t.cfg.MaxBytes / scratchPart / doomedBytes }

// keyOf returns the key of a block in node n, or false if something was stored in the
// node since the sweep began. When the counter of stores wraps, old blocks count as
// young again.
func (t *Tree) keyOf(b blockID, n *node) (uint64, bool) {
	age, since := t.clock-n.stamp, t.clock-t.sweep.began
	if age < since {
		return 0, false
	}
	return uint64(age-since)<<32 | uint64(n.depth) + uint64(b-n.start()), true
}

// goes reports whether the block's key is at or over the limit.
func (t *Tree) goes(b blockID) bool {
	key, old := t.keyOf(b, &t.nodes[t.blocks.node(b)])
	return old && key >= t.sweep.limit
}

// sampleKeys sets the limit from a sample of the rank's names.
func (t *Tree) sampleKeys() {
	s := &t.sweep
	seen, keys := 0, make([]uint64, 0, sampled*bucketKeys)
	t.names.sample(&s.rank.names, sampled, func(v named) {
		seen++
		if key, old := t.keyOf(v.block(), &t.nodes[t.blocks.node(v.block())]); old {
			keys = append(keys, key)
		}
	})
	if len(keys) == 0 {
		t.endSweep()
		return
	}
	slices.SortFunc(keys, func(a, b uint64) int { return cmp.Compare(b, a) })
	s.limit = keys[min(seen*s.share/s.rank.names.n, len(keys)-1)]
	s.from, s.phase = 0, (*Tree).gatherSome
}

// gatherSome looks at the names of one segment. It reads what it needs of all names in
// turns, so that the cache misses of a turn overlap.
func (t *Tree) gatherSome() {
	s := &t.sweep
	id, next := t.names.segmentAt(&s.rank.names, s.from)
	var all [segNames]condemned
	var of [segNames]nodeID
	k := 0
	for i, seg := 0, t.names.segment(id); i < len(seg); i++ {
		for j, v := range seg[i].val {
			// Without a branch, since the processor cannot predict which places are
			// free.
			all[k%segNames] = condemned{name: seg[i].key[j], block: v.block()}
			k += int((v | -v) >> 31)
		}
	}
	for i := range all[:k] {
		of[i] = t.blocks.node(all[i].block)
	}
	for _, id := range of[:k] {
		t.touched += t.nodes[id].stamp
	}
	for _, id := range of[:k] {
		if up := t.nodes[id].parent(); up != noParent {
			t.touched += t.nodes[up].stamp
		}
	}
	for i, c := range all[:k] {
		if key, old := t.keyOf(c.block, &t.nodes[of[i]]); old && key >= s.limit {
			c.depth = uint32(key)
			s.doomed.push(c)
		} else {
			t.freshen(of[i])
		}
	}
	switch {
	case len(s.doomed) > t.maxDoomed(): // the sample was misleading: try with a smaller part
		s.doomed = s.doomed[:0]
		s.share = max(1, s.share/2)
		t.sampleKeys()
	case next == 0:
		s.phase = (*Tree).dropSome
	default:
		s.from = next
	}
}

// dropSome removes some of the gathered names, unless their blocks have become young.
func (t *Tree) dropSome() {
	s := &t.sweep
	rk := s.rank
	for range dropStep / ahead {
		var some [ahead]condemned
		k := 0
		for ; k < ahead && len(s.doomed) > 0; k++ {
			some[k] = s.doomed.pop()
		}
		if rk.names.n > 0 {
			for _, c := range some[:k] {
				t.touched += t.names.touch(&rk.names, c.name)
			}
		}
		for _, c := range some[:k] {
			if p := t.names.find(&rk.names, c.name); p.b != nil && p.val().block() == c.block && t.goes(c.block) {
				t.drop(rk, c.name, p)
			}
		}
	}
	if len(s.doomed) == 0 {
		s.from, s.phase = 0, (*Tree).mergeSome
	}
}

// drop removes a name from every tier. It counts as Shed, not as Removed.
func (t *Tree) drop(rk *treeRank, h EngineHash, p spot) {
	removed := rk.stats.Removed
	if !t.takeLast(rk, h, p, Device) {
		tiers := p.val().tiers()
		for tier := range numTiers {
			if tiers>>tier&1 != 0 {
				t.take(rk, h, p, tier)
			}
		}
	}
	rk.stats.Removed = removed
	rk.stats.Shed++
	t.sweep.done++
}

// mergeSome joins some segments of the table.
func (t *Tree) mergeSome() {
	s := &t.sweep
	for range mergeStep {
		s.done += t.names.merge(&s.rank.names, s.from)
		if _, s.from = t.names.segmentAt(&s.rank.names, s.from); s.from == 0 {
			t.endSweep()
			return
		}
	}
}

// endSweep ends the sweep and counts it against the rank if it freed nothing. The rank
// is then swept once more in this relief, since a first sweep may do no more than make
// blocks as new as what follows them.
func (t *Tree) endSweep() {
	if rk := t.sweep.rank; t.sweep.done > 0 {
		rk.barrens = 0
	} else if rk.barren != t.reliefs {
		rk.barren, rk.barrens = t.reliefs, 1
	} else {
		rk.barrens++
	}
	t.sweep.stop()
	t.stuck = 0
}

// freshen makes the nodes above no older than node id.
func (t *Tree) freshen(id nodeID) {
	for stamp := t.nodes[id].stamp; id != 0; {
		id = nodeID(t.nodes[id].parent())
		n := &t.nodes[id]
		if id == 0 || t.clock-n.stamp <= t.clock-stamp {
			return
		}
		n.stamp = stamp
	}
}

// protect makes the node of b, and the nodes above it, young, so that no sweep drops
// the blocks that an event continues from.
func (t *Tree) protect(b blockID) {
	if b == 0 {
		return
	}
	id := t.blocks.node(b)
	t.nodes[id].stamp = t.clock
	for id = nodeID(t.nodes[id].parent()); id != 0; id = nodeID(t.nodes[id].parent()) {
		n := &t.nodes[id]
		if key, old := t.keyOf(n.start(), n); !old || key>>32 < t.sweep.limit>>32 {
			return
		}
		n.stamp = t.clock
	}
}

// condemned is a name that a sweep has gathered, and the block that it named.
type condemned struct {
	name  EngineHash
	block blockID
	depth uint32
}

const doomedBytes = 16

// doomed is a heap of the gathered names; the deepest comes first.
type doomed []condemned

func (d *doomed) push(c condemned) {
	*d = append(*d, c)
	h := *d
	i := len(h) - 1
	for i > 0 && h[(i-1)/2].depth < c.depth {
		h[i] = h[(i-1)/2]
		i = (i - 1) / 2
	}
	h[i] = c
}

func (d *doomed) pop() condemned {
	h := *d
	top, last := h[0], h[len(h)-1]
	h = h[:len(h)-1]
	*d = h
	i := 0
	for {
		kid := 2*i + 1
		if kid >= len(h) {
			break
		}
		if kid+1 < len(h) && h[kid+1].depth > h[kid].depth {
			kid++
		}
		if h[kid].depth <= last.depth {
			break
		}
		h[i] = h[kid]
		i = kid
	}
	if len(h) > 0 {
		h[i] = last
	}
	return top
}
