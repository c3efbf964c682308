package oracle

import (
	"fmt"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

const (
	numViews  = kvindex.Routed + 1
	toldViews = kvindex.Routed // the views before Routed are filled by events
	numTiers  = kvindex.External + 1
	groupSize = 64
)

// Numbers says which slot each rank has in each view, by the rules of [kvindex.Slots]. Not
// safe while the Map changes.
type Numbers struct {
	byRank map[worker.Rank]kvindex.Slot
	free   []kvindex.Slot // first in, first out
	length int
	// views has the first slot of each view for each group of 64 ranks that needs it.
	views [numViews]map[kvindex.Slot]kvindex.Slot
}

func newNumbers() Numbers {
	n := Numbers{byRank: make(map[worker.Rank]kvindex.Slot)}
	for v := range n.views {
		n.views[v] = make(map[kvindex.Slot]kvindex.Slot)
	}
	return n
}

// Slot returns the slot of a rank that the Map knows, attached or not.
func (n *Numbers) Slot(r worker.Rank) (kvindex.Slot, bool) {
	s, ok := n.byRank[r]
	return s, ok
}

// Len returns the number of slots.
func (n *Numbers) Len() int { return n.length }

// View returns the slot of a view of the rank that has the slot s, if its group has the
// view.
func (n *Numbers) View(s kvindex.Slot, v kvindex.View) (kvindex.Slot, bool) {
	if v == kvindex.OnDevice {
		return s, true
	}
	first, ok := n.views[v][s/groupSize]
	return first + s%groupSize, ok
}

// Held reads an answer for the rank that has the slot s.
func (n *Numbers) Held(s kvindex.Slot, o *kvindex.Overlap) kvindex.Held {
	at := func(v kvindex.View) uint32 {
		if x, ok := n.View(s, v); ok {
			return o.At(x)
		}
		return 0
	}
	device := at(kvindex.OnDevice)
	host := max(device, at(kvindex.ToHost))
	disk := max(host, at(kvindex.ToDisk))
	return kvindex.Held{
		Device: device, Host: host - device, Disk: disk - host, External: at(kvindex.OnExternal), Routed: at(kvindex.Routed),
	}
}

func (n *Numbers) acquire(r worker.Rank) kvindex.Slot {
	if len(n.free) == 0 {
		n.free = append(n.free, kvindex.Slot(n.length))
		n.length++
	}
	s := n.free[0]
	n.free, n.byRank[r] = n.free[1:], s
	return s
}

func (n *Numbers) release(r worker.Rank) {
	n.free = append(n.free, n.byRank[r])
	delete(n.byRank, r)
}

// needView is View, but makes the view for the group if there is none.
func (n *Numbers) needView(s kvindex.Slot, v kvindex.View) kvindex.Slot {
	if x, ok := n.View(s, v); ok {
		return x
	}
	for ; n.length%groupSize != 0; n.length++ { // groups are aligned
		n.free = append(n.free, kvindex.Slot(n.length))
	}
	n.views[v][s/groupSize] = kvindex.Slot(n.length)
	n.length += groupSize
	x, _ := n.View(s, v)
	return x
}

// check returns an error for the first fault of I1, or nil: each slot is a rank's, free,
// or in one group of a view.
func (n *Numbers) check() error {
	used := make(map[kvindex.Slot]int)
	for _, s := range n.byRank {
		used[s]++
	}
	for _, s := range n.free {
		used[s]++
	}
	for _, groups := range n.views {
		for _, first := range groups {
			for i := range kvindex.Slot(groupSize) {
				used[first+i]++
			}
		}
	}
	for s := range kvindex.Slot(n.length) {
		if used[s] != 1 {
			return fmt.Errorf("oracle: I1: slot %d is in use %d times", s, used[s])
		}
	}
	if len(used) != n.length {
		return fmt.Errorf("oracle: I1: %d slots are in use, there are %d", len(used), n.length)
	}
	return nil
}
