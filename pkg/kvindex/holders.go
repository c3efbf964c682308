package kvindex

import (
	"iter"
	"sync/atomic"
)

// A crowd is the holders of a node that have no place in the node itself. The cuts of
// 64 consecutive slots make a group: 16 words in one unit. A list has the unit of each
// group that is not empty. It takes one or more units; its word 0 is its length in
// units. Queries copy whole groups into their answer.

const (
	groupSlots = 64
	unitWords  = 16
	laneMask   = 0xffff
)

// holders says how many of a node's first blocks count for a slot. It owns the words more
// and crowd of each node, the first holder in the word state, and the units.
type holders struct {
	slots *Slots
	units []unit // queries read them without a lock

	// Writers only.
	free [][]uint32 // free units; free[n] lists those of n units in a row
	next uint32     // units from here on were never handed out
	used int
}

type unit [unitWords]atomic.Uint64

func lane(s Slot) (word, shift uint32) {
	return uint32(s) % groupSlots / 4, uint32(s) % 4 * 16
}

func eachLane(w uint64, f func(uint64) uint64) (out uint64) {
	for shift := 0; shift < 64; shift += 16 {
		out |= f(w>>shift&laneMask) << shift
	}
	return out
}

// groupAt returns the word of the list that has the unit of group g, or nil if the list
// is too short.
func (h *holders) groupAt(list, g uint32) *atomic.Uint64 {
	if g+1 >= uint32(h.units[list][0].Load())*unitWords {
		return nil
	}
	return &h.units[list+(g+1)/unitWords][(g+1)%unitWords]
}

// groups are the groups of a list that have a unit, each with the list's word for it.
func (h *holders) groups(list uint32) iter.Seq2[uint32, *atomic.Uint64] {
	return func(yield func(uint32, *atomic.Uint64) bool) {
		for g := uint32(0); ; g++ {
			at := h.groupAt(list, g)
			if at == nil || at.Load() != 0 && !yield(g, at) {
				return
			}
		}
	}
}

func (h *holders) crowdCut(n *node, s Slot) uint32 {
	list := n.crowd.Load()
	if list == 0 {
		return 0
	}
	at := h.groupAt(list, uint32(s)/groupSlots)
	if at == nil || at.Load() == 0 {
		return 0
	}
	w, shift := lane(s)
	return uint32(h.units[at.Load()][w].Load()>>shift) & laneMask
}

// setCrowdCut changes the cut of a slot in the crowd. It adds the slot if it is new,
// and removes it if cut is 0.
func (h *holders) setCrowdCut(n *node, s Slot, cut uint32) {
	list := n.crowd.Load()
	if list == 0 || h.groupAt(list, uint32(s)/groupSlots) == nil {
		list = h.widen(n, s)
	}
	at := h.groupAt(list, uint32(s)/groupSlots)
	if at.Load() == 0 {
		at.Store(uint64(h.newUnits(1)))
	}
	g := uint32(at.Load())
	w, shift := lane(s)
	word := &h.units[g][w]
	word.Store(word.Load()&^(laneMask<<shift) | uint64(cut)<<shift)
	if cut == 0 && h.emptyUnit(g) {
		st := n.begin()
		at.Store(0)
		h.freeUnits(g, 1)
		if h.emptyList(list) {
			h.dropList(n)
		}
		n.end(st)
	}
}

// widen gives the node a list that is long enough for the slot, and returns the
// list.
func (h *holders) widen(n *node, s Slot) uint32 {
	need := max(uint32(s), uint32(h.slots.Len())) / groupSlots
	list := h.newList((need+1)/unitWords + 1)
	old := n.crowd.Load()
	if old == 0 {
		n.crowd.Store(list)
		return list
	}
	st := n.begin()
	for g, at := range h.groups(old) {
		h.groupAt(list, g).Store(at.Load())
	}
	h.freeUnits(old, uint32(h.units[old][0].Load()))
	n.crowd.Store(list)
	n.end(st)
	return list
}

// clear makes a node that queries cannot see one that has no holder.
func (h *holders) clear(n *node) {
	for i := range n.more {
		if n.more[i].Load() != 0 {
			n.more[i].Store(0)
		}
	}
}

// copyTo gives the node to, which queries cannot see yet, the holders of another apart
// from the first. Cuts above k become k.
func (h *holders) copyTo(to, from *node, k uint32) {
	for i := range from.more {
		e := holder(from.more[i].Load())
		to.more[i].Store(uint32(holderOf(e.slot(), min(e.cut(), k))))
	}
	h.copyCrowd(to, from, k)
}

// reduce takes k off every cut apart from the first holder's, since the node loses its
// first k blocks. The node must be between begin and end.
func (h *holders) reduce(n *node, k uint32) {
	for i := range n.more {
		e := holder(n.more[i].Load())
		n.more[i].Store(uint32(holderOf(e.slot(), e.cut()-min(e.cut(), k))))
	}
	h.cutCrowd(n, k)
}

// copyCrowd copies the crowd of one node to another, which queries cannot see yet. Cuts
// above k become k.
func (h *holders) copyCrowd(to, from *node, k uint32) {
	old := from.crowd.Load()
	if old == 0 {
		return
	}
	list := h.newList(uint32(h.units[old][0].Load()))
	for g, at := range h.groups(old) {
		src, dst := at.Load(), h.newUnits(1)
		h.groupAt(list, g).Store(uint64(dst))
		for i := range unitWords {
			h.units[dst][i].Store(eachLane(h.units[src][i].Load(), func(c uint64) uint64 { return min(c, uint64(k)) }))
		}
	}
	to.crowd.Store(list)
}

// cutCrowd reduces every cut of the crowd by k, since the node loses its first k
// blocks. The node must be between begin and end.
func (h *holders) cutCrowd(n *node, k uint32) {
	list := n.crowd.Load()
	if list == 0 {
		return
	}
	for _, at := range h.groups(list) {
		id := uint32(at.Load())
		for i := range unitWords {
			word := &h.units[id][i]
			word.Store(eachLane(word.Load(), func(c uint64) uint64 { return c - min(c, uint64(k)) }))
		}
		if h.emptyUnit(id) {
			at.Store(0)
			h.freeUnits(id, 1)
		}
	}
	if h.emptyList(list) {
		h.dropList(n)
	}
}

// dropCrowd frees the crowd. The node must be between begin and end.
func (h *holders) dropCrowd(n *node) {
	list := n.crowd.Load()
	if list == 0 {
		return
	}
	for _, at := range h.groups(list) {
		h.freeUnits(uint32(at.Load()), 1)
	}
	h.dropList(n)
}

func (h *holders) dropList(n *node) {
	list := n.crowd.Load()
	n.crowd.Store(0)
	h.freeUnits(list, uint32(h.units[list][0].Load()))
}

func (h *holders) emptyUnit(id uint32) bool {
	for i := range unitWords {
		if h.units[id][i].Load() != 0 {
			return false
		}
	}
	return true
}

func (h *holders) emptyList(list uint32) bool {
	for range h.groups(list) {
		return false
	}
	return true
}

func (h *holders) newList(n uint32) uint32 {
	list := h.newUnits(n)
	h.units[list][0].Store(uint64(n))
	return list
}

// newUnits returns the first of n consecutive units, all zero.
func (h *holders) newUnits(n uint32) uint32 {
	for int(n) >= len(h.free) {
		h.free = append(h.free, nil)
	}
	h.used += int(n)
	if free := h.free[n]; len(free) > 0 {
		id := free[len(free)-1]
		h.free[n] = free[:len(free)-1]
		return id
	}
	id := h.next
	h.next += n
	return id
}

func (h *holders) freeUnits(id, n uint32) {
	for i := range n {
		for w := range unitWords {
			h.units[id+i][w].Store(0)
		}
	}
	h.used -= int(n)
	h.free[n] = append(h.free[n], id)
}

// cut returns how many of the node's first blocks count for the slot.
func (h *holders) cut(n *node, slot Slot) uint32 {
	if s := n.load(); s.cut() > 0 && s.slot() == slot {
		return s.cut()
	}
	for i := range n.more {
		if e := holder(n.more[i].Load()); e != 0 && e.slot() == slot {
			return e.cut()
		}
	}
	return h.crowdCut(n, slot)
}

// set changes what cut returns. A holder keeps its place in the node until it is
// gone, so that a query which reads the places in order cannot miss it.
func (h *holders) set(n *node, slot Slot, cut uint32) {
	s := n.load()
	if s.cut() > 0 && s.slot() == slot {
		n.state.Store(uint64(s.withHolder(slot, cut)))
		return
	}
	free := -1
	for i := range n.more {
		e := holder(n.more[i].Load())
		if e == 0 {
			free = i
		} else if e.slot() == slot {
			n.more[i].Store(uint32(holderOf(slot, cut)))
			return
		}
	}
	switch {
	case h.crowdCut(n, slot) > 0:
		h.setCrowdCut(n, slot, cut)
	case cut == 0:
	case s.cut() == 0:
		n.state.Store(uint64(s.withHolder(slot, cut)))
	case free >= 0:
		n.more[free].Store(uint32(holderOf(slot, cut)))
	default:
		h.setCrowdCut(n, slot, cut)
	}
}
