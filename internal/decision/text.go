package decision

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Line is the decision in one line, for a header: how the prompt was counted, then for
// each pick the eligible candidates with their costs, cheapest first, and how many more
// there were.
func (r *Record) Line() string {
	var b strings.Builder
	fmt.Fprintf(&b, "attempt=%d isl=%d blocks=%d tokens=%q", r.Attempt, r.ISLTokens, r.PromptBlocks, r.TokenSource)
	for _, c := range []*Choice{&r.Prefill, &r.Decode} {
		if !c.Made() {
			continue
		}
		fmt.Fprintf(&b, "; %s=%s reason=%s", c.Role, c.Rank, c.Reason)
		for i := range c.Rows() {
			if row := &c.rows[i]; !row.Out {
				fmt.Fprintf(&b, " %s:%.5g(overlap=%s)", row.Rank, row.Cost, row.Overlap())
			}
		}
		if c.more > 0 {
			fmt.Fprintf(&b, " +%d", c.more)
		}
	}
	if r.Split != "" {
		fmt.Fprintf(&b, "; split=%q", r.Split)
	}
	return b.String()
}

// Text is the decision in several lines, for a terminal: how the prompt was counted, then
// each pick with its table of candidates.
func (r *Record) Text() string {
	var b strings.Builder
	if r.TokenSource != "" {
		fmt.Fprintf(&b, "model %s, %d tokens in %d blocks, from %s\n", r.Model, r.ISLTokens, r.PromptBlocks, r.TokenText())
	}
	if r.Split != "" {
		fmt.Fprintf(&b, "%s\n", r.Split)
	}
	if r.Outcome == Refused || r.Error != "" {
		fmt.Fprintf(&b, "%s\n", strings.TrimSuffix(r.OutcomeText()+": "+r.Error, ": "))
	}
	if r.Loss != "" {
		fmt.Fprintf(&b, "overlap: %s\n", r.Loss)
	}
	for _, line := range r.Trouble {
		fmt.Fprintf(&b, "in trouble: %s\n", line)
	}
	for _, leg := range r.Legs() {
		c := leg.Choice
		fmt.Fprintf(&b, "\n%s: %s (%s)\n  %s\n", leg.Name, c.Who(), c.Mode, leg.Why)
		if len(c.Rows()) > 0 {
			c.table(&b)
		}
	}
	return b.String()
}

// table writes the candidates that c holds.
func (c *Choice) table(to io.Writer) {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "  \tworker\trank\toverlap\tprefill tokens\tdecode blocks\trequests\tcost\tknown\t")
	for i := range c.Rows() {
		r := &c.rows[i]
		mark, known := "", "-"
		if r.KnownAgo > 0 {
			known = fmt.Sprintf("%.0f s ago", r.KnownAgo.Seconds())
		}
		if c.Picked(r) {
			mark = "*"
		}
		cost := c.CostText(r.Cost)
		if r.Out {
			cost = "out: " + r.Note
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\t%d\t%d\t%d\t%s\t%s\t\n", mark, cmp.Or(r.Endpoint, "-"), r.Rank, r.Overlap(),
			r.ActivePrefillTokens, r.ActiveDecodeBlocks, r.ActiveRequests, cost, known)
	}
	_ = w.Flush()
	if c.left > 0 {
		fmt.Fprintf(to, "  and %d more\n", c.left)
	}
	for i := range c.Rows() {
		if r := &c.rows[i]; r.StaleFor > 0 {
			fmt.Fprintf(to, "  stale: the record of %s expired %.0f s ago, and it still answers\n", r.Name(), r.StaleFor.Seconds())
		}
	}
}

// Overlap is how many leading blocks of the prompt the candidate holds, in short form:
// those on the device, how many of these are predicted (p), then any further ones in host
// memory (h), on disk (d) and in the cache outside of the workers (s). A tilde marks an
// estimate, an exclamation mark a rank with missing events.
func (r *Row) Overlap() string {
	s := fmt.Sprint(r.OverlapBlocks)
	if r.PredictedBlocks > 0 {
		s += fmt.Sprintf("(%dp)", r.PredictedBlocks)
	}
	if r.HostBlocks > 0 {
		s += fmt.Sprintf("+%dh", r.HostBlocks)
	}
	if r.DiskBlocks > 0 {
		s += fmt.Sprintf("+%dd", r.DiskBlocks)
	}
	if r.SharedBlocks > 0 {
		s += fmt.Sprintf("+%ds", r.SharedBlocks)
	}
	switch {
	case r.Estimated:
		return "~" + s
	case r.Degraded:
		return "!" + s
	}
	return s
}
