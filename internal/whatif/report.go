package whatif

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/seed-60ae5743/baton/internal/replay"
)

// row is one line of the table.
type row struct {
	name, key string
	*replay.Figures
}

func (rep *Report) rows() (rows []row) {
	if rep.Measured != nil {
		rows = append(rows, row{"measured", "measured", rep.Measured}, row{"recorded picks, simulated", "recorded_picks", rep.Recorded})
	}
	return append(rows, row{"this configuration, simulated", "played", &rep.Played})
}

// Text is the report for people.
func (rep *Report) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d requests", rep.Requests)
	if rep.Input.Model != "" {
		fmt.Fprintf(&b, " for model %q", rep.Input.Model)
	}
	fmt.Fprintf(&b, " in %v, from %s, played over %s.\n", rep.Span.Round(time.Second), rep.Input.Kind, rep.Fleet)
	for _, line := range rep.Assumed {
		fmt.Fprintf(&b, "- %s\n", line)
	}
	for _, line := range rep.Input.Notes {
		fmt.Fprintf(&b, "- %s\n", line)
	}
	b.WriteByte('\n')
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\thit rate\tfirst token p50\tp90\tp99\tbetween tokens p50\tp99\tbusiest\trefused")
	for _, r := range rep.rows() {
		hit := fmt.Sprintf("%.1f %%", 100*r.Hit)
		if r.Figures == rep.Measured && rep.Told == 0 {
			hit = "not told"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%.2f\t%d\n", r.name, hit, seconds(r.First.P50.Seconds()), seconds(r.First.P90.Seconds()),
			seconds(r.First.P99.Seconds()), seconds(r.Between.P50.Seconds()), seconds(r.Between.P99.Seconds()), r.Busiest, r.Refused)
	}
	_ = t.Flush() // into memory
	fmt.Fprintln(&b, "\nbusiest: prompt tokens that the busiest rank computed, over the mean.")
	if rep.Measured != nil {
		fmt.Fprintf(&b, "measured: first tokens of %d requests, and what engines had cached of %d.\n", rep.Timed, rep.Told)
	}
	if e := rep.Error; e != nil {
		fmt.Fprintf(&b, "The simulation's own error, by the recorded picks: hit rate %+.1f points, first token p50 %+.0f %%, p99 %+.0f %%. %s, by which first tokens were measured later than simulated, are in all of them.\n",
			100*e.Hit, 100*e.P50, 100*e.P99, seconds(rep.Path.Seconds()))
	} else {
		fmt.Fprintln(&b, "How far the simulation is off is not known: the input does not tell what was measured.")
	}
	if rep.Differs != nil {
		var parts []string
		for _, cause := range slices.Sorted(maps.Keys(rep.Differs)) {
			if cause != AsBefore {
				parts = append(parts, fmt.Sprintf("%s %d", cause, rep.Differs[cause]))
			}
		}
		fmt.Fprintf(&b, "%d picks are the recorded ones. The others by cause: %s.\n", rep.Differs[AsBefore], strings.Join(append(parts, "")[:max(len(parts), 1)], ", "))
	}
	return b.String()
}

// times and columns are what JSON has, in seconds.
type times struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
}

func timesOf(t replay.Times) times {
	return times{t.P50.Seconds(), t.P90.Seconds(), t.P99.Seconds()}
}

// JSON is the report for programs.
func (rep *Report) JSON() ([]byte, error) {
	type columns struct {
		Hit     float64 `json:"hit_rate"`
		First   times   `json:"first_token_seconds"`
		Between times   `json:"between_tokens_seconds"`
		Busiest float64 `json:"busiest"`
		Refused int     `json:"refused"`
	}
	type off struct {
		Hit float64 `json:"hit_rate"`
		P50 float64 `json:"first_token_p50"`
		P99 float64 `json:"first_token_p99"`
	}
	out := struct {
		Kind     string             `json:"input"`
		Model    string             `json:"model"`
		Requests int                `json:"requests"`
		Span     float64            `json:"seconds"`
		Fleet    string             `json:"fleet"`
		Assumed  []string           `json:"assumed"`
		Notes    []string           `json:"notes"`
		Figures  map[string]columns `json:"figures"`
		Path     float64            `json:"path_seconds"`
		Error    *off               `json:"error"`
		Differs  map[string]int     `json:"picks"`
		Timed    int                `json:"requests_with_first_token"`
		Told     int                `json:"requests_with_cached_tokens"`
	}{rep.Input.Kind, rep.Input.Model, rep.Requests, rep.Span.Seconds(), rep.Fleet, rep.Assumed, rep.Input.Notes, map[string]columns{}, rep.Path.Seconds(), (*off)(rep.Error), rep.Differs, rep.Timed, rep.Told}
	for _, r := range rep.rows() {
		out.Figures[r.key] = columns{r.Hit, timesOf(r.First), timesOf(r.Between), r.Busiest, r.Refused}
	}
	text, err := json.MarshalIndent(out, "", "  ")
	return append(text, '\n'), err
}

// SVG is the report's picture.
func (rep *Report) SVG() string {
	p99 := Panel{Title: "TTFT p99", Colour: "#a5573b", Of: func(f *replay.Figures) float64 { return f.First.P99.Seconds() }}
	between := Panel{Title: "between tokens p99", Colour: "#d08a3c", Of: func(f *replay.Figures) float64 { return f.Between.P99.Seconds() }}
	g := Group{Heading: fmt.Sprintf("%d requests over %s", rep.Requests, rep.Fleet), Bound: rep.Input.Load.Bound()}
	for _, r := range rep.rows() {
		name, _, _ := strings.Cut(r.name, ",")
		g.Bars = append(g.Bars, Bar{Name: name, Row: r.Figures, Opacity: 1})
	}
	return Draw([]string{"What this configuration would have made of " + rep.Input.Kind}, []Group{g}, Panels(func(d time.Duration) string { return seconds(d.Seconds()) }, p99, between))
}

// seconds writes a time.
func seconds(v float64) string {
	switch {
	case v < 0.01 && v > -0.01:
		return fmt.Sprintf("%.2f ms", 1000*v)
	case v < 1:
		return fmt.Sprintf("%.0f ms", 1000*v)
	case v < 10:
		return fmt.Sprintf("%.2f s", v)
	default:
		return fmt.Sprintf("%.1f s", v)
	}
}
