package kvindex

import (
	"errors"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Errors that a caller may branch on. With each of them no block of the event was
// added.
var (
	// ErrUnknownRank: the rank is not attached.
	ErrUnknownRank = errors.New("kvindex: rank is not attached")
	// ErrUnknownParent: the rank does not hold the parent of the first block.
	ErrUnknownParent = errors.New("kvindex: parent block is unknown")
	// ErrConflict: an engine hash already names another block of the rank, or
	// names two blocks in one event.
	ErrConflict = errors.New("kvindex: engine hash names another block")
	// ErrNoRoom: the index cannot take the event within its memory budget, even after
	// it has dropped everything else except the blocks that the event continues from.
	// Also: the rank exceeds the limit of slots.
	ErrNoRoom = errors.New("kvindex: no room for the event within the memory budget")
)

// Index maps chains of block hashes to the ranks that hold them.
//
// Events of one rank are given in order, by one goroutine at a time. All other methods
// may be called concurrently. No method keeps a slice that it was given.
type Index interface {
	// Attach makes the rank known, with no blocks, and returns its slot. For a rank
	// that is attached already it only returns the slot.
	Attach(worker.Rank) Slot

	// Detach drops all blocks of the rank, those routed to it included, and
	// frees its slot. It does nothing to an unknown rank.
	Detach(worker.Rank)

	// Slot returns the slot of an attached rank. The numbering is valid until
	// the rank is detached.
	Slot(worker.Rank) (Slot, bool)

	// Store adds blocks. Adding a block again changes nothing. Errors: ErrUnknownRank,
	// ErrUnknownParent, ErrConflict, ErrNoRoom; with each of them no block of the event
	// is added.
	Store(worker.Rank, Stored) error

	// Remove takes blocks off a tier. Hashes that the rank does not hold are counted
	// and ignored. Blocks that follow a removed block stay, but queries do not count
	// them until the removed block is stored again. Error: ErrUnknownRank.
	Remove(worker.Rank, Removed) error

	// Clear drops all blocks of the rank, on every tier and in the view Routed. Error:
	// ErrUnknownRank.
	Clear(worker.Rank) error

	// Route notes that a prompt with the chain was sent to the rank, which need not be
	// attached. The whole chain then counts in the rank's view Routed. It counts until
	// the time for the guess is over, an event takes a block off Device or clears the
	// rank, or memory is short. Route first drops what has expired at now, and returns
	// when Expire has to be called next.
	Route(r worker.Rank, chain []LocalHash, g Guess, now time.Time) (next time.Time)

	// Expire drops the routed prompts whose time is over at now. It returns when the
	// next one's time is over, or the zero time if nothing is routed. Queries read no
	// clock: they count whatever was not dropped.
	Expire(now time.Time) (next time.Time)

	// Overlap writes to dst how many leading blocks of chain each rank holds, in each
	// of its views. It allocates nothing once dst is large enough.
	Overlap(chain []LocalHash, dst *Overlap)

	// Removals counts the blocks that events have taken off Device, of all ranks.
	Removals() uint64

	// Kept returns how many of the first blocks of chain no event has taken off the rank's
	// Device since Removals returned that count, whether or not they were stored again. It
	// may be fewer, and is 0 for an unknown rank.
	Kept(r worker.Rank, chain []LocalHash, since uint64) int

	// Stats returns the counts of one rank. False means that the rank is neither
	// attached nor known from Route.
	Stats(worker.Rank) (Stats, bool)

	// Copy fills c with what the rank holds. The caller gives no event of this rank until
	// Copy returns. Error: ErrUnknownRank, also if the rank is detached meanwhile.
	Copy(r worker.Rank, c *RankCopy) error

	// Reserve is called by those who feed the index before they keep data about its blocks,
	// with the number of bytes. The bytes then count against the index's memory budget. A
	// negative number gives bytes back. False means that there is no room: nothing is
	// counted, and the caller must not keep the data.
	Reserve(bytes int) bool
}

// Overlap is the answer to one query. The caller owns it and may use it again: the zero
// value is ready. Not safe for concurrent use.
type Overlap struct {
	// Blocks[slot] is how many leading blocks count for the slot: those that the rank
	// with the slot holds on Device, or those that count in the view with the slot. It
	// is 0 for a slot of no rank and no view. The next query overwrites it. Slots.Held
	// reads all views of a rank.
	Blocks []uint32
}

// At returns the overlap of a slot, or 0 if the slot is beyond the answer.
func (o *Overlap) At(s Slot) uint32 {
	if int(s) >= len(o.Blocks) {
		return 0
	}
	return o.Blocks[s]
}

// reset makes the answer long enough for n slots and sets it to zero.
func (o *Overlap) reset(n int) {
	// The capacity is whole groups of slots, since Tree writes a group at once.
	if whole := (n + groupSlots - 1) / groupSlots * groupSlots; cap(o.Blocks) < whole {
		o.Blocks = make([]uint32, whole)
	}
	o.Blocks = o.Blocks[:n]
	clear(o.Blocks)
}

// Stats are the counts of one rank. The counters below begin when the rank becomes
// known and are kept by Clear.
type Stats struct {
	Blocks     int           // engine blocks held on any tier
	TierBlocks [numTiers]int // engine blocks by tier; one block may be on several
	Routed     int           // blocks in the view Routed

	Stored         uint64 // blocks added to a tier
	Duplicates     uint64 // stores of a block that was already on the tier
	UnknownParents uint64 // events refused with ErrUnknownParent
	Conflicts      uint64 // events refused with ErrConflict
	Removed        uint64 // blocks taken off a tier
	UnknownRemoves uint64 // removals of a block that the rank did not hold on the tier
	Clears         uint64 // Clear calls
	Shed           uint64 // blocks dropped because the index had no more memory
}
