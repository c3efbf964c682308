package picktable

import (
	"fmt"
	"strings"

	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Format writes rows as a table for people. It marks the picked rank with a star, and
// candidates that could not be picked with an x. With a zero picked no rank has a star.
func Format(rows []picker.Row, picked worker.Rank) string {
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

// num writes a term with at most three digits after the point.
func num(f float64) string {
	return strings.TrimRight(strings.TrimRight(fmt.Sprintf("%.3f", f), "0"), ".")
}
