package picker

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

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

// AppendTable appends the row of every candidate to dst, in order, with the costs that
// a Pick with the same arguments would compare.
func AppendTable(dst []Row, req *Request, c *Candidates, p *Params) []Row {
	_, _ = c.prepare(p, new(Decision))
	k := newCoster(req, c, p)
	for i := range c.Ranks {
		dst = append(dst, k.row(i, p))
	}
	return dst
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

// Format writes rows as a table for people. It marks the picked rank with a star, and
// candidates that could not be picked with an x. With a zero picked no rank has a star.
func Format(rows []Row, picked worker.Rank) string {
	const columns = 12
	cells := make([][columns]string, 0, len(rows)+1)
	cells = append(cells, [columns]string{
		"", "rank", "overlap", "cached", "uncached", "queued", "blocks", "requests", "credit", "prefill", "decode", "cost",
	})
	for i := range rows {
		r := &rows[i]
		star := ""
		switch {
		case picked.ID != 0 && r.Rank == picked:
			star = "*"
		case r.Out:
			star = "x"
		}
		queued, blocks, requests := "?", "?", "?"
		if !r.LoadUnknown {
			queued, blocks = fmt.Sprint(r.ActivePrefillTokens), fmt.Sprint(r.ActiveDecodeBlocks)
			requests = fmt.Sprint(r.ActiveRequests)
		}
		cells = append(cells, [columns]string{
			star, r.Rank.String(), r.Overlap(), fmt.Sprint(r.CachedTokens), fmt.Sprint(r.UncachedTokens),
			queued, blocks, requests, num(r.CreditBlocks), num(r.PrefillCost), num(r.DecodeCost), num(r.Cost),
		})
	}
	var width [columns]int
	for _, row := range cells {
		for i, c := range row {
			width[i] = max(width[i], len(c))
		}
	}
	var out strings.Builder
	for _, row := range cells {
		var line strings.Builder
		for i, c := range row {
			if i == 1 {
				fmt.Fprintf(&line, "%-*s", width[i], c)
			} else {
				fmt.Fprintf(&line, "%*s", width[i], c)
			}
			line.WriteString("  ")
		}
		out.WriteString(strings.TrimRight(line.String(), " "))
		out.WriteByte('\n')
	}
	return out.String()
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

// num writes a term with at most three digits after the point.
func num(f float64) string {
	return strings.TrimRight(strings.TrimRight(fmt.Sprintf("%.3f", f), "0"), ".")
}
