package picker

import (
	"fmt"
	"strings"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Row is one candidate with the terms of its cost.
type Row struct {
	Candidate

	CachedTokens   int64   // of the prompt, as the cost counts them
	UncachedTokens int64   // of the prompt
	Credit         float64 // what one overlapping block is worth here, in blocks
	CreditBlocks   float64 // what the cache takes off
	PrefillCost    float64 // in blocks
	DecodeCost     float64 // in blocks, the weight of requests included
	Cost           float64 // what the mode compares; see Decision.Cost
}

// AppendTable appends to dst the row of every candidate, in order: the costs
// that Pick sees when given the same arguments.
func AppendTable(dst []Row, req *Request, cands []Candidate, p *Params) []Row {
	k := newCoster(req, cands, p)
	var t terms
	for i := range cands {
		c := &cands[i]
		k.of(c, &t)
		r := Row{
			Candidate:      *c,
			CachedTokens:   t.cached,
			UncachedTokens: max(0, k.isl-t.cached),
			Credit:         t.credit,
			CreditBlocks:   t.creditBlocks,
			PrefillCost:    t.prefill,
			DecodeCost:     t.decode,
		}
		r.Estimated = r.Estimated || req.Estimated
		switch p.Mode {
		case KV:
			r.Cost = t.cost
		case LeastLoaded, PowerOfTwo:
			r.Cost = loadCost(c)
		}
		dst = append(dst, r)
	}
	return dst
}

// Format writes rows as a table for people, the picked rank marked with a star.
// A zero picked marks none.
func Format(rows []Row, picked worker.Rank) string {
	const columns = 12
	cells := make([][columns]string, 0, len(rows)+1)
	cells = append(cells, [columns]string{
		"", "rank", "overlap", "cached", "uncached", "queued", "blocks", "requests", "credit", "prefill", "decode", "cost",
	})
	for i := range rows {
		r := &rows[i]
		star := ""
		if picked.ID != 0 && r.Rank == picked {
			star = "*"
		}
		queued, blocks, requests := "?", "?", "?"
		if !r.LoadUnknown {
			queued, blocks = fmt.Sprint(r.ActivePrefillTokens), fmt.Sprint(r.ActiveDecodeBlocks)
			requests = fmt.Sprint(r.ActiveRequests)
		}
		cells = append(cells, [columns]string{
			star, r.Rank.String(), r.overlap(), fmt.Sprint(r.CachedTokens), fmt.Sprint(r.UncachedTokens),
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

// overlap writes device blocks, then host and disk ones where there are any; a
// tilde marks an estimate.
func (r *Row) overlap() string {
	s := fmt.Sprint(r.OverlapBlocks)
	if r.HostBlocks|r.DiskBlocks != 0 {
		s += fmt.Sprintf("+%dh+%dd", r.HostBlocks, r.DiskBlocks)
	}
	if r.Estimated {
		s = "~" + s
	}
	return s
}

// num prints a term with three digits after the point at most.
func num(f float64) string {
	return strings.TrimRight(strings.TrimRight(fmt.Sprintf("%.3f", f), "0"), ".")
}
