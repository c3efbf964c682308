package main

import (
	"fmt"

	"github.com/seed-60ae5743/baton/internal/decision"
)

// why says why a prefill worker was picked. What it holds has a column of its own.
func why(c *decision.Choice, n names) string {
	return c.WhyNaming(0, func(r *decision.Row) string { return n.of(r.Rank.ID) })
}

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
	return pair + ": " + leg + "given up for a fresh attempt" + detail(d.Detail)
}

func detail(s string) string {
	if s == "" {
		return ""
	}
	return " (" + s + ")"
}
