package kvindex

// budget weighs the memory of the parts against what they may take together.
type budget struct {
	trie  *trie
	names *nameStore
	slots *Slots
	max   int // bytes; read-only

	beside int // bytes counted by Tree.Reserve
	stuck  int // giveBack found nothing: it is not tried again before more bytes are taken than this
}

// besidePart is the divisor of the budget that gives the most that Reserve may count.
const besidePart = 8

// giveBackStep is how many pages or segments giveBack gives back at a time.
const giveBackStep = 64

// inUse is what counts against the budget: memory that holds something now. Memory
// that was freed and is kept for later use is not in it.
func (b *budget) inUse() int {
	return b.trie.blocks.used*blockBytes + b.trie.ids.used()*nodeBytes +
		b.names.segs.used()*segBytes + b.trie.holders.used*unitBytes + b.trie.kids.bytes + b.beside
}

// taken is the memory that the system counts as ours: inUse, and what is free
// and was not given back.
func (b *budget) taken() int {
	return b.trie.blocks.bytes() + int(b.trie.ids.next)*nodeBytes + b.names.bytes() + int(b.trie.holders.next)*unitBytes + b.trie.kids.bytes + b.beside
}

// reserve counts bytes that others keep, and reports whether there is room for them.
func (b *budget) reserve(bytes int) bool {
	if bytes > 0 && b.beside+bytes > b.max/besidePart {
		return false
	}
	b.beside += bytes
	return true
}

// tooWarm reports whether memory has to be given back: the memory taken exceeds the
// budget, since what was freed is of another kind than what was needed.
func (b *budget) tooWarm() bool { return b.taken() > max(b.max, b.stuck) }

// giveBack gives some of the free memory back to the system.
func (b *budget) giveBack() {
	if b.names.giveBack(giveBackStep)+b.trie.blocks.giveBack(giveBackStep) == 0 {
		// Only free nodes and runs shorter than a page are left. They are tried again
		// when more is taken, and after the next sweep.
		b.stuck = b.taken() + b.max/scratchPart
	}
}

// mostUnits is an upper bound of the units that storing n blocks takes in one view:
// each block may make its slot join or found a crowd, and two splits each copy a crowd.
func (b *budget) mostUnits(n int) int {
	slots := b.slots.Len()
	if slots <= nodeSlots {
		return 0
	}
	groups := slots/groupSlots + 1
	list := groups/unitWords + 2
	return (n+1)*(list+1) + 2*(list+groups)
}

// mostBytes is an upper bound of the memory that storing n blocks takes: a run with its
// slack, nodes, as many new segments as the names can fill, and units of crowds.
func (b *budget) mostBytes(n int) int {
	return 2*(n+maxEdge)*blockBytes + (n/minRest+4)*nodeBytes + (n/segBuckets+3)*segBytes + b.mostUnits(n)*unitBytes
}

// spare is how many bytes of the budget are free. Memory taken beyond the budget counts
// four times, so that shedding makes up for nearly all of it.
func (b *budget) spare() int {
	over := max(0, b.taken()-b.max)
	return b.max - b.inUse() - 4*over
}

// timesFits returns how often n blocks can be stored with the given number of free
// bytes.
func (b *budget) timesFits(n, bytes int) int {
	return b.timesIn(n, bytes, b.trie.blocks.used, b.names.segs.used(), int(b.trie.holders.next))
}

// timesIn is timesFits with the given numbers of blocks, segments and units in use.
func (b *budget) timesIn(n, bytes, blocks, segs, units int) int {
	blocks = len(b.trie.blocks.local) - blocks
	segs = len(b.names.buckets)/segBuckets - segs
	units = len(b.trie.holders.units) - units
	return max(0, min(bytes/b.mostBytes(n), blocks/(2*(n+maxEdge)), segs/(n/segBuckets+3), units/max(1, int(numViews)*b.mostUnits(n))))
}

// short reports whether n blocks cannot be stored without shedding first.
func (b *budget) short(n int) bool { return b.timesFits(n, b.spare()) == 0 }

// hopeless reports whether n blocks would not fit even into an empty index, so that
// shedding for them is useless.
func (b *budget) hopeless(n int) bool { return b.timesIn(n, b.max, 0, 0, 0) == 0 }
