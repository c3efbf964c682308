package picker

import (
	"math/bits"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// chunk is how many candidates are handled at a time: one word of Bits.
const chunk = 64

// Bits is a set of positions. nil is the empty set.
type Bits []uint64

// NewBits returns an empty set with room for n positions.
func NewBits(n int) Bits { return make(Bits, (n+chunk-1)/chunk) }

// Has reports whether the position is in the set.
func (b Bits) Has(i int) bool { return i/chunk < len(b) && b[i/chunk]>>(i%chunk)&1 != 0 }

// Set adds the position to the set, which must have room for it.
func (b Bits) Set(i int) { b[i/chunk] |= 1 << (i % chunk) }

// Unset removes the position from the set.
func (b Bits) Unset(i int) { b[i/chunk] &^= 1 << (i % chunk) }

// Count returns how many positions are in the set.
func (b Bits) Count() int {
	n := 0
	for _, w := range b {
		n += bits.OnesCount64(w)
	}
	return n
}

// word returns 64 positions of the set as one word. Beyond the set they are all absent.
func (b Bits) word(w int) uint64 {
	if w >= len(b) {
		return 0
	}
	return b[w]
}

// nth returns the position of the n-th member, counted from 0, or -1 if there are not
// so many.
func (b Bits) nth(n int) int {
	for w, v := range b {
		if c := bits.OnesCount64(v); n >= c {
			n -= c
			continue
		}
		for ; n > 0; n-- {
			v &= v - 1
		}
		return w*chunk + bits.TrailingZeros64(v)
	}
	return -1
}

// Candidate is one rank with the numbers by which it is judged. Counts must not be
// negative.
type Candidate struct {
	Rank worker.Rank

	OverlapBlocks uint32 // leading blocks of the prompt on the device

	// PredictedBlocks is how many of OverlapBlocks come from what was routed to the
	// rank and not from its events yet. Pick does not use it: it is shown to people.
	PredictedBlocks uint32

	HostBlocks uint32 // blocks in host memory beyond OverlapBlocks
	DiskBlocks uint32 // blocks on disk beyond OverlapBlocks and HostBlocks

	ActivePrefillTokens int64 // prompt tokens that are booked and not prefilled yet
	ActiveDecodeBlocks  int64 // KV blocks that are booked for running answers
	ActiveRequests      int32
	CapacityBlocks      int64 // KV blocks that the rank has; 0: unknown

	// TaintWeight is the sum of the weights of those preferred taints of the request
	// that the worker has; 0 if it has none or the request names its worker.
	TaintWeight float32

	Wait    float64 // seconds until the rank is believed to be free
	Pace    Pace
	Lately  float64 // seconds that the rank has lately computed, older ones counting less
	Writing Writing
	Growing int64   // KV blocks that running answers are still expected to take at most
	Farther float64 // seconds by which bringing the prompt there takes longer than on average

	Estimated   bool // the overlap is from what was routed to the rank, not from its events
	Degraded    bool // the overlap is from the rank's events, of which some are missing
	LoadUnknown bool // the Active… fields have no meaning
	Starved     bool // see Candidates.Starved
}

// Cached are the columns of what candidates hold of a prompt. Each has an element for each of the
// ranks, or is nil, which stands for zeros.
type Cached struct {
	Overlap   []uint32 // leading blocks of the prompt on the rank's device
	Predicted []uint32 // how many of those are predicted: shown, not weighed
	Host      []uint32 // further blocks in host memory
	Disk      []uint32 // further blocks on disk
	Estimated Bits     // whether the overlap of the rank is an estimate
}

// Part returns the columns of n ranks from the given one on. The columns are shared, but for
// Estimated.
func (c *Cached) Part(from, n int) Cached {
	part := func(column []uint32) []uint32 {
		if len(column) < from+n {
			return nil
		}
		return column[from : from+n]
	}
	out := Cached{Overlap: part(c.Overlap), Predicted: part(c.Predicted), Host: part(c.Host), Disk: part(c.Disk)}
	for i := range n {
		if c.Estimated.Has(from + i) {
			if out.Estimated == nil {
				out.Estimated = NewBits(n)
			}
			out.Estimated.Set(i)
		}
	}
	return out
}

// Candidates are the ranks of one pick as columns. Every column has an element for each
// of Ranks, in the same order, or is nil, which stands for zeros. The numbers are
// whole; they are floating-point so that a pick need not convert them. Columns make a
// pick over thousands of ranks a walk through a few arrays, and callers can keep most
// columns from one pick to the next.
//
// A pick writes only to the working memory in Candidates. So one Candidates must not serve
// two picks at the same time.
type Candidates struct {
	Ranks []worker.Rank
	Out   Bits // candidates that may not be picked

	Cached

	Prefill, Decode, Requests []float64 // never nil, unless Ranks is empty
	Capacity                  []float64
	Taint                     []float32

	// For a cost in seconds. Wait is when the rank is believed to be free, from now; PerToken and
	// PerRequest are its Pace, [Unlearned] if nothing is known; without Wait it follows from Prefill and the
	// pace. Lately is what it has lately computed, by which ties are decided.
	Wait, PerToken, PerRequest, Lately []float64
	// For picks of decode by a cost in seconds, in which only Farther may be nil. PerStep and PerBlock are
	// the Writing, [UnlearnedWriting] if nothing is known.
	PerStep, PerBlock, Growing, Farther []float64

	Degraded, LoadUnknown Bits

	// Starved has the candidates that were lately picked far less often than others.
	// When decode fetches the blocks that it lacks, a starved candidate counts as if it
	// held as much of the prompt as the one that holds most. Otherwise the rank that
	// holds a conversation could be the only one that is picked.
	Starved Bits

	// Near, if not nil, receives the cheapest candidates of each pick.
	Near *Shortlist

	in Bits // working memory: the candidates that can be picked
}

// NewCandidates makes columns of rows. It is for few candidates: callers with many keep
// the columns themselves.
func NewCandidates(rows ...Candidate) *Candidates {
	n := len(rows)
	c := &Candidates{
		Ranks: make([]worker.Rank, n), Cached: Cached{Overlap: make([]uint32, n)},
		Prefill: make([]float64, n), Decode: make([]float64, n), Requests: make([]float64, n), Capacity: make([]float64, n),
		PerToken: make([]float64, n), PerRequest: make([]float64, n), PerStep: make([]float64, n), PerBlock: make([]float64, n), Growing: make([]float64, n),
	}
	for i := range rows {
		r := &rows[i]
		c.Ranks[i], c.Overlap[i] = r.Rank, r.OverlapBlocks
		c.Prefill[i], c.Decode[i] = float64(r.ActivePrefillTokens), float64(r.ActiveDecodeBlocks)
		c.Requests[i], c.Capacity[i], c.Growing[i] = float64(r.ActiveRequests), float64(r.CapacityBlocks), float64(r.Growing)
		pace, writes := r.Pace, r.Writing
		if pace == (Pace{}) {
			pace = Unlearned()
		}
		if writes == (Writing{}) {
			writes = UnlearnedWriting()
		}
		c.PerToken[i], c.PerRequest[i], c.PerStep[i], c.PerBlock[i] = pace.PerToken, pace.PerRequest, writes.Base, writes.PerBlock
		put(&c.Predicted, n, i, r.PredictedBlocks)
		put(&c.Host, n, i, r.HostBlocks)
		put(&c.Disk, n, i, r.DiskBlocks)
		put(&c.Taint, n, i, r.TaintWeight)
		put(&c.Wait, n, i, r.Wait)
		put(&c.Lately, n, i, r.Lately)
		put(&c.Farther, n, i, r.Farther)
		mark(&c.Estimated, n, i, r.Estimated)
		mark(&c.Degraded, n, i, r.Degraded)
		mark(&c.LoadUnknown, n, i, r.LoadUnknown)
		mark(&c.Starved, n, i, r.Starved)
	}
	return c
}

// put writes an element of a column. The column is made when it gets its first non-zero
// element.
func put[T comparable](column *[]T, n, i int, v T) {
	var zero T
	if v == zero {
		return
	}
	if *column == nil {
		*column = make([]T, n)
	}
	(*column)[i] = v
}

func mark(b *Bits, n, i int, yes bool) {
	if !yes {
		return
	}
	if *b == nil {
		*b = NewBits(n)
	}
	b.Set(i)
}

// at reads an element of a column, or zero if the column is nil.
func at[T any](column []T, i int) (v T) {
	if column == nil {
		return v
	}
	return column[i]
}

// At returns the candidate at a position.
func (c *Candidates) At(i int) Candidate {
	return Candidate{
		Rank:          c.Ranks[i],
		OverlapBlocks: at(c.Overlap, i), PredictedBlocks: at(c.Predicted, i), HostBlocks: at(c.Host, i), DiskBlocks: at(c.Disk, i),
		ActivePrefillTokens: int64(c.Prefill[i]), ActiveDecodeBlocks: int64(c.Decode[i]), ActiveRequests: int32(c.Requests[i]),
		CapacityBlocks: int64(at(c.Capacity, i)), TaintWeight: at(c.Taint, i),
		Wait: at(c.Wait, i), Pace: Pace{at(c.PerToken, i), at(c.PerRequest, i)}, Lately: at(c.Lately, i),
		Writing: Writing{at(c.PerStep, i), at(c.PerBlock, i)}, Growing: int64(at(c.Growing, i)), Farther: at(c.Farther, i),
		Estimated: c.Estimated.Has(i), Degraded: c.Degraded.Has(i), LoadUnknown: c.LoadUnknown.Has(i), Starved: c.Starved.Has(i),
	}
}

// Eligible returns the candidates that could be picked in the latest pick: neither Out
// nor left out because of overload. It is valid until the next pick.
func (c *Candidates) Eligible() Bits { return c.in }

// Admit makes Eligible return all candidates that are not Out, as a pick does first, and returns
// their number.
func (c *Candidates) Admit() int {
	n := len(c.Ranks)
	words := (n + chunk - 1) / chunk
	if cap(c.in) < words {
		c.in = make(Bits, words)
	}
	c.in = c.in[:words]
	count := 0
	for w := range c.in {
		v := ^c.Out.word(w)
		if left := n - w*chunk; left < chunk {
			v &= 1<<left - 1
		}
		c.in[w] = v
		count += bits.OnesCount64(v)
	}
	return count
}
