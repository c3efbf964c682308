package kvindex

import "sync/atomic"

// A crowd is the holders of a node that have no place in the node itself. The cuts of
// 64 consecutive slots make a group: 16 words in one unit. A list has the unit of each
// group that is not empty. It takes one or more units; its word 0 is its length in
// units. Queries copy whole groups into their answer.

const (
	groupSlots = 64
	unitWords  = 16
	laneMask   = 0xffff
)

type unit [unitWords]atomic.Uint64

// groupAt returns the word of the list that has the unit of group g, or nil if the list
// is too short.
func (t *Tree) groupAt(list, g uint32) *atomic.Uint64 {
	if g+1 >= uint32(t.units[list][0].Load())*unitWords {
		return nil
	}
	return &t.units[list+(g+1)/unitWords][(g+1)%unitWords]
}

func lane(s Slot) (word, shift uint32) {
	return uint32(s) % groupSlots / 4, uint32(s) % 4 * 16
}

func (t *Tree) crowdCut(n *node, s Slot) uint32 {
	list := n.crowd.Load()
	if list == 0 {
		return 0
	}
	at := t.groupAt(list, uint32(s)/groupSlots)
	if at == nil || at.Load() == 0 {
		return 0
	}
	w, shift := lane(s)
	return uint32(t.units[at.Load()][w].Load()>>shift) & laneMask
}

// setCrowdCut changes the cut of a slot in the crowd. It adds the slot if it is new,
// and removes it if cut is 0.
func (t *Tree) setCrowdCut(n *node, s Slot, cut uint32) {
	list := n.crowd.Load()
	if list == 0 || t.groupAt(list, uint32(s)/groupSlots) == nil {
		list = t.widenCrowd(n, s)
	}
	at := t.groupAt(list, uint32(s)/groupSlots)
	if at.Load() == 0 {
		at.Store(uint64(t.newUnits(1)))
	}
	g := uint32(at.Load())
	w, shift := lane(s)
	word := &t.units[g][w]
	word.Store(word.Load()&^(laneMask<<shift) | uint64(cut)<<shift)
	if cut == 0 && t.emptyUnit(g) {
		st := n.begin()
		at.Store(0)
		t.freeUnits(g, 1)
		if t.emptyList(list) {
			t.dropList(n)
		}
		n.end(st)
	}
}

// widenCrowd gives the node a list that is long enough for the slot, and returns the
// list.
func (t *Tree) widenCrowd(n *node, s Slot) uint32 {
	need := max(uint32(s), uint32(t.slots.Len())) / groupSlots
	list := t.newList((need+1)/unitWords + 1)
	old := n.crowd.Load()
	if old == 0 {
		n.crowd.Store(list)
		return list
	}
	st := n.begin()
	for g := uint32(0); t.groupAt(old, g) != nil; g++ {
		t.groupAt(list, g).Store(t.groupAt(old, g).Load())
	}
	t.freeUnits(old, uint32(t.units[old][0].Load()))
	n.crowd.Store(list)
	n.end(st)
	return list
}

// copyCrowd copies the crowd of one node to another, which queries cannot see yet. Cuts
// above k become k.
func (t *Tree) copyCrowd(to, from *node, k uint32) {
	old := from.crowd.Load()
	if old == 0 {
		return
	}
	list := t.newList(uint32(t.units[old][0].Load()))
	for g := uint32(0); t.groupAt(old, g) != nil; g++ {
		src := uint32(t.groupAt(old, g).Load())
		if src == 0 {
			continue
		}
		dst := t.newUnits(1)
		t.groupAt(list, g).Store(uint64(dst))
		for i := range unitWords {
			t.units[dst][i].Store(eachLane(t.units[src][i].Load(), func(c uint64) uint64 { return min(c, uint64(k)) }))
		}
	}
	to.crowd.Store(list)
}

// cutCrowd reduces every cut of the crowd by k, since the node loses its first k
// blocks. The node must be between begin and end.
func (t *Tree) cutCrowd(n *node, k uint32) {
	list := n.crowd.Load()
	if list == 0 {
		return
	}
	for g := uint32(0); t.groupAt(list, g) != nil; g++ {
		at := t.groupAt(list, g)
		id := uint32(at.Load())
		if id == 0 {
			continue
		}
		for i := range unitWords {
			word := &t.units[id][i]
			word.Store(eachLane(word.Load(), func(c uint64) uint64 { return c - min(c, uint64(k)) }))
		}
		if t.emptyUnit(id) {
			at.Store(0)
			t.freeUnits(id, 1)
		}
	}
	if t.emptyList(list) {
		t.dropList(n)
	}
}

// dropCrowd frees the crowd. The node must be between begin and end.
func (t *Tree) dropCrowd(n *node) {
	list := n.crowd.Load()
	if list == 0 {
		return
	}
	for g := uint32(0); t.groupAt(list, g) != nil; g++ {
		if id := uint32(t.groupAt(list, g).Load()); id != 0 {
			t.freeUnits(id, 1)
		}
	}
	t.dropList(n)
}

func (t *Tree) dropList(n *node) {
	list := n.crowd.Load()
	n.crowd.Store(0)
	t.freeUnits(list, uint32(t.units[list][0].Load()))
}

func eachLane(w uint64, f func(uint64) uint64) (out uint64) {
	for shift := 0; shift < 64; shift += 16 {
		out |= f(w>>shift&laneMask) << shift
	}
	return out
}

func (t *Tree) emptyUnit(id uint32) bool {
	for i := range unitWords {
		if t.units[id][i].Load() != 0 {
			return false
		}
	}
	return true
}

func (t *Tree) emptyList(list uint32) bool {
	for g := uint32(0); ; g++ {
		at := t.groupAt(list, g)
		if at == nil {
			return true
		}
		if at.Load() != 0 {
			return false
		}
	}
}

func (t *Tree) newList(n uint32) uint32 {
	list := t.newUnits(n)
	t.units[list][0].Store(uint64(n))
	return list
}

// newUnits returns the first of n consecutive units, all zero.
func (t *Tree) newUnits(n uint32) uint32 {
	for int(n) >= len(t.unitIDs) {
		t.unitIDs = append(t.unitIDs, nil)
	}
	t.unitsUsed += int(n)
	if free := t.unitIDs[n]; len(free) > 0 {
		id := free[len(free)-1]
		t.unitIDs[n] = free[:len(free)-1]
		return id
	}
	id := t.unitNext
	t.unitNext += n
	return id
}

func (t *Tree) freeUnits(id, n uint32) {
	for i := range n {
		for w := range unitWords {
			t.units[id+i][w].Store(0)
		}
	}
	t.unitsUsed -= int(n)
	t.unitIDs[n] = append(t.unitIDs[n], id)
}
