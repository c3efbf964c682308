package kvindex

// bytesInUse is what the budget counts. Memory that was freed is kept for what
// comes next and not counted.
func (t *Tree) bytesInUse() int {
	return t.blocks.used*blockBytes + t.nodeIDs.used()*nodeBytes +
		t.names.segs.used()*segBytes + t.unitsUsed*unitBytes
}

// mostUnits is more than storing n blocks can take: each may have its rank join
// a crowd, or found one, and two splits copy one.
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

// fits reports whether n blocks can be stored and a part of the budget stays
// free.
func (t *Tree) fits(n, part int) bool {
	return t.bytesInUse()+t.mostBytes(n)+t.cfg.MaxBytes/part <= t.cfg.MaxBytes && t.enough(n, part)
}

// enough is fits by how many blocks there are, units in a row, and segments.
func (t *Tree) enough(n, part int) bool {
	blocks := len(t.blocks.local)
	return t.blocks.used+2*(n+maxEdge)+blocks/part <= blocks &&
		int(t.unitNext)+t.mostUnits(n) <= len(t.units) &&
		t.names.segs.used()+n/segBuckets+3 <= len(t.names.buckets)/segBuckets
}

// The marks at which shedding begins, before it must, and ends: so much of the
// budget is free.
const (
	allOfIt   = 1 << 62
	highWater = 32
	lowWater  = 16
)

// short reports whether n blocks cannot be stored without shedding.
func (t *Tree) short(n int) bool { return !t.fits(n, allOfIt) }

// hopeless reports whether n blocks are more than the whole budget: nothing is
// to be shed for them.
func (t *Tree) hopeless(n int) bool {
	return t.mostBytes(n) > t.cfg.MaxBytes || 2*(n+maxEdge) > len(t.blocks.local)
}

// pressed reports whether an event of n blocks is to do a share of shedding.
func (t *Tree) pressed(n int) bool {
	if t.shedding {
		t.shedding = !t.fits(n, lowWater)
	} else {
		t.shedding = !t.fits(n, highWater)
	}
	return t.shedding || t.sweep.rank != nil
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
		t.giveUp()
		if rk = t.idle(r); rk == nil {
			return nil, 0, ErrUnknownRank
		}
		t.clock++
		var err error
		if parent, err = t.parentOf(rk, e); err != nil {
			return rk, 0, err
		}
	}
	if t.short(n) {
		return rk, 0, ErrNoRoom
	}
	return rk, parent, nil
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
