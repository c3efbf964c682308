package picktable

import (
	"fmt"
	"strconv"
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
			star, r.Rank.String(), overlap(r), fmt.Sprint(r.CachedTokens), fmt.Sprint(r.UncachedTokens),
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

// overlap writes the blocks on the device, and if there are any how many of them are
// predicted (p), the further ones in host memory (h) and those on disk (d), and those that
// the rank can fetch from the shared cache (s). "~" before them marks an estimate, "!" a
// degraded rank.
func overlap(r *picker.Row) string {
	s := strconv.FormatUint(uint64(r.OverlapBlocks), 10)
	if r.PredictedBlocks > 0 {
		s += "(" + strconv.FormatUint(uint64(r.PredictedBlocks), 10) + "p)"
	}
	if r.HostBlocks > 0 {
		s += "+" + strconv.FormatUint(uint64(r.HostBlocks), 10) + "h"
	}
	if r.DiskBlocks > 0 {
		s += "+" + strconv.FormatUint(uint64(r.DiskBlocks), 10) + "d"
	}
	switch {
	case r.Estimated:
		s = "~" + s
	case r.Degraded:
		s = "!" + s
	}
	if r.SharedBlocks > 0 {
		s += "+" + strconv.FormatInt(r.SharedBlocks, 10) + "s"
	}
	return s
}

// num writes a term with at most three digits after the point.
func num(f float64) string {
	return strings.TrimRight(strings.TrimRight(fmt.Sprintf("%.3f", f), "0"), ".")
}
