package kvindex

import (
	"errors"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Errors that a caller may branch on. Each leaves the index as it was.
var (
	// ErrUnknownRank: the rank is not attached.
	ErrUnknownRank = errors.New("kvindex: rank is not attached")
	// ErrUnknownParent: the rank does not hold the parent of the first block.
	ErrUnknownParent = errors.New("kvindex: parent block is unknown")
	// ErrConflict: an engine hash already names another block of the rank, or
	// names two blocks in one event.
	ErrConflict = errors.New("kvindex: engine hash names another block")
	// ErrNoRoom: with the event and what it goes on from, the index would be
	// more than it may be, even if all else were dropped; or the rank is one too
	// many.
	ErrNoRoom = errors.New("kvindex: no room for the event within the memory budget")
)

// Index maps chains of block hashes to the ranks that hold them.
//
// Events of one rank are given in order by one goroutine at a time. Everything
// else may be called concurrently. No method keeps a slice it was given.
type Index interface {
	// Attach makes the rank known, with no blocks, and returns its slot. It
	// does nothing to a rank that is attached already.
	Attach(worker.Rank) Slot

	// Detach drops all blocks of the rank, those routed to it included, and
	// frees its slot. It does nothing to an unknown rank.
	Detach(worker.Rank)

	// Slot returns the slot of an attached rank. The numbering is valid until
	// the rank is detached.
	Slot(worker.Rank) (Slot, bool)

	// Store adds blocks. Adding a block again changes nothing. Errors:
	// ErrUnknownRank, ErrUnknownParent, ErrConflict, ErrNoRoom; on each of them
	// no block of the event is added.
	Store(worker.Rank, Stored) error

	// Remove takes blocks off a tier. Hashes that the rank does not hold are
	// counted and ignored. Blocks after a removed one stay, out of reach of
	// queries until the removed one returns. Error: ErrUnknownRank.
	Remove(worker.Rank, Removed) error

	// Clear drops all blocks of this rank on every tier, and what was routed
	// to it. Error: ErrUnknownRank.
	Clear(worker.Rank) error

	// Route notes that a prompt with the chain was sent to the rank, which need
	// not be attached: it is believed to hold it, in the view Routed, until its
	// time is over or an event says otherwise: one that takes a block off
	// Device, and Clear; or want of memory. The whole chain counts as routed now. It drops what is
	// believed no more at now, and returns what Expire would.
	Route(r worker.Rank, chain []LocalHash, g Guess, now time.Time) (next time.Time)

	// Expire drops what is believed no more at now. It returns when there is
	// more to drop; the zero time: never, as long as nothing is routed. Queries
	// know no time: they answer with what was not dropped.
	Expire(now time.Time) (next time.Time)

	// Overlap writes to dst how many leading blocks of chain each rank holds,
	// in each of its views. It allocates nothing once dst is large enough.
	Overlap(chain []LocalHash, dst *Overlap)

	// Stats returns what is counted of one rank that is attached or has
	// something routed to it.
	Stats(worker.Rank) (Stats, bool)

	// Check walks the whole index and returns the first broken invariant (I1…
	// of the package comment) or nil. It is slow and blocks writers.
	Check() error
}

// Overlap is the answer to one query. The caller owns it and reuses it: the
// zero value is ready. Not safe for concurrent use.
type Overlap struct {
	// Blocks[slot] is the number of leading blocks that the rank with the slot
	// holds on Device, or that count in the view with the slot; 0 for slots of
	// neither. Overwritten by the next query. Slots.Held reads it for a rank.
	Blocks []uint32

	alive []uint64 // scratch: slots that held every block so far
}

// At returns the overlap of a slot, 0 for one beyond the answer.
func (o *Overlap) At(s Slot) uint32 {
	if int(s) >= len(o.Blocks) {
		return 0
	}
	return o.Blocks[s]
}

// reset sizes the answer for n slots and zeroes it.
func (o *Overlap) reset(n int) {
	// Whole groups, which Tree writes at once.
	if whole := (n + groupSlots - 1) / groupSlots * groupSlots; cap(o.Blocks) < whole {
		o.Blocks = make([]uint32, whole)
	}
	o.Blocks = o.Blocks[:n]
	clear(o.Blocks)
	w := wordsFor(n)
	if cap(o.alive) < w {
		o.alive = make([]uint64, w)
	}
	o.alive = o.alive[:w]
}

// Stats is what is counted of one rank. Counts of what happened begin at
// Attach and survive Clear.
type Stats struct {
	Blocks     int           // engine blocks held on any tier
	TierBlocks [numTiers]int // engine blocks by tier; one block may be on several
	Routed     int           // blocks of prompts routed to it and believed in

	Stored         uint64 // blocks added to a tier
	Duplicates     uint64 // stores of a block that was on the tier already
	UnknownParents uint64 // events refused with ErrUnknownParent
	Conflicts      uint64 // events refused with ErrConflict
	Removed        uint64 // blocks taken off a tier
	UnknownRemoves uint64 // removals of what was not there
	Clears         uint64 // Clear calls
	Shed           uint64 // blocks dropped because the index had no more memory
}
