package kvindex

import (
	"sync"
	"sync/atomic"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Slot is a small dense number of an attached rank. When no index has the rank any
// more, the slot is used again, the one unused for longest first. A caller that keeps
// slots beyond one request must look at [Slots.Generation].
type Slot uint32

// Slots numbers ranks. Indexes that share a Slots share the numbering. A rank keeps its
// slot as long as one of them has it. Safe for concurrent use. The zero value is not
// ready: use NewSlots.
type Slots struct {
	generation atomic.Uint64
	length     atomic.Int64 // the length of refs

	// mu guards the fields below. Nothing is called with mu held, and indexes take it
	// while they hold their own lock.
	mu     sync.RWMutex
	byRank map[worker.Rank]Slot
	refs   []slotRefs // by Slot
	free   []Slot     // first in, first out
	// View v of the ranks of a group of 64 slots has 64 slots of its own. views[v] has the
	// first of these for each group of ranks; 0: the group has none yet. views[OnDevice] is
	// not used: a rank's own slot stands for it.
	views [numViews][]Slot
}

type slotRefs struct {
	rank worker.Rank
	refs int // 0: free; viewSlot: the slot of a view
}

// viewSlot is the value of slotRefs.refs for the slot of a view, which is never freed.
const viewSlot = -1

// NewSlots returns an empty table.
func NewSlots() *Slots { return &Slots{byRank: make(map[worker.Rank]Slot)} }

// Slot returns the slot of a rank. False means that no index has the rank.
func (t *Slots) Slot(r worker.Rank) (Slot, bool) {
	t.mu.RLock()
	s, ok := t.byRank[r]
	t.mu.RUnlock()
	return s, ok
}

// View returns the slot of view v of the rank that has the slot s. False means that no
// rank of its group of 64 has needed the view. When the first one does, all 64 slots of the
// view are made, in the order of the ranks' slots, and they stay. So a rank may have a slot
// of a view in which it has no block.
func (t *Slots) View(s Slot, v View) (Slot, bool) {
	if v == OnDevice {
		return s, true
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.viewLocked(s, v)
}

func (t *Slots) viewLocked(s Slot, v View) (Slot, bool) {
	if g := int(s / groupSlots); g < len(t.views[v]) && t.views[v][g] != 0 {
		return t.views[v][g] + s%groupSlots, true
	}
	return 0, false
}

// needView is View, but adds the slots for the group if there are none.
func (t *Slots) needView(s Slot, v View) Slot {
	t.mu.Lock()
	defer t.mu.Unlock()
	if x, ok := t.viewLocked(s, v); ok {
		return x
	}
	for len(t.refs)%groupSlots != 0 { // groups are aligned, as in a crowd
		t.free = append(t.free, Slot(len(t.refs)))
		t.refs = append(t.refs, slotRefs{})
	}
	g, first := int(s/groupSlots), Slot(len(t.refs))
	for range groupSlots {
		t.refs = append(t.refs, slotRefs{refs: viewSlot})
	}
	for len(t.views[v]) <= g {
		t.views[v] = append(t.views[v], 0)
	}
	t.views[v][g] = first
	t.length.Store(int64(len(t.refs)))
	t.generation.Add(1)
	return first + s%groupSlots
}

// Len returns the number of slots: one more than the highest.
func (t *Slots) Len() int { return int(t.length.Load()) }

// Generation changes when a rank gains or loses its slot, or a group of ranks gains a
// view. Slots that were read after a call are valid as long as Generation returns the
// same.
func (t *Slots) Generation() uint64 { return t.generation.Load() }

func (t *Slots) acquire(r worker.Rank) Slot {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, ok := t.byRank[r]
	if !ok {
		if len(t.free) > 0 {
			s, t.free = t.free[0], t.free[1:]
			t.refs[s] = slotRefs{rank: r}
		} else {
			s = Slot(len(t.refs))
			t.refs = append(t.refs, slotRefs{rank: r})
			t.length.Store(int64(len(t.refs)))
		}
		t.byRank[r] = s
		t.generation.Add(1)
	}
	t.refs[s].refs++
	return s
}

func (t *Slots) release(s Slot) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := &t.refs[s]
	e.refs--
	if e.refs == 0 {
		delete(t.byRank, e.rank)
		*e = slotRefs{}
		t.free = append(t.free, s)
		t.generation.Add(1)
	}
}
