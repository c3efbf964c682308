package picker

import (
	"math/bits"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// chunk is how many candidates are judged at a time: one word of Bits.
const chunk = 64

// Bits is a set of positions. Where a set is optional, nil is the empty one.
type Bits []uint64

// NewBits returns an empty set with room for n positions.
func NewBits(n int) Bits { return make(Bits, (n+chunk-1)/chunk) }

// Has reports whether the position is in the set.
func (b Bits) Has(i int) bool { return i/chunk < len(b) && b[i/chunk]>>(i%chunk)&1 != 0 }

// Set puts the position, for which there must be room, into the set.
func (b Bits) Set(i int) { b[i/chunk] |= 1 << (i % chunk) }

// Unset takes the position out of the set.
func (b Bits) Unset(i int) { b[i/chunk] &^= 1 << (i % chunk) }

// Count returns how many positions are in the set.
func (b Bits) Count() int {
	n := 0
	for _, w := range b {
		n += bits.OnesCount64(w)
	}
	return n
}

// word returns 64 positions of a set that may be nil.
func (b Bits) word(w int) uint64 {
	if w >= len(b) {
		return 0
	}
	return b[w]
}

// nth returns the position of the n-th member, counted from 0.
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

// Candidate is one rank with the numbers it is judged by. Counts must not be
// negative.
type Candidate struct {
	Rank worker.Rank

	OverlapBlocks uint32 // leading blocks of the prompt on the device

	// PredictedBlocks is how many of them are not told but expected to be. It
	// weighs nothing here; it is for people.
	PredictedBlocks uint32

	HostBlocks uint32 // blocks in host memory beyond those
	DiskBlocks uint32 // blocks on disk beyond those

	ActivePrefillTokens int64 // prompt tokens booked and not yet done
	ActiveDecodeBlocks  int64 // KV blocks booked for running answers
	ActiveRequests      int32
	CapacityBlocks      int64 // KV blocks that the rank has; 0: not known

	// TaintWeight is the sum of the weights of the request's preferred taints
	// that the worker has; 0 where there is none or the request is pinned.
	TaintWeight float32

	Estimated   bool // the overlap is what was routed there, not what it told
	Degraded    bool // the overlap is what it told, but not all of that came
	LoadUnknown bool // the Active… numbers mean nothing
	Starved     bool // see Candidates.Starved
}

// Candidates are the ranks of one pick as columns: every column has an element
// for each of Ranks, in their order, or is nil, which stands for zeros. The
// numbers are whole, and floating only so that a pick need not convert them.
// Columns make a pick over thousands of ranks a walk through a few arrays, and
// let the caller keep most of them from one pick to the next.
//
// The picker writes to nothing of it but its own working memory, so one
// Candidates must not serve two picks at a time.
type Candidates struct {
	Ranks []worker.Rank
	Out   Bits // who may not be picked

	Overlap, Host, Disk       []uint32 // see Candidate
	Predicted                 []uint32
	Prefill, Decode, Requests []float64 // never nil, but for no ranks
	Capacity                  []float64
	Taint                     []float32

	Estimated, Degraded, LoadUnknown Bits

	// Starved has those who have lately been picked far less often than others. Where
	// decode fetches what it lacks, they count as though they lacked no more than whoever
	// lacks least: what a rank has must not keep it the only one that gets anything.
	Starved Bits

	// Near, if not nil, gets the cheapest candidates of each pick.
	Near *Shortlist

	in Bits // working memory: who can be picked
}

// NewCandidates lays rows out as columns. It is for few candidates: callers
// with many keep the columns themselves.
func NewCandidates(rows ...Candidate) *Candidates {
	n := len(rows)
	c := &Candidates{
		Ranks: make([]worker.Rank, n), Overlap: make([]uint32, n),
		Prefill: make([]float64, n), Decode: make([]float64, n), Requests: make([]float64, n),
	}
	for i := range rows {
		r := &rows[i]
		c.Ranks[i], c.Overlap[i] = r.Rank, r.OverlapBlocks
		c.Prefill[i], c.Decode[i] = float64(r.ActivePrefillTokens), float64(r.ActiveDecodeBlocks)
		c.Requests[i] = float64(r.ActiveRequests)
		put(&c.Predicted, n, i, r.PredictedBlocks)
		put(&c.Host, n, i, r.HostBlocks)
		put(&c.Disk, n, i, r.DiskBlocks)
		put(&c.Capacity, n, i, float64(r.CapacityBlocks))
		put(&c.Taint, n, i, r.TaintWeight)
		mark(&c.Estimated, n, i, r.Estimated)
		mark(&c.Degraded, n, i, r.Degraded)
		mark(&c.LoadUnknown, n, i, r.LoadUnknown)
		mark(&c.Starved, n, i, r.Starved)
	}
	return c
}

// put writes to a column that is not there before it has a value.
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

// at reads a column that may be nil.
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
		Estimated: c.Estimated.Has(i), Degraded: c.Degraded.Has(i), LoadUnknown: c.LoadUnknown.Has(i), Starved: c.Starved.Has(i),
	}
}

// Eligible returns who could be picked in the latest pick: not out, and not
// left out for being overloaded. It is valid until the next pick.
func (c *Candidates) Eligible() Bits { return c.in }

// Admit works out what Eligible says where no pick does.
func (c *Candidates) Admit() { c.admit() }

// admit works out who can be picked, overload aside, and how many they are.
func (c *Candidates) admit() int {
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
