package kvindex

import "github.com/seed-60ae5743/baton/pkg/worker"

// bytesInUse is what the budget counts, with what was taken beyond it. Memory
// that was freed is kept for what comes next.
func (t *Tree) bytesInUse() int {
	return t.blocks.used*blockBytes + t.nodeIDs.used()*nodeBytes +
		t.names.segs.used()*segBytes + t.unitsUsed*unitBytes + t.kidBytes + t.beside
}

// bytesTaken is what the system has given us, which it counts: with what is
// free and was not given back.
func (t *Tree) bytesTaken() int {
	return t.blocks.bytes() + int(t.nodeIDs.next)*nodeBytes + t.names.bytes() + int(t.unitNext)*unitBytes + t.kidBytes + t.beside
}

// besidePart is what part of the budget Reserve may take at most.
const besidePart = 8

// Reserve counts memory that whoever feeds the index keeps of its blocks beside
// it, in bytes, as taken from the budget; below zero it is given back. It is false,
// and counts nothing, where that were more than an eighth of the budget.
func (t *Tree) Reserve(bytes int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if bytes > 0 && t.beside+bytes > t.cfg.MaxBytes/besidePart {
		return false
	}
	t.beside += bytes
	t.credit = 0
	return true
}

// giveBackStep is how many pages or segments are given back at a time.
const giveBackStep = 64

// tooWarm reports whether memory is to be given back: so much is taken that the
// budget would be passed, since it is of another kind than what is needed now.
func (t *Tree) tooWarm() bool { return t.bytesTaken() > max(t.cfg.MaxBytes, t.stuck) }

// giveBack lets the system have some of what is free.
func (t *Tree) giveBack() {
	if t.names.giveBack(giveBackStep)+t.blocks.giveBack(giveBackStep) == 0 {
		// What is left are free nodes, and runs shorter than a page: it is tried
		// again when there is more, and after the next sweep.
		t.stuck = t.bytesTaken() + t.cfg.MaxBytes/scratchPart
	}
}

// mostUnits is more than storing n blocks can take in one view: each may have its
// rank join a crowd, or found one, and two splits copy one.
func (t *Tree) mostUnits(n int) int {
	slots := t.slots.Len()
	if slots <= nodeSlots {
		return 0
	}
	groups := slots/groupSlots + 1
	list := groups/unitWords + 2
	return (n+1)*(list+1) + 2*(list+groups)
}

// mostBytes is more than storing n blocks can take: a run with its slack, a
// node or three, as many new segments as names can fill, crowds.
func (t *Tree) mostBytes(n int) int {
	return 2*(n+maxEdge)*blockBytes + (n/minRest+4)*nodeBytes + (n/segBuckets+3)*segBytes + t.mostUnits(n)*unitBytes
}

// spare is how much of the budget is free. What was taken beyond it counts four
// times, so that shedding makes up for nearly all of it.
func (t *Tree) spare() int {
	over := max(0, t.bytesTaken()-t.cfg.MaxBytes)
	return t.cfg.MaxBytes - t.bytesInUse() - 4*over
}

// The marks at which shedding begins, before it must, and ends: such a part of
// the budget is free, as a shift.
const (
	highWater = 5
	lowWater  = 4
)

// timesFits returns how often n blocks can be stored with so many bytes.
func (t *Tree) timesFits(n, bytes int) int {
	return t.timesIn(n, bytes, t.blocks.used, t.names.segs.used(), int(t.unitNext))
}

// timesIn does so with so much of each arena in use.
func (t *Tree) timesIn(n, bytes, blocks, segs, units int) int {
	blocks = len(t.blocks.local) - blocks
	segs = len(t.names.buckets)/segBuckets - segs
	units = len(t.units) - units
	return max(0, min(bytes/t.mostBytes(n), blocks/(2*(n+maxEdge)), segs/(n/segBuckets+3), units/max(1, int(numViews)*t.mostUnits(n))))
}

// short reports whether n blocks cannot be stored without shedding.
func (t *Tree) short(n int) bool { return t.timesFits(n, t.spare()) == 0 }

// hopeless reports whether n blocks are more than the whole budget: nothing is
// to be shed for them.
func (t *Tree) hopeless(n int) bool { return t.timesIn(n, t.cfg.MaxBytes, 0, 0, 0) == 0 }

// usual is how many blocks most events have at most.
const usual = 64

// pressed reports whether an event of n blocks is to do a share of shedding.
// Where there is room enough, it is judged for many events at once.
func (t *Tree) pressed(n int) bool {
	if n <= usual && t.credit > 0 {
		t.credit--
		return false
	}
	mark := highWater
	if t.shedding {
		mark = lowWater
	}
	spare := t.spare() - t.cfg.MaxBytes>>mark
	t.shedding = t.timesFits(n, spare) == 0
	if t.shedding || t.sweep.rank != nil || t.tooWarm() {
		t.credit = 0
		return true
	}
	t.credit = t.timesFits(usual, min(spare, max(t.cfg.MaxBytes, t.stuck)-t.bytesTaken()))
	return false
}

const (
	// shareOf is how many blocks of an event are charged one more step of
	// shedding. A step looks at some 300 names: a sweep of the rank that holds
	// all there is is over long before what is left at the high mark is.
	shareOf = 4
	// stepsAHold is how many are done before others are let in.
	stepsAHold = 16
)

// relieve makes room for the event: it does a share of shedding, in steps, and
// goes on for as long as there is no room at all. It gives the lock up between
// steps and returns the rank and the parent anew; nothing is shed of what the
// event goes on after.
func (t *Tree) relieve(rk *treeRank, parent blockID, e Stored) (*treeRank, blockID, error) {
	n, r := len(e.Blocks), rk.rank
	if t.hopeless(n) {
		return rk, 0, ErrNoRoom
	}
	t.reliefs++
	for i := 1; ; i++ {
		t.protect(parent)
		if !t.due(n, i) || !t.shedStep() {
			break
		}
		if i%stepsAHold != 0 {
			continue
		}
		var err error
		if rk, parent, err = t.again(r, e); err != nil {
			return rk, 0, err
		}
	}
	if !t.recallFor(n) {
		return rk, 0, ErrNoRoom
	}
	return rk, parent, nil
}

// again gives the lock up in the middle of an event, and returns the rank and the
// parent as they are after it.
func (t *Tree) again(r worker.Rank, e Stored) (*treeRank, blockID, error) {
	t.giveUp()
	rk := t.idle(r)
	if rk == nil {
		return nil, 0, ErrUnknownRank
	}
	t.clock++
	parent, err := t.parentOf(rk, e)
	return rk, parent, err
}

// due reports whether an event of n blocks owes step i, from 1, of shedding.
func (t *Tree) due(n, i int) bool {
	return t.short(n) || i <= 1+n/shareOf && t.pressed(n)
}

// shedShare does so for an event that stores nothing.
func (t *Tree) shedShare(n int) {
	t.reliefs++
	for i := 1; t.due(n, i) && t.shedStep(); i++ {
		if i%stepsAHold == 0 {
			t.giveUp()
		}
	}
}
