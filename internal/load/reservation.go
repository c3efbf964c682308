package load

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/invariants"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Reservation is one booking on one rank. The zero value holds no booking and is ready
// for PickAndReserve; a released one may be filled again. It must not be copied while it
// holds a booking. Once PickAndReserve has returned, its methods are safe for concurrent
// use.
type Reservation struct {
	// Set by the book when the reservation is filled. Fields that Move changes are
	// guarded by book.mu.
	book       *Book
	slot       int32
	generation uint64
	rank       worker.Rank
	life       uint64 // of the replica that has booked; 0: this one
	number     uint64 // of the booking, in its process
	filter     Filter
	trial      uint64

	// Of a round-robin pick: the pool whose cursor it moved, and the cursor before and
	// after.
	turn                 cursorKey
	cursorBefore, cursor uint64

	// Guarded by book.mu.
	load          Load
	held          bool
	before, after *Reservation  // neighbours in the rank's queue, while it has prompt tokens
	since         time.Duration // when it was booked
	expected      float64       // seconds from then until its prompt is computed; 0: not known
	had           time.Duration // what the rank is believed to have spent on its prompt
	answer        growingAnswer
}

// Release takes the booking off. now is when its leg ended. It must be called exactly
// once for each booking. A second call changes nothing, is counted, and panics in builds
// with invariants.
func (r *Reservation) Release(now time.Time) {
	if r.ReleaseIfHeld(now) {
		return
	}
	if r != nil && r.book != nil {
		r.book.mu.Lock()
		r.book.double++
		r.book.mu.Unlock()
	}
	invariants.Check(false, "load: a booking was released twice, or there was none")
}

// PromptTime is how long a rank took for a prompt.
type PromptTime struct {
	Spent    time.Duration // what it is believed to have spent on the prompt
	Whole    time.Duration // from the pick on
	Expected float64       // of Whole, in seconds, when the rank was picked; 0: its pace was not learned
}

// Prompt returns how long the rank took for the prompt until now, or until it was computed.
func (r *Reservation) Prompt(now time.Time) (p PromptTime) {
	if r == nil || r.book == nil {
		return p
	}
	b := r.book
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tellLocked(now)
	if e := b.entryLocked(r); e != nil && r.held && r.load.PrefillTokens > 0 {
		e.queue.share(b.now)
		b.writeLocked(e)
	}
	return PromptTime{r.had, b.now - r.since, r.expected}
}

// ReleaseIfHeld takes the booking off and reports whether it was held. Code that must not
// leave a booking behind calls it at the end of a stream. For nil it is false.
func (r *Reservation) ReleaseIfHeld(now time.Time) bool {
	if r == nil || r.book == nil {
		return false
	}
	b := r.book
	b.mu.Lock()
	if !r.held {
		b.mu.Unlock()
		return false
	}
	b.tellLocked(now)
	r.held = false
	b.held--
	e := b.entryLocked(r)
	b.uprootLocked(r, e)
	if r.load.DecodeRequests > 0 {
		b.lasts[1].ended(b.now - r.since)
	}
	if r.load.PrefillTokens > 0 {
		b.lasts[0].ended(b.now - r.since)
	}
	if e != nil {
		if r.load.PrefillTokens > 0 {
			e.queue.ended(r, b.now)
		}
		e.settle(r, b.now)
		b.stirLocked(r.slot)
		b.writeLocked(e)
		if e.load.negative() { // so that the arguments are built only if they are needed
			invariants.Check(false, "load: rank %s has load %+v", r.rank, e.load)
		}
	} else {
		b.late++
	}
	r.load, r.before, r.after = Load{}, nil, nil
	rank, filter, trial := r.rank, r.filter, r.trial
	r.filter = nil
	b.mu.Unlock()
	if filter != nil {
		filter.End(rank, trial)
	}
	return true
}

// Cancel is ReleaseIfHeld for a booking that came to nothing. After a round-robin pick
// the pool's cursor moves back, unless it has moved on since. For nil it is false.
func (r *Reservation) Cancel(now time.Time) bool {
	if r == nil || !r.ReleaseIfHeld(now) {
		return false
	}
	b := r.book
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.cursor != r.cursorBefore && b.cursors[r.turn] == r.cursor {
		b.cursors[r.turn] = r.cursorBefore
	}
	return true
}

// Move moves what is still booked to another rank, which serves the request in place of
// the booked one. From then on it is load of the new rank only. After a round-robin pick
// the pool's cursor does not move back. Errors, after which nothing has changed:
// ErrUnknownRank, and ErrReleased, also for nil.
func (r *Reservation) Move(to worker.Rank, now time.Time) error {
	if r == nil || r.book == nil {
		return ErrReleased
	}
	b := r.book
	b.mu.Lock()
	if !r.held {
		b.mu.Unlock()
		return ErrReleased
	}
	slot := b.slotLocked(to)
	if slot < 0 {
		b.mu.Unlock()
		return ErrUnknownRank
	}
	b.tellLocked(now)
	old := b.entryLocked(r)
	b.uprootLocked(r, old)
	if old != nil {
		if r.load.PrefillTokens > 0 {
			old.queue.ended(r, b.now)
		}
		old.settle(r, b.now)
		b.stirLocked(r.slot)
		b.writeLocked(old)
	}
	from, filter, trial := r.rank, r.filter, r.trial
	e := &b.entries[slot]
	r.slot, r.generation, r.rank, r.expected = slot, e.generation, to, 0 // it was expected of another rank
	e.load.add(&r.load, 1)
	if r.load.PrefillTokens > 0 {
		e.queue.push(r, b.now)
	}
	b.replantLocked(r, e)
	b.stirLocked(slot)
	b.writeLocked(e)
	if filter != nil {
		r.trial = filter.Begin(to)
	}
	b.mu.Unlock()
	if filter != nil {
		filter.End(from, trial)
	}
	return nil
}

// entryLocked returns the entry of the booked rank, or nil if the rank has left since.
func (b *Book) entryLocked(r *Reservation) *entry {
	if e := &b.entries[r.slot]; e.present && e.generation == r.generation {
		return e
	}
	return nil
}

// PrefillDone takes up to tokens prompt tokens off the booking, as prefill makes
// progress; 1<<62 takes all. After the release it does nothing.
func (r *Reservation) PrefillDone(tokens int64, now time.Time) {
	if r == nil || r.book == nil {
		return
	}
	b := r.book
	b.mu.Lock()
	defer b.mu.Unlock()
	if !r.held {
		return
	}
	b.tellLocked(now)
	e, had := b.entryLocked(r), r.load.PrefillTokens
	done := min(max(tokens, 0), had)
	r.load.PrefillTokens -= done
	if had > 0 && r.load.PrefillTokens == 0 {
		b.lasts[0].ended(b.now - r.since)
	}
	if e == nil {
		return
	}
	e.load.PrefillTokens -= done
	if had > 0 && r.load.PrefillTokens == 0 {
		e.queue.ended(r, b.now)
	}
	b.stirLocked(r.slot)
	b.writeLocked(e)
}
