package picker

// Row is one candidate with the terms of its cost.
type Row struct {
	Candidate

	LackingBlocks  int64    // blocks of the prompt that a decode rank would fetch, as the cost counts them
	SharedBlocks   int64    // blocks of the prompt that the rank can fetch from the shared cache
	CachedTokens   int64    // tokens of the prompt that are cached, as the cost counts them
	UncachedTokens int64    // tokens of the prompt that are not cached
	CreditBlocks   float64  // what all cached blocks take off the cost
	WaitSeconds    float64  // of a cost in seconds: until the rank is believed to be free
	OwnSeconds     float64  // of a cost in seconds: what the prompt takes on the rank
	PrefillCost    float64  // in blocks; of a cost in seconds the wait and the prompt's own time
	DecodeCost     float64  // in blocks, including the weight of requests and the cost of fetching; or in seconds
	Cost           float64  // what the mode compares; see Decision.Cost
	Overload       Overload // the threshold that the candidate is over, if any
	Late           bool     // it is believed to miss the request's target
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
		CreditBlocks:   t.creditBlocks,
		WaitSeconds:    t.wait,
		OwnSeconds:     t.own,
		PrefillCost:    t.prefill,
		DecodeCost:     t.decode,
		Overload:       k.c.OverloadOf(i, p),
		Out:            !k.c.in.Has(i),
	}
	r.Estimated = r.Estimated || k.allEstimated
	switch p.Mode {
	case KV:
		r.Cost = t.cost
		r.Late = t.late
		if r.Late {
			r.Cost -= tooLate
		}
	case LeastLoaded, PowerOfTwo:
		r.Cost = k.c.loadCost(i)
	}
	return r
}
