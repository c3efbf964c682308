package kvindex

import (
	"cmp"
	"slices"
)

// bytesInUse is what the budget counts. Memory that was freed is kept for what
// comes next and not counted.
func (t *Tree) bytesInUse() int {
	return t.blocks.used*blockBytes + t.nodeIDs.used()*nodeBytes +
		t.names.segs.used()*segBytes + t.unitsUsed*unitBytes
}

// mostBytes is more than storing n blocks can take: a run with its slack, a
// node or three, as many new segments as names can fill, a crowd.
func (t *Tree) mostBytes(n int) int {
	crowd := int(numViews) * 2 * (t.slots.Len()/groupSlots/unitWords + 2)
	return 2*(n+maxEdge)*blockBytes + (n/minRest+4)*nodeBytes + (n/segBuckets+3)*segBytes + crowd*unitBytes
}

// short reports whether n blocks cannot be stored without shedding.
func (t *Tree) short(n int) bool {
	return t.bytesInUse()+t.mostBytes(n) > t.cfg.MaxBytes || t.blocks.used+2*(n+maxEdge) > len(t.blocks.local)
}

// hopeless reports whether n blocks are more than the whole budget: nothing is
// to be shed for them.
func (t *Tree) hopeless(n int) bool {
	return t.mostBytes(n) > t.cfg.MaxBytes || 2*(n+maxEdge) > len(t.blocks.local)
}

// makeRoom sheds until n blocks can be stored within the budget, and reports
// false if they cannot in an empty index.
func (t *Tree) makeRoom(n int) bool {
	for t.short(n) {
		var most *treeRank
		for _, rk := range t.ranks {
			if most == nil || rk.names.n > most.names.n || rk.names.n == most.names.n && rk.slot < most.slot {
				most = rk
			}
		}
		if most == nil || most.names.n == 0 { // no rank told of what is there
			if e := t.sent.oldest(); e != 0 {
				t.endSending(e)
				continue
			}
			return false
		}
		t.shed(most)
	}
	return true
}

// entry is a name with its value.
type entry struct {
	name EngineHash
	val  named
}

const (
	shedSample = 512
	shedShare  = 8 // one part of so many goes at a time
)

// shed drops the part of the rank's blocks that was stored longest ago. A node
// is as new as the newest of those below it, so that what follows a block goes
// before it or with it.
func (t *Tree) shed(rk *treeRank) {
	all := make([]entry, 0, rk.names.n)
	t.names.each(&rk.names, func(h EngineHash, v *named) {
		all = append(all, entry{h, *v})
		t.freshen(t.blocks.node(v.block()))
	})
	limit := t.ageToShed(all)
	t.names.take(&rk.names, t.work[0][:0])
	gone := t.work[0][:0]
	for _, e := range all {
		b := e.val.block()
		if t.age(b) < limit {
			v, _ := t.names.put(&rk.names, e.name)
			*v = e.val
			continue
		}
		gone = append(gone, b)
		for i := range rk.views {
			delete(rk.views[i].extra, b)
		}
		for tier := range numTiers {
			rk.stats.TierBlocks[tier] -= int(e.val.tiers() >> tier & 1)
		}
	}
	rk.lastBlock = 0
	rk.stats.Blocks -= len(gone)
	rk.stats.Shed += uint64(len(gone))
	t.work[0] = gone
	t.release(rk, t.sortBlocks())
}

// age is how many stores ago something was last stored in the block's node. The
// counter wraps.
func (t *Tree) age(b blockID) uint32 { return t.clock - t.nodes[t.blocks.node(b)].stamp }

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

// ageToShed returns the age from which blocks are in the oldest part, judged by
// a sample. At least one block is of that age.
func (t *Tree) ageToShed(all []entry) uint32 {
	step := len(all)/shedSample + 1
	ages := make([]uint32, 0, shedSample)
	for i := 0; i < len(all); i += step {
		ages = append(ages, t.age(all[i].val.block()))
	}
	slices.SortFunc(ages, func(a, b uint32) int { return cmp.Compare(b, a) })
	return ages[len(ages)/shedShare]
}
