package load

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Filter says who may be picked now and learns who was. It is called under the
// book's lock, End excepted, and must neither block nor call the book. Filters
// are compared with each other, so the type must be comparable.
type Filter interface {
	// Changes appends to dst the workers whose Standing may have changed since
	// a version that it has returned. all says that it may be anyone; so it is
	// since 0, which is no version.
	Changes(since uint64, dst []worker.ID) (now uint64, changed []worker.ID, all bool)

	// Standing is asked for one rank at a time, after a change of its worker's.
	Standing(worker.Rank) health.Standing

	// Begin learns that the rank has been booked. What it returns is given to
	// End when the booking is released.
	Begin(worker.Rank) (trial uint64)
	End(r worker.Rank, trial uint64)
}

// Request is one pick to make and book. The book keeps nothing of it but the
// Filter.
type Request struct {
	// Key and Pick.Role name the pool, for its round-robin cursor.
	Key worker.Key

	// Ranks to pick from, best the very slice of a Pool: others cost a map
	// lookup a rank. The following, if not nil, run parallel to it.
	Ranks     []worker.Rank
	Overlaps  []uint32    // leading blocks of the prompt on the rank's device
	Predicted []uint32    // how many of those are predicted: shown, not weighed
	Host      []uint32    // blocks in host memory beyond those
	Disk      []uint32    // blocks on disk beyond those
	Estimated picker.Bits // the overlap of this rank is an estimate

	Pick   picker.Request
	Params *picker.Params

	// Now is when the pick is made, for prompt tokens to decay.
	Now time.Time

	Filter  Filter        // nil: everyone is allowed
	Exclude []worker.Rank // ranks that have failed this request already

	// Within, if not nil, has who may be picked at all, of Ranks; others are as if
	// they were not there (the endpoint picker protocol's subset).
	Within picker.Bits

	// Constraints, if not nil, say by taints who may be picked and who is
	// rather picked.
	Constraints *picker.Constraints

	// MaxUncachedTokens declines the pick, with ErrUncached, when the picked
	// rank would have to prefill that many tokens of the prompt. 0: no limit.
	MaxUncachedTokens int64

	// Growth is that of the answer to come, on top of the prompt's blocks; of prefill
	// picks it is not looked at.
	Growth Growth

	// MaxQueuedISLTokens refuses the pick when the candidates have this many
	// prompt tokens queued already. The request that crosses the limit
	// is taken. 0: no limit.
	MaxQueuedISLTokens int64

	// Explain, if not nil, gets what the pick saw: the load before this
	// booking.
	Explain *Explanation
}

// PickAndReserve picks among the ranks of req that are known, allowed and not
// excluded, and books the request on the picked one, in one step. The booking
// is written to into, which must not hold one; on error it is left as it was.
// Nothing is allocated but what Explain needs to grow once.
//
// Errors: picker.ErrNoCandidate, which a *picker.TaintError is too,
// *picker.OverloadedError, *picker.SaturatedError, ErrUncached, ErrHeld.
func (b *Book) PickAndReserve(req *Request, into *Reservation) (picker.Decision, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if into.book != nil && into.held {
		return picker.Decision{Index: -1}, ErrHeld
	}
	d, err := b.pickLocked(req)
	if err != nil {
		return d, err
	}
	b.bookLocked(into, b.slotLocked(d.Rank), req, d.UncachedTokens)
	if req.Pick.Role == worker.Decode {
		b.tableLocked(req.Ranks).share.note(d.Index, len(req.Ranks))
	}
	if req.Params.Mode == picker.RoundRobin {
		into.turn = cursorKey{req.Key, req.Pick.Role}
		into.cursorBefore, into.cursor = b.cursors[into.turn], d.Cursor
		b.cursors[into.turn] = d.Cursor
	}
	return d, nil
}

// Preview picks as PickAndReserve would and books nothing: no load, no cursor,
// no word to the Filter.
func (b *Book) Preview(req *Request) (picker.Decision, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pickLocked(req)
}

// Reserve books the request on a rank that was chosen elsewhere. Neither
// filter, exclusions, limits nor cursor have a part in it; overlap is that of
// the rank. Errors: ErrUnknownRank, ErrHeld.
func (b *Book) Reserve(req *Request, r worker.Rank, overlap uint32, into *Reservation) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if into.book != nil && into.held {
		return ErrHeld
	}
	slot := b.slotLocked(r)
	if slot < 0 {
		return ErrUnknownRank
	}
	b.tellLocked(req.Now)
	b.bookLocked(into, slot, req, picker.UncachedTokens(&req.Pick, overlap, req.Params))
	return nil
}

// tellLocked moves the book's clock, never back.
func (b *Book) tellLocked(now time.Time) {
	if now.IsZero() {
		return
	}
	if b.epoch.IsZero() {
		b.epoch = now
	}
	b.now = max(b.now, now.Sub(b.epoch))
}

func (b *Book) pickLocked(req *Request) (picker.Decision, error) {
	b.tellLocked(req.Now)
	n := len(req.Ranks)
	if n == 0 {
		if req.Explain != nil {
			req.Explain.reset()
		}
		return picker.Decision{Index: -1}, picker.ErrNoCandidate
	}
	b.growLocked()
	t := b.tableLocked(req.Ranks)
	t.refresh(b.now)
	t.bar(b, req)
	c := &t.cols
	c.Overlap, c.Host, c.Disk = column(req.Overlaps, n), column(req.Host, n), column(req.Disk, n)
	if c.Overlap == nil {
		c.Overlap = t.zeros
	}
	c.Predicted, c.Estimated = column(req.Predicted, n), req.Estimated
	if req.Explain != nil {
		c.Near = &req.Explain.near
	}
	d, err := picker.Decision{Index: -1}, t.constrain(b, req.Constraints)
	if err != nil && req.Explain != nil {
		c.Admit() // nobody picks: else those of an earlier pick would be shown
	}
	if err == nil {
		err = picker.CheckQueue(c, req.MaxQueuedISLTokens)
	}
	if req.Pick.FetchesLacking {
		c.Starved = t.share.starved(t.starved, c.Out)
	}
	if err == nil {
		d, err = picker.Pick(&req.Pick, c, req.Params, b.cursors[cursorKey{req.Key, req.Pick.Role}], b.rng)
	}
	if req.Explain != nil {
		req.Explain.fill(b, t, req, &d)
	}
	c.Overlap, c.Predicted, c.Host, c.Disk = nil, nil, nil, nil
	c.Estimated, c.Near, c.Taint, c.Starved = nil, nil, nil, nil
	if err == nil && req.MaxUncachedTokens > 0 && d.UncachedTokens >= req.MaxUncachedTokens {
		err = ErrUncached
	}
	return d, err
}

// column takes what was given for each of n ranks. Less than that is nothing.
func column(given []uint32, n int) []uint32 {
	if len(given) < n {
		return nil
	}
	return given[:n]
}

// bookLocked writes the booking of one request on one rank.
func (b *Book) bookLocked(into *Reservation, slot int32, req *Request, uncached int64) {
	e := &b.entries[slot]
	blockSize := int64(max(req.Params.BlockSize, 1))
	blocks := (int64(max(req.Pick.ISLTokens, 0)) + blockSize - 1) / blockSize
	var d Load
	switch req.Pick.Role {
	case worker.Prefill:
		d = Load{PrefillTokens: uncached, PrefillBlocks: blocks, PrefillRequests: 1}
	case worker.Decode:
		d = Load{DecodeBlocks: blocks, DecodeRequests: 1}
	default:
		d = Load{PrefillTokens: uncached, DecodeBlocks: blocks, DecodeRequests: 1}
	}
	*into = Reservation{
		book: b, slot: slot, generation: e.generation, rank: e.rank, rate: req.Params.PrefillTokensPerSecond,
		load: d, held: true, answer: growingAnswer{here: b.now.Seconds()},
	}
	e.load.add(&d, 1)
	if d.PrefillTokens > 0 {
		e.queue.push(into, b.now)
	}
	if d.DecodeRequests > 0 {
		b.plantLocked(into, e, req.Growth)
	}
	b.writeLocked(e)
	b.held++
	if req.Filter != nil {
		into.filter, into.trial = req.Filter, req.Filter.Begin(e.rank)
	}
}

// writeLocked brings every table in step with the entry.
func (b *Book) writeLocked(e *entry) {
	for _, p := range e.places {
		p.t.write(int(p.at), e, b.now)
	}
}
