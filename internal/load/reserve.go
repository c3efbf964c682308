package load

import (
	"errors"
	"time"

	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Filter says which ranks may be picked now, and is told which one was. All methods but
// End are called under the book's lock, and must neither block nor call the book. The
// book compares filters, so the type must be comparable.
type Filter interface {
	// Changes appends to dst the workers whose Standing may have changed since a version
	// that an earlier call returned. all says that any standing may have changed. It is
	// true if since is 0, which is never returned as a version.
	Changes(since uint64, dst []worker.ID) (now uint64, changed []worker.ID, all bool)

	// Standing returns whether a rank may be picked. The book calls it for the ranks of
	// workers that Changes has named.
	Standing(worker.Rank) health.Standing

	// Begin is called when the rank has been booked. Its result is passed to End when the
	// booking is released.
	Begin(worker.Rank) (trial uint64)
	End(r worker.Rank, trial uint64)
}

// Request is one pick to make and book. The book keeps only its Filter.
type Request struct {
	// Key and Pick.Role name the pool, whose round-robin cursor is used.
	Key worker.Key

	// Ranks are the candidates. They should be the very slice of a Pool: any other slice
	// costs a map lookup for each rank.
	Ranks []worker.Rank
	picker.Cached

	Pick   picker.Request
	Params *picker.Params

	// Now is the time of the pick, up to which waits shrink and answers grow.
	Now time.Time

	Filter  Filter        // nil: all ranks are allowed
	Exclude []worker.Rank // ranks on which an attempt of this request has failed

	// Within, if not nil, has the elements of Ranks that may be picked. The pick ignores
	// the others (the endpoint picker protocol's subset).
	Within picker.Bits

	// Constraints, if not nil, say by taints which ranks may be picked and which are
	// preferred.
	Constraints *picker.Constraints

	// MaxCost refuses the pick, with ErrCost, if its [picker.Decision.Ranked] is so much. 0: no limit.
	MaxCost float64

	// Growth is the expected growth of the answer, in addition to the prompt's blocks. It
	// is ignored in prefill picks.
	Growth Growth

	// Target is within which time the first token is wanted; 0: there is none. Of a prefill pick it has the
	// hand-off in it.
	Target time.Duration

	// From is the rank that prefills, in a pick of decode.
	From worker.Rank

	// MaxQueuedISLTokens refuses the pick if the candidates already have so many prompt
	// tokens queued. The request that crosses the limit is still taken. 0: no limit.
	MaxQueuedISLTokens int64

	// Explain, if not nil, gets what the pick saw: the load without this booking.
	Explain *Explanation
}

// PickAndReserve picks one of req.Ranks that is known, allowed and not excluded, and
// books the request on it, in one step. The booking is written to into, which must not
// hold another one. On an error into is left as it was. Nothing is allocated, except when
// Explain must grow.
//
// Errors: picker.ErrNoCandidate (also a *picker.TaintError is one),
// *picker.OverloadedError, *picker.SaturatedError, ErrCost, ErrHeld.
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

// Preview picks as PickAndReserve would, and books nothing. No load and no cursor
// changes, and the Filter is not told of a pick.
func (b *Book) Preview(req *Request) (picker.Decision, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pickLocked(req)
}

// Reserve books the request on a rank that was chosen elsewhere. Filter, exclusions,
// limits and cursor are not considered. overlap is how many leading blocks of the prompt
// the rank holds. Errors: ErrUnknownRank, ErrHeld.
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

// tellLocked moves the book's clock forward, never back.
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
	d, err := b.pickOfLocked(req, false)
	if errors.Is(err, picker.ErrNoCandidate) && req.Filter != nil && b.tableLocked(req.Ranks).narrow() {
		return b.pickOfLocked(req, true)
	}
	return d, err
}

// pickOfLocked picks. With wide it also considers ranks that are picked only if there is
// no other: those that are health.Tried.
func (b *Book) pickOfLocked(req *Request, wide bool) (picker.Decision, error) {
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
	t.bar(b, req, wide)
	c := &t.cols
	c.Overlap, c.Host, c.Disk = column(req.Overlap, n), column(req.Host, n), column(req.Disk, n)
	if c.Overlap == nil {
		c.Overlap = t.zeros
	}
	c.Predicted, c.Estimated = column(req.Predicted, n), req.Estimated
	if req.Explain != nil {
		c.Near = &req.Explain.near
	}
	d, err := picker.Decision{Index: -1}, t.constrain(b, req.Constraints)
	if err != nil && req.Explain != nil {
		c.Admit() // no pick is made: without this, the eligible ranks of an earlier pick would be shown
	}
	if err == nil {
		err = picker.CheckQueue(c, req.MaxQueuedISLTokens)
	}
	if req.Pick.FetchesLacking {
		c.Starved = t.share.starved(t.starved, c.Out)
	}
	if req.Params.InSeconds {
		if slot := b.slotLocked(req.Ranks[0]); slot >= 0 {
			req.Pick.Flow = b.flows[cursorKey{b.entries[slot].base, req.Pick.Role}].each(b.now)
		}
		req.Pick.Target = b.targetLocked(req)
		if req.Pick.Role == worker.Decode {
			req.Pick.AnswerTokens = req.Growth.Most * float64(req.Params.BlockSize)
			b.handsOffLocked(t, req)
		}
	}
	if err == nil {
		d, err = picker.Pick(&req.Pick, c, req.Params, b.cursors[cursorKey{req.Key, req.Pick.Role}], b.rng)
	}
	if req.Explain != nil {
		req.Explain.fill(b, t, req, &d)
	}
	c.Overlap, c.Predicted, c.Host, c.Disk = nil, nil, nil, nil
	if c.Farther != nil {
		clear(t.farther)
		c.Farther = nil
	}
	c.Estimated, c.Near, c.Taint, c.Starved = nil, nil, nil, nil
	if err == nil && req.MaxCost > 0 && d.Ranked() >= req.MaxCost {
		err = ErrCost
	}
	return d, err
}

// column returns the first n elements, or nil if there are fewer.
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
	b.number++
	*into = Reservation{
		book: b, number: b.number, slot: slot, generation: e.generation, rank: e.rank,
		load: d, held: true, since: b.now, answer: growingAnswer{here: b.now.Seconds()},
	}
	if e.pace != picker.Unlearned() {
		into.expected = e.wait(b.now) + e.pace.Seconds(float64(uncached))
	}
	e.load.add(&d, 1)
	e.foreign.since = b.now
	if e.queue.n == 0 {
		e.foreign.seconds, e.foreign.at = e.foreign.left(b.now), b.now
	}
	if d.PrefillTokens > 0 {
		e.queue.push(into, b.now)
	}
	if d.DecodeRequests > 0 {
		b.plantLocked(into, e, req.Growth)
	}
	if req.Pick.Role != worker.Decode {
		e.flow = b.flowLocked(e, req.Pick.Role)
		b.computesLocked(e, uncached)
	}
	b.stirLocked(slot)
	b.writeLocked(e)
	b.held++
	if req.Filter != nil {
		into.filter, into.trial = req.Filter, req.Filter.Begin(e.rank)
	}
}

// writeLocked writes the entry's numbers to every table that has its rank.
func (b *Book) writeLocked(e *entry) {
	for _, p := range e.places {
		p.t.write(int(p.at), e, b.now)
	}
}
