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

	LackingBlocks  int64    // of the prompt, that a decode rank would fetch; what the cost counts
	SharedBlocks   int64    // that the rank can fetch from the shared cache
	CachedTokens   int64    // of the prompt, as the cost counts them
	UncachedTokens int64    // of the prompt
	Credit         float64  // what one overlapping block is worth here, in blocks
	CreditBlocks   float64  // what the cache takes off
	PrefillCost    float64  // in blocks
	DecodeCost     float64  // in blocks, the weight of requests and what is to be fetched included
	Cost           float64  // what the mode compares; see Decision.Cost
	Overload       Overload // the threshold that it is over, if any
	Out            bool     // it could not be picked, for overload or what the caller knows
}

// AppendTable appends to dst the row of every candidate, in order: the costs
// that Pick sees when given the same arguments.
func AppendTable(dst []Row, req *Request, c *Candidates, p *Params) []Row {
	_, _ = c.prepare(p, new(Decision))
	k := newCoster(req, c, p)
	for i := range c.Ranks {
		dst = append(dst, k.row(i, p))
	}
	return dst
}

// AppendNear appends the rows of the picked candidate and, cheapest first, of
// the others that c.Near holds. It is to be called after the Pick of the same
// arguments, before the numbers of c change.
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

// Format writes rows as a table for people, the picked rank marked with a star,
// one that could not be picked with an x. A zero picked marks none.
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

// Overlap writes device blocks, how many of them are predicted (p), then those beyond in host memory (h) and on disk
// (d), where there are any; a tilde marks an estimate, an exclamation mark a rank
// that did not tell all.
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

// Overlap adds to that of the candidate what it can fetch from the shared cache (s).
func (r *Row) Overlap() string {
	s := r.Candidate.Overlap()
	if r.SharedBlocks > 0 {
		s += "+" + strconv.FormatInt(r.SharedBlocks, 10) + "s"
	}
	return s
}

// num prints a term with three digits after the point at most.
func num(f float64) string {
	return strings.TrimRight(strings.TrimRight(fmt.Sprintf("%.3f", f), "0"), ".")
}
