package load

import (
	"fmt"
	"slices"

	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Filter says who may be picked now and learns who was. It is called under the
// book's lock, End excepted, and must neither block nor call the book.
type Filter interface {
	// Allows is asked once a worker and pick, for one of its ranks; the answer
	// stands for all of them.
	Allows(worker.Rank) bool

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
	// lookup a rank. Overlaps and Estimated, if not nil, run parallel to it.
	Ranks     []worker.Rank
	Overlaps  []uint32 // leading blocks of the prompt on the rank
	Estimated []bool   // the overlap of this rank is an estimate (degraded)

	Pick   picker.Request
	Params *picker.Params

	Filter  Filter        // nil: everyone is allowed
	Exclude []worker.Rank // ranks that have failed this request already

	// OutputBlocks are booked on top of the prompt's for the answer to come.
	OutputBlocks int64

	// MaxQueuedISLTokens refuses the pick when the candidates have this many
	// prompt tokens queued already (C5). The request that crosses the limit
	// is taken. 0: no limit.
	MaxQueuedISLTokens int64

	// Candidates, if not nil, is the buffer in which the candidates are laid
	// out, from its start; it is grown as needed. After the call it holds
	// what the pick saw (the load before this booking), for
	// picker.AppendTable. Decision.Index is an index of it, not of Ranks.
	Candidates *[]picker.Candidate
}

// SaturatedError says that a pool has too much prefill queued.
type SaturatedError struct {
	QueuedISLTokens    int64
	MaxQueuedISLTokens int64
}

// Error names both numbers.
func (e *SaturatedError) Error() string {
	return fmt.Sprintf("load: %d prompt tokens are queued: expected fewer than %d", e.QueuedISLTokens, e.MaxQueuedISLTokens)
}

// PickAndReserve picks among the ranks of req that are known, allowed and not
// excluded, and books the request on the picked one, in one step. The booking
// is written to into, which must not hold one; on error it is left as it was.
// Nothing is allocated once buffers have grown to the size of the pool.
//
// Errors: picker.ErrNoCandidate, *SaturatedError, ErrHeld.
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
	if req.Params.Mode == picker.RoundRobin {
		b.cursors[cursorKey{req.Key, req.Pick.Role}] = d.Cursor
	}
	c := &(*b.bufferLocked(req))[d.Index]
	b.bookLocked(into, b.picked[d.Index], req, picker.UncachedTokens(&req.Pick, c, req.Params))
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
// filter, exclusions, limit nor cursor have a part in it; overlap is that of
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
	c := picker.Candidate{Rank: r, OverlapBlocks: overlap}
	b.bookLocked(into, slot, req, picker.UncachedTokens(&req.Pick, &c, req.Params))
	return nil
}

func (b *Book) bufferLocked(req *Request) *[]picker.Candidate {
	if req.Candidates != nil {
		return req.Candidates
	}
	return &b.scratch
}

func (b *Book) pickLocked(req *Request) (picker.Decision, error) {
	cands := b.candidatesLocked(req)
	if req.MaxQueuedISLTokens > 0 && len(cands) > 0 {
		var queued int64
		for i := range cands {
			queued += cands[i].ActivePrefillTokens
		}
		if queued >= req.MaxQueuedISLTokens {
			return picker.Decision{Index: -1}, &SaturatedError{queued, req.MaxQueuedISLTokens}
		}
	}
	cursor := b.cursors[cursorKey{req.Key, req.Pick.Role}]
	return picker.Pick(&req.Pick, cands, req.Params, cursor, b.rng)
}

// candidatesLocked lays out the candidates of req and, in b.picked, their slots.
func (b *Book) candidatesLocked(req *Request) []picker.Candidate {
	buf := b.bufferLocked(req)
	n := len(req.Ranks)
	if cap(*buf) < n {
		*buf = make([]picker.Candidate, n)
	}
	if cap(b.picked) < n {
		b.picked = make([]int32, n)
	}
	cands, picked := (*buf)[:n], b.picked[:n]
	var view []int32
	if n > 0 {
		if v := b.views[&req.Ranks[0]]; len(v) >= n {
			view = v
		}
	}
	overlaps, estimated := req.Overlaps, req.Estimated
	var asked worker.ID
	allowed, out := true, 0
	for i, r := range req.Ranks {
		slot := int32(-1)
		if view != nil {
			slot = view[i]
		} else {
			slot = b.slotLocked(r)
		}
		if req.Filter != nil && r.ID != asked {
			asked, allowed = r.ID, req.Filter.Allows(r)
		}
		if slot < 0 || !allowed || (len(req.Exclude) > 0 && slices.Contains(req.Exclude, r)) {
			continue
		}
		l, c := &b.loads[slot], &cands[out]
		*c = picker.Candidate{Rank: r}
		c.ActivePrefillTokens, c.ActiveDecodeBlocks = l.PrefillTokens, l.DecodeBlocks
		c.ActiveRequests = l.PrefillRequests + l.DecodeRequests
		if i < len(overlaps) {
			c.OverlapBlocks = overlaps[i]
		}
		if i < len(estimated) {
			c.Estimated = estimated[i]
		}
		picked[out] = slot
		out++
	}
	*buf, b.picked = cands[:out], picked[:out]
	return cands[:out]
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
		d = Load{DecodeBlocks: blocks + max(req.OutputBlocks, 0), DecodeRequests: 1}
	default:
		d = Load{PrefillTokens: uncached, DecodeBlocks: blocks + max(req.OutputBlocks, 0), DecodeRequests: 1}
	}
	b.loads[slot].add(&d, 1)
	b.held++
	*into = Reservation{book: b, slot: slot, generation: e.generation, rank: e.rank, load: d, held: true}
	if req.Filter != nil {
		into.filter, into.trial = req.Filter, req.Filter.Begin(e.rank)
	}
}
