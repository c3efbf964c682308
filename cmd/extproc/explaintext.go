package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"
)

// decisionJSON is what `extproc explain` reads of the admin's answer; see
// internal/admin for the whole.
type decisionJSON struct {
	Model       string `json:"model"`
	Path        string `json:"path"`
	ISLTokens   int64  `json:"isl_tokens"`
	Blocks      int64  `json:"prompt_blocks"`
	TokenSource string `json:"token_source"`
	TokenReason string `json:"token_reason"`
	Outcome     string `json:"outcome"`
	Detail      string `json:"detail"`

	Split   string      `json:"split"`
	Prefill *choiceJSON `json:"prefill"`
	Decode  *choiceJSON `json:"decode"`
}

type choiceJSON struct {
	WorkerID string `json:"worker_id"`
	DPRank   uint32 `json:"dp_rank"`
	Endpoint string `json:"endpoint"`
	Mode     string `json:"mode"`
	Why      string `json:"why"`
	LeftOut  int    `json:"left_out"`
	Table    []struct {
		WorkerID string   `json:"worker_id"`
		DPRank   uint32   `json:"dp_rank"`
		Endpoint string   `json:"endpoint"`
		Picked   bool     `json:"picked"`
		Eligible bool     `json:"eligible"`
		Overlap  int64    `json:"overlap_blocks"`
		Guess    int64    `json:"predicted_blocks"`
		Host     int64    `json:"host_blocks"`
		Disk     int64    `json:"disk_blocks"`
		Prefill  int64    `json:"active_prefill_tokens"`
		Decode   int64    `json:"active_decode_blocks"`
		Requests int64    `json:"active_requests"`
		Cost     *float64 `json:"cost"`
		Note     string   `json:"note"`
		Known    *float64 `json:"known_seconds_ago"`
	} `json:"table"`
}

// explainText writes a decision for a person.
func explainText(answer []byte) (string, error) {
	var d decisionJSON
	if err := json.Unmarshal(answer, &d); err != nil {
		return "", fmt.Errorf("explain: the plugin's answer: %w", err)
	}
	var b strings.Builder
	if d.TokenSource != "" {
		fmt.Fprintf(&b, "model %s, %d tokens in %d blocks (%s: %s)\n", d.Model, d.ISLTokens, d.Blocks, d.TokenSource, d.TokenReason)
	}
	if d.Split != "" {
		fmt.Fprintf(&b, "%s\n", d.Split)
	}
	if d.Outcome == "refused" {
		fmt.Fprintf(&b, "refused: %s\n", d.Detail)
	}
	for _, leg := range []struct {
		name string
		c    *choiceJSON
	}{{"prefill", d.Prefill}, {"decode", d.Decode}} {
		if leg.c == nil {
			continue
		}
		who := "nobody"
		if leg.c.WorkerID != "" {
			who = fmt.Sprintf("%s (%s/%d)", leg.c.Endpoint, leg.c.WorkerID, leg.c.DPRank)
		}
		fmt.Fprintf(&b, "\n%s: %s (%s)\n  %s\n", leg.name, who, leg.c.Mode, leg.c.Why)
		if len(leg.c.Table) > 0 {
			leg.c.table(&b)
		}
	}
	return b.String(), nil
}

func (c *choiceJSON) table(b *strings.Builder) {
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "  \tworker\trank\toverlap\tprefill tokens\tdecode blocks\trequests\tcost\tknown\t")
	for _, r := range c.Table {
		mark, cost, known := "", "-", "-"
		if r.Known != nil {
			known = fmt.Sprintf("%.0f s ago", *r.Known)
		}
		if r.Picked {
			mark = "*"
		}
		if r.Cost != nil {
			cost = fmt.Sprintf("%.4g", *r.Cost)
		}
		if !r.Eligible {
			cost = "out: " + r.Note
		}
		overlap := fmt.Sprint(r.Overlap)
		if r.Guess > 0 {
			overlap += fmt.Sprintf("(%dp)", r.Guess)
		}
		if r.Host > 0 {
			overlap += fmt.Sprintf("+%dh", r.Host)
		}
		if r.Disk > 0 {
			overlap += fmt.Sprintf("+%dd", r.Disk)
		}
		fmt.Fprintf(w, "  %s\t%s\t%s/%d\t%s\t%d\t%d\t%d\t%s\t%s\t\n", mark, cmp.Or(r.Endpoint, "-"), r.WorkerID, r.DPRank, overlap, r.Prefill, r.Decode, r.Requests, cost, known)
	}
	_ = w.Flush()
	if c.LeftOut > 0 {
		fmt.Fprintf(b, "  and %d more\n", c.LeftOut)
	}
}
