package load

import (
	"math/bits"

	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Cause is why a rank could not be picked.
type Cause uint8

// The causes.
const (
	OutAside      Cause = iota + 1 // the filter does not allow the rank
	OutExcluded                    // an attempt of this request has failed there
	OutUnknown                     // the rank has left, or is not known yet
	OutOverloaded                  // the rank is over a threshold; see OutRow.Overload
	OutTaint                       // the rank lacks a required taint; see OutRow.Taint
	OutSubset                      // the rank is not in Request.Within
)

// OutRow is a rank that could not be picked.
type OutRow struct {
	Rank     worker.Rank
	Cause    Cause
	Overload picker.Overload
	Taint    string
}

// Explanation is what a pick saw, for people to read: the picked rank and the cheapest
// others, and some of the ranks that could not be picked. Only these few of thousands are
// kept, so that explaining costs little compared with picking. The zero value is ready.
// Reusing it saves allocations.
type Explanation struct {
	Rows []picker.Row // the picked rank first, then the others by cost; empty if no rank was picked
	Out  []OutRow     // at most picker.ShortlistLen
	Left int          // ranks in neither Rows nor Out
	More int          // of those, the ranks that could have been picked

	// Holder is the rank that could not be picked and holds more of the prompt than any that
	// could, with Held blocks. Held is 0 if there is none.
	Holder OutRow
	Held   uint32
	// Missing says that KV events are missing of the rank that holds most of those that could
	// be picked.
	Missing bool

	near picker.Shortlist
}

func (x *Explanation) reset() {
	x.Rows, x.Out, x.Left, x.More = x.Rows[:0], x.Out[:0], 0, 0
	x.Held, x.Missing = 0, false
}

// fill writes what a pick saw. The caller holds the book's lock since the pick.
func (x *Explanation) fill(b *Book, t *table, req *Request, d *picker.Decision) {
	x.reset()
	c := &t.cols
	if d.Index >= 0 {
		x.Rows = picker.AppendNear(x.Rows, &req.Pick, c, req.Params, d)
		x.Held = d.OutOverlap
		if x.Held > 0 {
			x.Holder = b.outRow(t, req, d.OutAt)
		}
		x.Missing = d.MostAt >= 0 && c.Degraded.Has(d.MostAt) && !req.Pick.Estimated && !c.Estimated.Has(d.MostAt)
	}
	in := c.Eligible()
	for w := range in {
		x.More += bits.OnesCount64(in[w])
		rest := ^in[w]
		if n := len(c.Ranks) - w*64; n < 64 {
			rest &= 1<<n - 1
		}
		for ; rest != 0 && len(x.Out) < picker.ShortlistLen; rest &= rest - 1 {
			x.Out = append(x.Out, b.outRow(t, req, w*64+bits.TrailingZeros64(rest)))
		}
	}
	x.Left, x.More = len(c.Ranks)-len(x.Rows)-len(x.Out), x.More-len(x.Rows)
}

func (b *Book) outRow(t *table, req *Request, i int) OutRow {
	r := OutRow{Rank: t.cols.Ranks[i], Overload: t.cols.OverloadOf(i, req.Params)}
	switch {
	case t.unknown.Has(i):
		r.Cause, r.Overload = OutUnknown, picker.NotOverloaded
	case req.Within != nil && !req.Within.Has(i):
		r.Cause, r.Overload = OutSubset, picker.NotOverloaded
	case req.Filter != nil && t.barred.Has(i):
		r.Cause = OutAside
	case b.lacksLocked(&r, req.Constraints):
		r.Cause = OutTaint
	case !t.cols.Out.Has(i):
		r.Cause = OutOverloaded
	default:
		r.Cause = OutAside
		for _, x := range req.Exclude {
			if x == r.Rank {
				r.Cause = OutExcluded
			}
		}
	}
	return r
}

// lacksLocked notes which required taint the rank lacks. False means that it lacks none.
func (b *Book) lacksLocked(r *OutRow, c *picker.Constraints) bool {
	if slot := b.slotLocked(r.Rank); slot >= 0 {
		r.Taint = c.Lacks(b.entries[slot].worker)
	}
	return r.Taint != ""
}
