package kvindex

import (
	"cmp"
	"slices"
)

// A sweep drops the part of one rank's blocks that was stored longest ago, in
// steps between which anything else may happen:
//
//  1. A sample of the rank's names says which keys are in that part. A block's
//     key is its age, then its depth, so that of equally old ones the ends of
//     sequences go first.
//  2. All its names are looked at. Those in the part are gathered; the others
//     make the nodes above theirs as new as their own is. So whatever follows a
//     block that is to go is to go too.
//  3. What was gathered is removed, what is deepest first, so that at no time a
//     block stays without those before it. What has been stored again in the
//     meantime, or gone on from, stays.
//  4. Halves of the rank's table that have become empty enough are joined.
//
// Whatever is stored during it makes the blocks that it follows young.
type sweep struct {
	rank   *treeRank // nil: there is no sweep
	phase  func(*Tree)
	from   uint64 // mixed hash to go on from
	began  uint32 // Tree.clock
	limit  uint64 // least key that goes
	share  int    // names that are to go
	doomed doomed
	done   int // what it has achieved
}

const (
	shedShare   = 8   // one part of so many goes at a time
	scratchPart = 64  // of the budget is what doomed may take
	sampled     = 512 // buckets that are looked at for the keys
	segNames    = 512 // more than a segment can have, and a power of two
	dropStep    = 4 * ahead
	mergeStep   = 16
	// sparseBelow is how many names a segment has on average, where it pays to
	// join segments: most pairs of them have few enough.
	sparseBelow = mergeBelow / 2 * 9 / 10
)

func (s *sweep) stop() {
	*s = sweep{doomed: s.doomed[:0]}
}

// shedStep does a step of the sweep, or begins one, and reports false if no rank
// has anything to lose.
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

// sparse reports whether a table has become so empty that there is more to win
// by joining its segments than by dropping names.
func (n *names) sparse() bool { return n.segs > 1 && n.n < n.segs*sparseBelow }

// mostVictims is how many ranks are chosen at once: looking at all takes time
// where there are thousands.
const mostVictims = 256

// sheddable reports whether there is something to win from a rank.
func (t *Tree) sheddable(rk *treeRank) bool {
	return !rk.busy && rk.names.segs > 0 && (rk.barren != t.reliefs || rk.barrens < 2)
}

// victim returns a rank to shed from, nil if there is none: those with a sparse
// table, who lose nothing by it, else those that hold nearly most.
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

// beginSweep chooses a rank and what of it goes.
func (t *Tree) beginSweep() bool {
	rk := t.victim()
	if rk == nil {
		return false
	}
	t.credit = 0
	t.sweep.rank, t.sweep.began = rk, t.clock-1 // what this event has made young is
	t.sweep.share = max(1, min(rk.names.n/shedShare, t.maxDoomed()*3/4))
	if rk.names.sparse() {
		t.sweep.phase = (*Tree).mergeSome
		return true
	}
	t.sampleKeys()
	return true
}

func (t *Tree) maxDoomed() int { return t.cfg.MaxBytes / scratchPart / doomedBytes }

// keyOf returns a block's key; false if something was stored in its node since
// the sweep began. The counter of stores wraps: then old blocks are young once
// more.
func (t *Tree) keyOf(b blockID, n *node) (uint64, bool) {
	age, since := t.clock-n.stamp, t.clock-t.sweep.began
	if age < since {
		return 0, false
	}
	return uint64(age-since)<<32 | uint64(n.depth) + uint64(b-n.start()), true
}

// goes reports whether a block is in the part that goes.
func (t *Tree) goes(b blockID) bool {
	key, old := t.keyOf(b, &t.nodes[t.blocks.node(b)])
	return old && key >= t.sweep.limit
}

// sampleKeys decides from a sample which keys go.
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

// gatherSome looks at the names of a segment. What it needs of each is read in
// turns, so that the cache misses of a turn overlap.
func (t *Tree) gatherSome() {
	s := &t.sweep
	id, next := t.names.segmentAt(&s.rank.names, s.from)
	var all [segNames]condemned
	var of [segNames]nodeID
	k := 0
	for i, seg := 0, t.names.segment(id); i < len(seg); i++ {
		for j, v := range seg[i].val {
			// No branch: whether a place is free is a coin's toss.
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
	case len(s.doomed) > t.maxDoomed(): // the sample has misled us
		s.doomed = s.doomed[:0]
		s.share = max(1, s.share/2)
		t.sampleKeys()
	case next == 0:
		s.phase = (*Tree).dropSome
	default:
		s.from = next
	}
}

// dropSome removes some of what was gathered.
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

// drop removes a name from every tier.
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

// mergeSome joins segments.
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

// endSweep notes a rank of which nothing went: a first sweep may have done no
// more than make blocks as new as what follows them.
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

// freshen makes the nodes above no older than this one.
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

// protect makes young what a block that is gone on from follows, with itself.
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

// condemned is a name that is to go, with the block that it named.
type condemned struct {
	name  EngineHash
	block blockID
	depth uint32
}

const doomedBytes = 16

// doomed is a heap of names, of which the deepest is taken first.
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
