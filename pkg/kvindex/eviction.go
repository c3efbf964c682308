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
	phase  func(*eviction)
	from   uint64 // the mixed hash at which the next step continues
	began  uint32 // the value of trie.clock when the sweep began
	limit  uint64 // the lowest key that goes
	share  int    // how many names are to go
	doomed doomed
	done   int // how many names have gone, and segments been freed
}

// eviction makes room: it drops what was stored longest ago. It owns the sweep, and of a
// treeRank the fields barren and barrens.
type eviction struct {
	trie    *trie
	ledger  *ledger
	prompts *prompts
	budget  *budget
	ranks   *ranks

	sweep    sweep
	victims  []*treeRank // the ranks that the next sweeps shed from, last first
	shedding bool        // shedding has begun at the high mark and has not reached the low one; see pressed
	credit   int         // events that may be stored before pressed computes again
	reliefs  uint64      // counts calls that shed; the first is 1
	touched  uint32      // as in ledger
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

// sparse reports whether a table is so empty that joining its segments frees more than
// dropping names.
func (n *names) sparse() bool { return n.segs > 1 && n.n < n.segs*sparseBelow }

// mostVictims is how many ranks victim chooses at once: looking at all ranks is slow if
// there are thousands.
const mostVictims = 256

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

// Shedding begins when less than MaxBytes>>highWater is free, early enough that no
// event has to wait, and ends when MaxBytes>>lowWater is free.
const (
	highWater = 5
	lowWater  = 4
)

// usual is the most blocks that an event has in most cases.
const usual = 64

const (
	// shareOf is for how many of its blocks an event does one more step of shedding. A
	// step looks at some 300 names. So a sweep of a rank that holds everything ends
	// long before the room that is left at the high mark is used up.
	shareOf = 4
	// stepsAHold is how many steps are done before other writers get the lock.
	stepsAHold = 16
)

// recount makes pressed compute again, since an event may now take more, or has less room.
func (e *eviction) recount() { e.credit = 0 }

// relief begins a call that sheds.
func (e *eviction) relief() { e.reliefs++ }

// leave ends the sweep of a rank that is being cleared.
func (e *eviction) leave(rk *treeRank) {
	if e.sweep.rank == rk {
		e.sweep.stop()
	}
}

// pressed reports whether an event of n blocks has to do a share of shedding. If there
// is much room, one computation is good for many events (credit).
func (e *eviction) pressed(n int) bool {
	if n <= usual && e.credit > 0 {
		e.credit--
		return false
	}
	mark := highWater
	if e.shedding {
		mark = lowWater
	}
	spare := e.budget.spare() - e.budget.max>>mark
	e.shedding = e.budget.timesFits(n, spare) == 0
	if e.shedding || e.sweep.rank != nil || e.budget.tooWarm() {
		e.credit = 0
		return true
	}
	e.credit = e.budget.timesFits(usual, min(spare, max(e.budget.max, e.budget.stuck)-e.budget.taken()))
	return false
}

// due reports whether an event of n blocks has to do step i of shedding; the first is
// 1.
func (e *eviction) due(n, i int) bool {
	return e.budget.short(n) || i <= 1+n/shareOf && e.pressed(n)
}

// step does one step of the sweep, or begins a sweep. It returns false if no rank
// has anything to drop.
func (e *eviction) step() bool {
	switch {
	case e.budget.tooWarm():
		e.budget.giveBack()
	case e.sweep.rank != nil:
		e.sweep.phase(e)
	default:
		return e.begin()
	}
	return true
}

// sheddable reports whether a sweep of the rank may free something.
func (e *eviction) sheddable(rk *treeRank) bool {
	return !rk.busy && rk.names.segs > 0 && (rk.barren != e.reliefs || rk.barrens < 2)
}

// victim returns a rank to shed from, or nil if there is none. It prefers ranks with a
// sparse table, since joining segments drops no blocks; then ranks that hold nearly as
// much as the one that holds most.
func (e *eviction) victim() *treeRank {
	for len(e.victims) > 0 {
		last := len(e.victims) - 1
		rk := e.victims[last]
		e.victims = e.victims[:last]
		if e.ranks.all[rk.rank] == rk && e.sheddable(rk) {
			return rk
		}
	}
	most := 0
	for _, rk := range e.ranks.all {
		if !e.sheddable(rk) {
			continue
		}
		most = max(most, rk.names.n)
		if rk.names.sparse() && len(e.victims) < mostVictims {
			e.victims = append(e.victims, rk)
		}
	}
	if len(e.victims) == 0 {
		for _, rk := range e.ranks.all {
			if e.sheddable(rk) && rk.names.n >= most-most/shedShare && len(e.victims) < mostVictims {
				e.victims = append(e.victims, rk)
			}
		}
	}
	if len(e.victims) == 0 {
		return nil
	}
	return e.victim()
}

// begin begins a sweep of a rank. It returns false if there is no rank to sweep.
func (e *eviction) begin() bool {
	rk := e.victim()
	if rk == nil {
		return false
	}
	e.credit = 0
	e.sweep.rank, e.sweep.began = rk, e.trie.clock-1 // so blocks that the present event made young count as young
	e.sweep.share = max(1, min(rk.names.n/shedShare, e.maxDoomed()*3/4))
	if rk.names.sparse() {
		e.sweep.phase = (*eviction).mergeSome
		return true
	}
	e.sampleKeys()
	return true
}

func (e *eviction) maxDoomed() int { return e.budget.max / scratchPart / doomedBytes }

// keyOf returns the key of a block in node n, or false if something was stored in the
// node since the sweep began. When the counter of stores wraps, old blocks count as
// young again.
func (e *eviction) keyOf(b blockID, n *node) (uint64, bool) {
	age, since := e.trie.clock-n.stamp, e.trie.clock-e.sweep.began
	if age < since {
		return 0, false
	}
	return uint64(age-since)<<32 | uint64(n.depth) + uint64(b-n.start()), true
}

// goes reports whether the block's key is at or over the limit.
func (e *eviction) goes(b blockID) bool {
	key, old := e.keyOf(b, &e.trie.nodes[e.trie.blocks.node(b)])
	return old && key >= e.sweep.limit
}

// sampleKeys sets the limit from a sample of the rank's names.
func (e *eviction) sampleKeys() {
	s := &e.sweep
	seen, keys := 0, make([]uint64, 0, sampled*bucketKeys)
	e.ledger.names.sample(&s.rank.names, sampled, func(v named) {
		seen++
		if key, old := e.keyOf(v.block(), &e.trie.nodes[e.trie.blocks.node(v.block())]); old {
			keys = append(keys, key)
		}
	})
	if len(keys) == 0 {
		e.end()
		return
	}
	slices.SortFunc(keys, func(a, b uint64) int { return cmp.Compare(b, a) })
	s.limit = keys[min(seen*s.share/s.rank.names.n, len(keys)-1)]
	s.from, s.phase = 0, (*eviction).gatherSome
}

// gatherSome looks at the names of one segment. It reads what it needs of all names in
// turns, so that the cache misses of a turn overlap.
func (e *eviction) gatherSome() {
	s := &e.sweep
	id, next := e.ledger.names.segmentAt(&s.rank.names, s.from)
	var all [segNames]condemned
	var of [segNames]nodeID
	k := 0
	for i, seg := 0, e.ledger.names.segment(id); i < len(seg); i++ {
		for j, v := range seg[i].val {
			// Without a branch, since the processor cannot predict which places are
			// free.
			all[k%segNames] = condemned{name: seg[i].key[j], block: v.block()}
			k += int((v | -v) >> 31)
		}
	}
	for i := range all[:k] {
		of[i] = e.trie.blocks.node(all[i].block)
	}
	for _, id := range of[:k] {
		e.touched += e.trie.nodes[id].stamp
	}
	for _, id := range of[:k] {
		if up := e.trie.nodes[id].parent(); up != noParent {
			e.touched += e.trie.nodes[up].stamp
		}
	}
	for i, c := range all[:k] {
		if key, old := e.keyOf(c.block, &e.trie.nodes[of[i]]); old && key >= s.limit {
			c.depth = uint32(key)
			s.doomed.push(c)
		} else {
			e.trie.freshen(of[i])
		}
	}
	switch {
	case len(s.doomed) > e.maxDoomed(): // the sample was misleading: try with a smaller part
		s.doomed = s.doomed[:0]
		s.share = max(1, s.share/2)
		e.sampleKeys()
	case next == 0:
		s.phase = (*eviction).dropSome
	default:
		s.from = next
	}
}

// dropSome removes some of the gathered names, unless their blocks have become young.
func (e *eviction) dropSome() {
	s := &e.sweep
	rk := s.rank
	for range dropStep / ahead {
		var some [ahead]condemned
		k := 0
		for ; k < ahead && len(s.doomed) > 0; k++ {
			some[k] = s.doomed.pop()
		}
		if rk.names.n > 0 {
			for _, c := range some[:k] {
				e.touched += e.ledger.names.touch(&rk.names, c.name)
			}
		}
		for _, c := range some[:k] {
			if p := e.ledger.names.find(&rk.names, c.name); p.b != nil && p.val().block() == c.block && e.goes(c.block) {
				e.ledger.drop(rk, c.name, p)
				s.done++
			}
		}
	}
	if len(s.doomed) == 0 {
		s.from, s.phase = 0, (*eviction).mergeSome
	}
}

// mergeSome joins some segments of the table.
func (e *eviction) mergeSome() {
	s := &e.sweep
	for range mergeStep {
		s.done += e.ledger.names.merge(&s.rank.names, s.from)
		_, s.from = e.ledger.names.segmentAt(&s.rank.names, s.from)
		if s.from == 0 {
			e.end()
			return
		}
	}
}

// end ends the sweep and counts it against the rank if it freed nothing. The rank
// is then swept once more in this relief, since a first sweep may do no more than make
// blocks as new as what follows them.
func (e *eviction) end() {
	if rk := e.sweep.rank; e.sweep.done > 0 {
		rk.barrens = 0
	} else if rk.barren != e.reliefs {
		rk.barren, rk.barrens = e.reliefs, 1
	} else {
		rk.barrens++
	}
	e.sweep.stop()
	e.budget.stuck = 0
}

// protect makes the node of b, and the nodes above it, young, so that no sweep drops
// the blocks that an event continues from.
func (e *eviction) protect(b blockID) {
	if b == 0 {
		return
	}
	id := e.trie.blocks.node(b)
	e.trie.renew(id)
	for id = nodeID(e.trie.nodes[id].parent()); id != 0; id = nodeID(e.trie.nodes[id].parent()) {
		n := &e.trie.nodes[id]
		if key, old := e.keyOf(n.start(), n); !old || key>>32 < e.sweep.limit>>32 {
			return
		}
		e.trie.renew(id)
	}
}

// recallFor is called when nothing more can be shed. While n blocks cannot be stored,
// it ends the sending that was routed longest ago. It reports whether n blocks can be
// stored now.
func (e *eviction) recallFor(n int) bool {
	for e.budget.short(n) {
		oldest := e.prompts.sent.oldest()
		if oldest == 0 {
			return false
		}
		e.prompts.end(oldest)
	}
	return true
}
