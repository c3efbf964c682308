package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// drillReport is all that the drill has found, as drill.json has it.
type drillReport struct {
	Machine string      `json:"machine"`
	Load    string      `json:"load_average"` // of the machine, as the drill begins
	Rate    float64     `json:"requests_per_second"`
	Cells   []drillCell `json:"rows"`
}

// drillCell is one row with one mode.
type drillCell struct {
	Row    string `json:"row"`
	Mode   string `json:"mode"`
	NotRun string `json:"not_run,omitempty"` // why; the rest is empty then

	OnIt     int `json:"on_it"` // requests on the worker that it struck
	Requests int `json:"requests"`
	Failed   int `json:"failed"`
	Begun    int `json:"begun"` // of Failed, those whose stream had begun: nobody can save them
	// The times of Fault over those of Quiet; 0: nothing was answered.
	P50   float64 `json:"p50"`
	P95   float64 `json:"p95"`
	Worst float64 `json:"worst"`
	// Back is the seconds until requests are answered as before; -1: not while they were watched.
	Back float64 `json:"back"`

	Quiet drillWindow `json:"quiet"`
	Fault drillWindow `json:"fault"`
}

// drillWindow is what clients saw of the requests that were due in some time. Times are in ms, of whole answers.
type drillWindow struct {
	Sent     int            `json:"sent"`
	Failed   int            `json:"failed"`
	Failures map[string]int `json:"failures,omitempty"`
	Late     float64        `json:"late_p99_ms"` // after they were due, the sending
	P50      float64        `json:"p50_ms"`
	P95      float64        `json:"p95_ms"`
	Worst    float64        `json:"worst_ms"`
}

// loadAverage is what the machine has had to do in the last 1, 5 and 15 minutes; "": not known.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	words := strings.Fields(string(text))
	return strings.Join(words[:min(3, len(words))], " ")
}

// markdown has a table for each row.
func (r *drillReport) markdown(o *drillOptions) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# The drill\n\n%s. Load average before: %s.\n\n", r.Machine, r.Load)
	fmt.Fprintf(&b, "%g requests a second, prompts of %d tokens, answers of %d, four workers (apart: four that prefill, %d that decode). "+
		"*Failed*: a status other than 200, a cut, or no whole answer within %v; one cut in mid-stream is lost whatever stands before the worker. Times are those of whole answers, over the same mode's in the %v before, which are told in ms. "+
		"*As before*: seconds until, of the requests due in a second, none fails and nine of ten have their answers within 1.5 times the p95 before.\n\n", r.Rate, begins+own, drillTokens, drillDecodes, drillLimit, drillQuiet)
	for _, m := range o.modes {
		fmt.Fprintf(&b, "- %s: %s\n", m.name, m.what)
	}
	for _, row := range o.rows {
		fmt.Fprintf(&b, "\n## %s\n\n%s; watched for %v.\n\n", row.name, row.what, row.watched)
		b.WriteString("| mode | sent | failed | p50 | p95 | worst | as before after | before: p50, p95, worst (ms) | sent late (p99, ms) |\n| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n")
		for i := range r.Cells {
			if c := &r.Cells[i]; c.Row == row.name {
				b.WriteString(c.line())
			}
		}
	}
	if late := r.late(); len(late) > 0 {
		fmt.Fprintf(&b, "\nNot to be believed, since clients were more than %d ms late (p99) with their requests: %s.\n", drillLate, strings.Join(late, "; "))
	}
	return b.String()
}

// drillLate is how late clients may be with their requests, p99, in ms.
const drillLate = 50

// late are the cells in which clients were late: the machine had too much else to do.
func (r *drillReport) late() (out []string) {
	for i := range r.Cells {
		if c := &r.Cells[i]; max(c.Quiet.Late, c.Fault.Late) > drillLate {
			out = append(out, c.Row+", "+c.Mode)
		}
	}
	return out
}

// line is a cell's line of the table.
func (c *drillCell) line() string {
	if c.NotRun != "" {
		return fmt.Sprintf("| %s | not run: %s | | | | | | | |\n", c.Mode, c.NotRun)
	}
	failed, before := "0", fmt.Sprintf("%.0f s", c.Back)
	if c.Fault.Failed > 0 {
		failed = fmt.Sprintf("%d (%s)", c.Fault.Failed, c.Fault.sortedFailures())
	}
	if c.Back < 0 {
		before = "not in this time"
	}
	quiet := fmt.Sprintf("%.0f, %.0f, %.0f", c.Quiet.P50, c.Quiet.P95, c.Quiet.Worst)
	if c.Quiet.Failed > 0 {
		quiet += fmt.Sprintf("; %d failed (%s)", c.Quiet.Failed, c.Quiet.sortedFailures())
	}
	return fmt.Sprintf("| %s | %d | %s | %s | %s | %s | %s | %s | %.1f |\n", c.Mode, c.Fault.Sent, failed, ratio(c.P50), ratio(c.P95), ratio(c.Worst), before, quiet, max(c.Quiet.Late, c.Fault.Late))
}

// ratio is a ratio's text. It is 0 where nothing was answered, before or from then on.
func ratio(v float64) string {
	if v == 0 {
		return "–"
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// drill plays the drill, prints its tables and writes its files.
func (o *options) drill(ctx context.Context, p parts, stdout, stderr io.Writer) error {
	start := time.Now()
	r, failed := runDrill(ctx, p, o.drilled, stderr)
	if r == nil {
		return failed
	}
	text := r.markdown(o.drilled)
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	fmt.Fprint(stdout, text)
	fmt.Fprintf(stdout, "\nTook %s. Results: %s\n", time.Since(start).Round(time.Second), filepath.Join(o.out, "drill.{md,json}"))
	return errors.Join(failed, os.WriteFile(filepath.Join(o.out, "drill.md"), []byte(text), 0o644), os.WriteFile(filepath.Join(o.out, "drill.json"), append(data, '\n'), 0o644))
}
