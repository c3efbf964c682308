package kvindex

import (
	"slices"
	"sync"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// treeRank is the state of one rank.
type treeRank struct {
	rank  worker.Rank
	slot  Slot
	views []treeView // the views that the rank has needed so far, OnDevice first
	names names
	stats Stats // Invariant: I6
	// busy says that a goroutine changes the rank in slices and may have given mu up
	// between two of them. Others that want to change the rank wait for calm.
	busy bool

	barren  uint64 // the value of eviction.reliefs when sweeps last found nothing to shed from this rank
	barrens int    // how many such sweeps there were in that relief

	gone     gone
	attached bool // false: only Route has named the rank
	sent     routed

	// The last block stored, likely the next one's parent.
	lastName  EngineHash
	lastBlock blockID // 0: unknown
}

// treeView is one view of a rank that events fill.
type treeView struct {
	view  View
	slot  Slot
	extra map[blockID]uint32 // for a block with several names that count: how many beyond the first. Invariant: I3
	// making says that the view is being filled with what the rank held before it
	// needed the view. Names whose mixed hash is below next are entered. A node that is
	// not entered has no number for the view's slot.
	making bool
	next   uint64
}

// forget removes a name from the cache of the last stored block.
func (rk *treeRank) forget(h EngineHash) {
	if rk.lastName == h {
		rk.lastBlock = 0
	}
}

// lacks reports whether a view has to be added or filled before a block on the tier is
// stored.
func (rk *treeRank) lacks(tier Tier) bool {
	if rk.views[len(rk.views)-1].making {
		return true
	}
	view := viewOf(tier)
	return !slices.ContainsFunc(rk.views, func(w treeView) bool { return w.view == view })
}

// narrower returns the widest view of the rank that is narrower than view.
func (rk *treeRank) narrower(view View) *treeView {
	best := &rk.views[0]
	for i := range rk.views {
		if w := &rk.views[i]; w.view < view && w.view > best.view {
			best = w
		}
	}
	return best
}

// ranks is the ranks that the index knows. It owns the map, and of a treeRank the fields
// rank, slot, busy and attached.
type ranks struct {
	slots *Slots
	calm  *sync.Cond // signals that a rank is no longer busy; uses Tree.mu

	all       map[worker.Rank]*treeRank
	last      *treeRank // the rank of the last event, likely the rank of the next one
	strangers int       // ranks that are known but not attached
	tooMany   int       // see crowded
}

// add adds a rank without blocks that is not attached; mu is held.
func (rs *ranks) add(r worker.Rank) *treeRank {
	rk := &treeRank{rank: r, slot: rs.slots.acquire(r)}
	rk.views = []treeView{{slot: rk.slot}}
	rs.all[r] = rk
	rs.strangers++
	return rk
}

// attach makes a known rank one that is attached.
func (rs *ranks) attach(rk *treeRank) {
	if !rk.attached {
		rk.attached = true
		rs.strangers--
	}
}

// remove removes a rank that has nothing left.
func (rs *ranks) remove(rk *treeRank) {
	delete(rs.all, rk.rank)
	rs.last = nil
	rs.slots.release(rk.slot)
	if !rk.attached {
		rs.strangers--
	}
}

// attached returns an attached rank, or nil if r is not attached; mu is held.
func (rs *ranks) attached(r worker.Rank) *treeRank {
	if rs.last != nil && rs.last.rank == r {
		return rs.last
	}
	rk := rs.all[r]
	if rk == nil || !rk.attached {
		return nil
	}
	rs.last = rk
	return rk
}

// known returns a rank that is attached or known from Route, or nil. It waits while the
// rank is busy; mu is held, and given up while it waits.
func (rs *ranks) known(r worker.Rank) *treeRank {
	for {
		rk := rs.all[r]
		if rk == nil || !rk.busy {
			return rk
		}
		rs.calm.Wait()
	}
}

// idle returns an attached rank that is not busy, or nil if r is not attached. It waits
// while the rank is busy; mu is held, and given up while it waits.
func (rs *ranks) idle(r worker.Rank) *treeRank {
	for {
		rk := rs.attached(r)
		if rk == nil || !rk.busy {
			return rk
		}
		rs.calm.Wait()
	}
}

// crowded reports whether there are too many ranks that are not attached.
func (rs *ranks) crowded() bool { return rs.strangers >= rs.tooMany }

// allow says that the strangers that are left stay: twice as many are too many.
func (rs *ranks) allow() { rs.tooMany = max(minStrangers, 2*rs.strangers) }

// start makes the rank busy, until finish.
func (rs *ranks) start(rk *treeRank) { rk.busy = true }

// finish ends that the rank is busy.
func (rs *ranks) finish(rk *treeRank) {
	rk.busy = false
	rs.calm.Broadcast()
}
