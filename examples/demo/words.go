package main

import (
	"fmt"
	"strconv"

	"github.com/seed-60ae5743/baton/internal/decision"
)

// why says in plain words why a prefill worker was picked, from its cost table.
func why(c *decision.Choice, blocks int64, n names) string {
	var picked *decision.Row
	var others []decision.Row
	out := 0
	for i := range c.Rows() {
		switch r := &c.Rows()[i]; {
		case c.Picked(r):
			picked = r
		case !r.Out:
			others = append(others, *r)
		default:
			out++
		}
	}
	if picked == nil {
		return "not told"
	}
	if len(others) == 0 {
		text := "the only prefill worker"
		if out > 0 {
			text = "the only one left, " + strconv.Itoa(out) + " set aside"
		}
		return text
	}
	next := others[0] // the cheapest, the plugin has sorted them
	switch {
	case picked.Cost > next.Cost:
		return fmt.Sprintf("drawn, at cost %s against %s", cost(picked.Cost), cost(next.Cost))
	case picked.Cost == next.Cost:
		return "as cheap as " + n.of(next.Rank.ID) + ", drawn by lot"
	case picked.OverlapBlocks > next.OverlapBlocks:
		return fmt.Sprintf("holds %d of %d blocks: cost %s, %s %s",
			picked.OverlapBlocks, blocks, cost(picked.Cost), n.of(next.Rank.ID), cost(next.Cost))
	case picked.ActiveRequests < next.ActiveRequests:
		return fmt.Sprintf("%s is busy: cost %s, %s %s", n.of(next.Rank.ID), cost(picked.Cost), n.of(next.Rank.ID), cost(next.Cost))
	default:
		return fmt.Sprintf("cost %s, %s %s", cost(picked.Cost), n.of(next.Rank.ID), cost(next.Cost))
	}
}

// cost is in KV blocks to compute; one digit is enough to compare.
func cost(f float64) string { return strconv.FormatFloat(f, 'f', 1, 64) }

// attemptText says in one line how an attempt went.
func attemptText(d *decision.Record, n names) string {
	pair := fmt.Sprintf("prefill %s, decode %s", n.of(d.Prefill.Rank.ID), n.of(d.Decode.Rank.ID))
	if d.Outcome != decision.Retried {
		return pair + ": " + string(d.Outcome) + detail(d.Detail)
	}
	leg := ""
	if d.Leg == "failed" {
		leg = "the prefill leg failed" + detail(d.LegDetail) + "; "
	}
	return pair + ": " + leg + "given up for a fresh pick" + detail(d.Detail)
}

func detail(s string) string {
	if s == "" {
		return ""
	}
	return " (" + s + ")"
}
