package decision

import (
	"cmp"
	"fmt"
	"math"
	"strings"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Why says in one sentence why the rank was picked, from the cost table. promptBlocks is
// Record.PromptBlocks; 0 leaves the overlap out. For a choice that was read from JSON it
// is the sentence in the JSON.
func (c *Choice) Why(promptBlocks int64) string {
	if c.said != "" {
		return c.said
	}
	return c.WhyNaming(promptBlocks, (*Row).Name)
}

// WhyNaming is Why with the caller's names for the candidates.
func (c *Choice) WhyNaming(promptBlocks int64, name func(*Row) string) string {
	rows := c.Rows()
	if !c.Made() {
		if c.Refused != "" {
			return "nobody was picked: " + c.Refused
		}
		return whyNobody(rows, c.left)
	}
	if c.Replaced != "" {
		return "picked " + c.Replaced
	}
	if len(rows) == 0 || rows[0].Rank != c.Rank || c.Mode == "direct" || c.Mode == "pre-routed" {
		return c.holds(c.byMode(), promptBlocks)
	}
	var rest []Row
	for _, r := range rows[1:] {
		if !r.Out {
			rest = append(rest, r)
		}
	}
	if len(rest) == 0 {
		if len(rows) == 1 && c.left == 0 {
			return c.holds("the only candidate", promptBlocks)
		}
		return c.holds("the only candidate left: the others were not eligible", promptBlocks)
	}
	return c.holds(c.against(&rows[0], rest, name), promptBlocks)
}

// Leg is one pick of a decision, as a page shows it.
type Leg struct {
	Name   string
	Why    string
	Choice *Choice
}

// Legs returns the picks that have anything to show. If a pick is for decode alone, its
// sentence leaves the overlap out: the overlap does not lower the cost there.
func (r *Record) Legs() []Leg {
	var out []Leg
	if r.Prefill.Told() {
		out = append(out, Leg{"prefill", r.Prefill.Why(r.PromptBlocks), &r.Prefill})
	}
	if r.Decode.Told() {
		blocks := r.PromptBlocks
		if r.Prefill.Made() || r.Decode.Role == worker.Decode {
			blocks = 0
		}
		out = append(out, Leg{"decode", r.Decode.Why(blocks), &r.Decode})
	}
	return out
}

// Who names the rank that was picked.
func (c *Choice) Who() string {
	if !c.Made() {
		return "nobody"
	}
	return Name(c.Endpoint, c.Rank)
}

// against compares the picked row with the cheapest of the other rows.
func (c *Choice) against(picked *Row, rest []Row, name func(*Row) string) string {
	next := &rest[0]
	switch {
	case c.Mode == "least-loaded":
		return fmt.Sprintf("fewest requests in flight, %d; next %s with %d",
			picked.ActiveRequests, name(next), next.ActiveRequests)
	case modeWhy[c.Mode] != "":
		return fmt.Sprintf("%s, of %d candidates", c.byMode(), 1+len(rest)+c.more)
	case picked.Cost < next.Cost:
		return fmt.Sprintf("lowest cost %s%s; next best %s at %s", c.CostText(picked.Cost), c.parts(picked), name(next), c.CostText(next.Cost))
	case picked.Cost == next.Cost:
		ties := 1
		for _, r := range rest {
			if r.Cost == picked.Cost {
				ties++
			}
		}
		settled := "settled by the draw"
		if c.InSeconds && c.Role != worker.Decode {
			settled = "of which it has computed least lately"
		}
		return fmt.Sprintf("lowest cost %s, a tie of %d %s", c.CostText(picked.Cost), ties, settled)
	case c.Target > 0 && c.InSeconds:
		return fmt.Sprintf("lowest cost %s%s of those that keep the target of %v; %s at %s is believed to miss it", c.CostText(picked.Cost), c.parts(picked), c.Target, name(next), c.CostText(next.Cost))
	default:
		return fmt.Sprintf("%s; cost %s, though %s was at %s",
			c.byMode(), c.CostText(picked.Cost), name(next), c.CostText(next.Cost))
	}
}

// holds adds to the sentence s how many of the prompt's blocks the picked worker has.
func (c *Choice) holds(s string, promptBlocks int64) string {
	if promptBlocks <= 0 {
		return s
	}
	var picked Row
	if c.n > 0 && c.rows[0].Rank == c.Rank {
		picked = c.rows[0]
	}
	lower := ""
	if picked.HostBlocks > 0 {
		lower += fmt.Sprintf(", and %d in host memory", picked.HostBlocks)
	}
	if picked.DiskBlocks > 0 {
		lower += fmt.Sprintf(", and %d on disk", picked.DiskBlocks)
	}
	if c.OverlapBlocks <= 0 {
		return fmt.Sprintf("%s; it holds none of the prompt's %d blocks%s", s, promptBlocks, strings.Replace(lower, "and", "but", 1))
	}
	about := ""
	switch {
	case picked.Estimated:
		about = " by estimate"
	case picked.PredictedBlocks > 0:
		lower = fmt.Sprintf(", %d of them not told yet", picked.PredictedBlocks) + lower
	}
	return fmt.Sprintf("%s; it holds%s %d of the prompt's %d blocks%s", s, about, c.OverlapBlocks, promptBlocks, lower)
}

func whyNobody(rows []Row, left int) string {
	if len(rows) == 0 {
		return "nobody was picked: there was no candidate"
	}
	seen := map[string]int{}
	var order []string
	for _, r := range rows {
		note := cmp.Or(r.Note, "not eligible")
		if seen[note] == 0 {
			order = append(order, note)
		}
		seen[note]++
	}
	for i, n := range order {
		order[i] = fmt.Sprintf("%s (%d)", n, seen[n])
	}
	s := "nobody was picked: " + strings.Join(order, ", ")
	if left > 0 {
		s += fmt.Sprintf(" and %d more", left)
	}
	return s
}

// modeWhy says why the modes pick that do not pick the lowest cost of the whole table.
var modeWhy = map[string]string{
	"round-robin": "next in turn", "random": "drawn at random", "power-of-two": "the less loaded of two drawn at random",
	"direct": "the request named it", "pre-routed": "the request named it", "least-loaded": "least loaded",
}

// byMode says why the choice's mode has picked so.
func (c *Choice) byMode() string {
	switch {
	case modeWhy[c.Mode] != "":
		return modeWhy[c.Mode]
	case c.Reason == "sampled":
		return "drawn by lot, the cheaper the likelier (temperature above 0)"
	case c.Reason != "":
		return "picked: " + c.Reason
	default:
		return "picked"
	}
}

// CostText is a cost of the choice as people read it: seconds to the millisecond, anything else with one
// digit after the point.
func (c *Choice) CostText(f float64) string {
	switch {
	case math.IsNaN(f) || math.IsInf(f, 0):
		return "–"
	case c.InSeconds:
		return fmt.Sprintf("%.3f s", f)
	}
	return fmt.Sprintf("%.1f", f)
}

// parts says what the cost of a row in seconds is made of.
func (c *Choice) parts(r *Row) string {
	if !c.InSeconds || c.Role == worker.Decode {
		return ""
	}
	late := ""
	if c.Late {
		late = fmt.Sprintf("; nobody is believed to keep the target of %v", c.Target)
	}
	return fmt.Sprintf(" (%.3f s until it is free, %.3f s for the prompt%s)", r.WaitSeconds, r.OwnSeconds, late)
}

// OutcomeText is the outcome with its detail, as "refused: no_worker".
func (r *Record) OutcomeText() string {
	o := cmp.Or(string(r.Outcome), "deciding")
	if r.Detail == "" {
		return o
	}
	return o + ": " + r.Detail
}

// LegText is the state of the prefill leg with its detail and what it has met, as "failed:
// status (500 at /generate: out of memory)". The status page's template reads it.
func (r *Record) LegText() string {
	s := string(r.Leg)
	if r.LegDetail != "" {
		s += ": " + r.LegDetail
	}
	if r.LegError != "" {
		s += " (" + r.LegError + ")"
	}
	return s
}

// TokenText is the source of the tokens with its reason, as "byte estimate (tokenize
// timed out)". The status page's template reads it, too.
func (r *Record) TokenText() string {
	if r.TokenReason == "" {
		return string(r.TokenSource)
	}
	return string(r.TokenSource) + " (" + r.TokenReason + ")"
}
