package kvindex

import "github.com/seed-60ae5743/baton/pkg/worker"

// bytesInUse is what counts against the budget: memory that holds something now. Memory
// that was freed and is kept for later use is not in it.
func (t *Tree) bytesInUse() int {
	return t.blocks.used*blockBytes + t.nodeIDs.used()*nodeBytes +
		t.names.segs.used()*segBytes + t.unitsUsed*unitBytes + t.kidBytes + t.beside
}

// bytesTaken is the memory that the system counts as ours: bytesInUse, and what is free
// and was not given back.
func (t *Tree) bytesTaken() int {
	return t.blocks.bytes() + int(t.nodeIDs.next)*nodeBytes + t.names.bytes() + int(t.unitNext)*unitBytes + t.kidBytes + t.beside
}

// besidePart is the divisor of the budget that gives the most that Reserve may count.
const besidePart = 8

// Reserve implements [Index]. There is room for an eighth of the budget.
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

// giveBackStep is how many pages or segments giveBack gives back at a time.
const giveBackStep = 64

// tooWarm reports whether memory has to be given back: the memory taken exceeds the
// budget, since what was freed is of another kind than what was needed.
func (t *Tree) tooWarm() bool { return t.bytesTaken() > max(t.cfg.MaxBytes, t.stuck) }

// giveBack gives some of the free memory back to the system.
func (t *Tree) giveBack() {
	if t.names.giveBack(giveBackStep)+t.blocks.giveBack(giveBackStep) == 0 {
		// Only free nodes and runs shorter than a page are left. They are tried again
		// when more is taken, and after the next sweep.
		t.stuck = t.bytesTaken() + t.cfg.MaxBytes/scratchPart
	}
}

// mostUnits is an upper bound of the units that storing n blocks takes in one view:
// each block may make its slot join or found a crowd, and two splits each copy a crowd.
func (t *Tree) mostUnits(n int) int {
	slots := t.slots.Len()
	if slots <= nodeSlots {
		return 0
	}
	groups := slots/groupSlots + 1
	list := groups/unitWords + 2
	return (n+1)*(list+1) + 2*(list+groups)
}

// mostBytes is an upper bound of the memory that storing n blocks takes: a run with its
// slack, nodes, as many new segments as the names can fill, and units of crowds.
func (t *Tree) mostBytes(n int) int {
	return 2*(n+maxEdge)*blockBytes + (n/minRest+4)*nodeBytes + (n/segBuckets+3)*segBytes + t.mostUnits(n)*unitBytes
}

// spare is how many bytes of the budget are free. Memory taken beyond the budget counts
// four times, so that shedding makes up for nearly all of it.
func (t *Tree) spare() int {
	over := max(0, t.bytesTaken()-t.cfg.MaxBytes)
	return t.cfg.MaxBytes - t.bytesInUse() - 4*over
}

// Shedding begins when less than MaxBytes>>highWater is free, early enough that no
// event has to wait, and ends when MaxBytes>>lowWater is free.
const (
	highWater = 5
	lowWater  = 4
)

// timesFits returns how often n blocks can be stored with the given number of free
// bytes.
func (t *Tree) timesFits(n, bytes int) int {
	return t.timesIn(n, bytes, t.blocks.used, t.names.segs.used(), int(t.unitNext))
}

// timesIn is timesFits with the given numbers of blocks, segments and units in use.
func (t *Tree) timesIn(n, bytes, blocks, segs, units int) int {
	blocks = len(t.blocks.local) - blocks
	segs = len(t.names.buckets)/segBuckets - segs
	units = len(t.units) - units
	return max(0, min(bytes/t.mostBytes(n), blocks/(2*(n+maxEdge)), segs/(n/segBuckets+3), units/max(1, int(numViews)*t.mostUnits(n))))
}

// short reports whether n blocks cannot be stored without shedding first.
func (t *Tree) short(n int) bool { return t.timesFits(n, t.spare()) == 0 }

// hopeless reports whether n blocks would not fit even into an empty index, so that
// shedding for them is useless.
func (t *Tree) hopeless(n int) bool { return t.timesIn(n, t.cfg.MaxBytes, 0, 0, 0) == 0 }

// usual is the most blocks that an event has in most cases.
const usual = 64

// pressed reports whether an event of n blocks has to do a share of shedding. If there
// is much room, one computation is good for many events (credit).
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
	// shareOf is for how many of its blocks an event does one more step of shedding. A
	// step looks at some 300 names. So a sweep of a rank that holds everything ends
	// long before the room that is left at the high mark is used up.
	shareOf = 4
	// stepsAHold is how many steps are done before other writers get the lock.
	stepsAHold = 16
)

// relieve makes room for the event. It does the event's share of shedding, in steps,
// and more steps while there is no room. It does not shed the blocks that the event
// continues from. It gives mu up between steps, and returns the rank and the parent as
// they are afterwards.
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

// again gives mu up in the middle of an event, and returns the rank and the parent as
// they are afterwards.
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

// due reports whether an event of n blocks has to do step i of shedding; the first is
// 1.
func (t *Tree) due(n, i int) bool {
	return t.short(n) || i <= 1+n/shareOf && t.pressed(n)
}

// shedShare is relieve for calls that store no event.
func (t *Tree) shedShare(n int) {
	t.reliefs++
	for i := 1; t.due(n, i) && t.shedStep(); i++ {
		if i%stepsAHold == 0 {
			t.giveUp()
		}
	}
}
