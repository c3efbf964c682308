package picker

import "strconv"

// Row is one candidate with the terms of its cost.
type Row struct {
	Candidate

	LackingBlocks  int64    // blocks of the prompt that a decode rank would fetch, as the cost counts them
	SharedBlocks   int64    // blocks of the prompt that the rank can fetch from the shared cache
	CachedTokens   int64    // tokens of the prompt that are cached, as the cost counts them
	UncachedTokens int64    // tokens of the prompt that are not cached
	Credit         float64  // what one overlapping block is worth for this candidate, in blocks
	CreditBlocks   float64  // what all cached blocks take off the cost
	PrefillCost    float64  // in blocks
	DecodeCost     float64  // in blocks, including the weight of requests and the cost of fetching
	Cost           float64  // what the mode compares; see Decision.Cost
	Overload       Overload // the threshold that the candidate is over, if any
	Out            bool     // it could not be picked: it is over a threshold, or in Candidates.Out
}

// AppendNear appends the row of the picked candidate, and then, cheapest first, the
// rows of the other candidates in c.Near. Call it after the Pick with the same
// arguments, before the numbers in c change.
func AppendNear(dst []Row, req *Request, c *Candidates, p *Params, d *Decision) []Row {
	k := newCoster(req, c, p)
	dst = append(dst, k.row(d.Index, p))
	for n := range c.Near.Len() {
		if i := c.Near.Position(n); i != d.Index {
			dst = append(dst, k.row(i, p))
		}
	}
	return dst
}

func (k *coster) row(i int, p *Params) Row {
	var t terms
	k.of(i, &t)
	r := Row{
		Candidate:      k.c.At(i),
		LackingBlocks:  int64(t.lacking),
		SharedBlocks:   int64(t.shared),
		CachedTokens:   int64(t.cached),
		UncachedTokens: int64(max(0, k.isl-t.cached)),
		Credit:         t.credit,
		CreditBlocks:   t.creditBlocks,
		PrefillCost:    t.prefill,
		DecodeCost:     t.decode,
		Overload:       k.c.OverloadOf(i, p),
		Out:            !k.c.in.Has(i),
	}
	r.Estimated = r.Estimated || k.allEstimated
	switch p.Mode {
	case KV:
		r.Cost = t.cost
	case LeastLoaded, PowerOfTwo:
		r.Cost = k.c.loadCost(i)
	}
	return r
}

// Overlap writes the blocks on the device, and if there are any how many of them are
// predicted (p), the further ones in host memory (h) and those on disk (d). "~" before
// them marks an estimate, "!" a degraded rank.
func (c *Candidate) Overlap() string {
	s := strconv.FormatUint(uint64(c.OverlapBlocks), 10)
	if c.PredictedBlocks > 0 {
		s += "(" + strconv.FormatUint(uint64(c.PredictedBlocks), 10) + "p)"
	}
	if c.HostBlocks > 0 {
		s += "+" + strconv.FormatUint(uint64(c.HostBlocks), 10) + "h"
	}
	if c.DiskBlocks > 0 {
		s += "+" + strconv.FormatUint(uint64(c.DiskBlocks), 10) + "d"
	}
	switch {
	case c.Estimated:
		s = "~" + s
	case c.Degraded:
		s = "!" + s
	}
	return s
}

// Overlap is the overlap of the candidate, and the blocks that it can fetch from the
// shared cache (s).
func (r *Row) Overlap() string {
	s := r.Candidate.Overlap()
	if r.SharedBlocks > 0 {
		s += "+" + strconv.FormatInt(r.SharedBlocks, 10) + "s"
	}
	return s
}
