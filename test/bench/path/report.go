package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
)

// machine is where the run took place.
type machine struct {
	CPU   string `json:"cpu"`
	Cores int    `json:"cores"`
	OS    string `json:"os"`
	Go    string `json:"go"`
	Envoy string `json:"envoy"`
}

// report is all that a run has found.
type report struct {
	Machine machine  `json:"machine"`
	Method  method   `json:"method"`
	Rows    []row    `json:"rows"`
	Samples []sample `json:"samples"`
}

// method is how it was found.
type method struct {
	Repeats   int     `json:"repeats"`
	SliceMS   float64 `json:"slice_ms"`
	StepUS    float64 `json:"decode_step_us"`
	Placement string  `json:"placement"`
}

// table is the rows that are compared with the same base.
type table struct {
	over, base, ours string
	rows             []row
}

// tables returns those that have rows.
func (r *report) tables() []table {
	out := []table{
		{over: "alone", base: "nothing", ours: "ours"}, {over: "direct", base: "at once", ours: "in turn"},
		{over: "alone", base: "unread", ours: "held"},
	}
	for _, row := range r.Rows {
		t := &out[0]
		switch row.Server {
		case syncServer:
			t = &out[1]
		case streamServer:
			t = &out[2]
		}
		t.rows = append(t.rows, row)
	}
	return slices.DeleteFunc(out, func(t table) bool { return len(t.rows) == 0 })
}

// header and cells are the columns of both forms of a table.
func (t *table) header() []string {
	out := []string{"case", t.over + " p50"}
	for _, what := range []string{"+p50 ", "+p99 ", "CPU ", "KB "} {
		out = append(out, what+t.base, what+t.ours, "ratio")
	}
	return append(out, "mallocs "+t.base, "mallocs "+t.ours, "aim", "p50", "CPU")
}

func (r *row) cells() []string {
	name := r.cell.String()
	if r.Server != batonServer {
		name += " " + r.Server
	}
	if r.Failed > 0 {
		name += fmt.Sprintf(" (%d FAILED)", r.Failed)
	}
	out := []string{name, number(r.OverP50, 1)}
	for _, f := range []figure{r.P50, r.P99, r.CPU} {
		out = append(out, number(f.Base, 1), number(f.Ours, 1), ratio(f.Ratio))
	}
	out = append(out, number(r.Bytes.Base, 1000), number(r.Bytes.Ours, 1000), ratio(r.Bytes.Ratio),
		number(r.Mallocs.Base, 1), number(r.Mallocs.Ours, 1))
	if r.Aim == 0 {
		return append(out, "–", "–", "–")
	}
	return append(out, fmt.Sprintf("%.1f×", r.Aim), verdict(r.met(r.P50)), verdict(r.met(r.CPU)))
}

func verdict(met bool) string {
	if met {
		return "met"
	}
	return "not met"
}

// number prints a median divided by unit.
func number(s spread, unit float64) string {
	if s.N == 0 {
		return "–"
	}
	if v := s.Median / unit; v < 100 {
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", s.Median/unit)
}

// ratio prints a ratio with its range over the repeats.
func ratio(s spread) string {
	if s.N == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f× (%.2f–%.2f)", s.Median, s.Low, s.High)
}

// preamble says on what and how, and what the columns are.
func (r *report) preamble() string {
	return fmt.Sprintf(`%s, %d cores, %s, %s, Envoy %s with one worker thread; placement %s.
%d interleaved repeats of %.0f ms; medians, with the range of the ratios over the repeats.
Times are microseconds: added p50 and p99 are over Envoy alone, CPU is the server process's for a request.
"nothing" is an external processor that decides nothing and sends the same bodies back.
"baton-sync" asks prefill first, through Envoy, and then decode (in turn): its times are over a client that calls both workers itself,
one after the other, and it is compared with the plugin whose two legs go at once.
"baton-stream" has streamed answers, and their time is that of the first token: held until it, and with first events unread.
`, r.Machine.CPU, r.Machine.Cores, r.Machine.OS, r.Machine.Go, r.Machine.Envoy, r.Method.Placement, r.Method.Repeats, r.Method.SliceMS)
}

// text is the report for a terminal.
func (r *report) text() string {
	var b strings.Builder
	b.WriteString(r.preamble())
	b.WriteByte('\n')
	for i, t := range r.tables() {
		if i > 0 {
			b.WriteByte('\n')
		}
		w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, strings.Join(t.header(), "\t"))
		for i := range t.rows {
			fmt.Fprintln(w, strings.Join(t.rows[i].cells(), "\t"))
		}
		_ = w.Flush()
	}
	b.WriteString(r.summary())
	return b.String()
}

// markdown is the report for a page.
func (r *report) markdown() string {
	var b strings.Builder
	b.WriteString("# What Baton adds to a request's path\n\n")
	b.WriteString(r.preamble())
	for _, t := range r.tables() {
		b.WriteString("\n| " + strings.Join(t.header(), " | ") + " |\n|" + strings.Repeat(" --- |", len(t.header())) + "\n")
		for i := range t.rows {
			b.WriteString("| " + strings.Join(t.rows[i].cells(), " | ") + " |\n")
		}
	}
	b.WriteString(r.summary())
	return b.String()
}

// summary counts the aims.
func (r *report) summary() string {
	met, of := 0, 0
	for i := range r.Rows {
		if row := &r.Rows[i]; row.Aim > 0 {
			of += 2
			for _, f := range []figure{row.P50, row.CPU} {
				if row.met(f) {
					met++
				}
			}
		}
	}
	if of == 0 {
		return ""
	}
	return fmt.Sprintf("\n%d of %d aims met (added p50 and CPU: at most %.1f× of nothing at 2 KB, %.1f× at 220 KB; in turn %.1f× of at once).\n",
		met, of, aimSmall, aimLarge, aimInTurn)
}

// write puts the report's forms into dir.
func (r *report) write(dir string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	for name, text := range map[string][]byte{
		"path.json": append(data, '\n'), "path.md": []byte(r.markdown()), "path.svg": plot(r.Rows),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return fmt.Errorf("report: %w", err)
		}
	}
	return nil
}
