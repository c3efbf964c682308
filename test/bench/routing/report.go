package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/replay"
	"github.com/seed-60ae5743/baton/internal/replay/replaytest"
)

// report is all that a run has found.
type report struct {
	Machine string
	About   string // what is played, in sentences
	Trace   string
	Seed    uint64
	Repeats int
	Modes   []mode
	Cells   []cell
}

// cell is one fleet under one load.
type cell struct {
	Heading string
	Fleet   *replay.Fleet
	Load    *replay.Workload
	Whole   bool // answers are played, not first tokens alone
	Rows    []row
}

// about tells the length of a workload and what no routing can pass.
func about(w *replay.Workload) string {
	var tokens int64
	for i := range w.Requests {
		tokens += int64(w.Requests[i].Tokens)
	}
	return fmt.Sprintf("%d requests, %d prompt tokens; one cache that forgets nothing would have %.1f %% of them.", len(w.Requests), tokens, 100*w.Bound())
}

func (r *report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Routing quality\n\nSimulated, in simulated time: equal flags give equal figures on every machine. Run on %s.\n\n", r.Machine)
	fmt.Fprintf(&b, "Trace %s. %s\nSeeds %d to %d: medians, and the range of the p95 over them.\n\n", r.Trace, r.About, r.Seed, r.Seed+uint64(r.Repeats)-1)
	for _, m := range r.Modes {
		fmt.Fprintf(&b, "- %s: %s\n", m.name, m.what)
	}
	b.WriteString("\nHit: share of prompt tokens found in the rank's cache. Believed: what the pick counted on. TTFT: time to first token. Busiest: tokens computed by the busiest rank over the mean.\n")
	for i := range r.Cells {
		r.Cells[i].write(&b)
	}
	return b.String()
}

func (c *cell) write(b *strings.Builder) {
	fmt.Fprintf(b, "\n## %s\n\n%s", c.Heading, about(c.Load))
	if d := replaytest.Demand(c.Load, c.Fleet); d > 0 { // else how much is asked for depends on how fast it is served
		fmt.Fprintf(b, " Without caches they would take %.0f %% of the fleet's time.", 100*d)
	}
	b.WriteString("\n\n")
	more, rule := "", ""
	if c.Whole {
		more, rule = " between tokens p99 | goodput | preempted | mean, p99 and between, relative |", " ---: | ---: | ---: | ---: |"
	}
	fmt.Fprintf(b, "| mode | hit | believed | TTFT mean | p50 | p95 | p95 range | p99 | busiest |%s\n| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |%s\n", more, rule)
	for _, r := range c.Rows {
		fmt.Fprintf(b, "| %s | %.1f %% | %s | %s | %s | %s | %s–%s | %s | %.2f |", r.Mode, 100*r.Hit, share(r.Believed),
			seconds(r.First.Mean), seconds(r.First.P50), seconds(r.First.P95), seconds(r.LowP95), seconds(r.HighP95), seconds(r.First.P99), r.Busiest)
		if first := &c.Rows[0]; c.Whole {
			fmt.Fprintf(b, " %.0f ms | %.1f %% | %d | %s, %s, %s |", 1e3*r.Between.P99.Seconds(), 100*r.Goodput, r.Preempted,
				relative(r.First.Mean, first.First.Mean), relative(r.First.P99, first.First.P99), relative(r.Between.P99, first.Between.P99))
		}
		b.WriteString("\n")
	}
}

// relative tells how much more a time is than another.
func relative(d, of time.Duration) string {
	return fmt.Sprintf("%+.0f %%", 100*(float64(d)/float64(max(of, 1))-1))
}

func seconds(d time.Duration) string {
	if d < 10*time.Second {
		return fmt.Sprintf("%.2f s", d.Seconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}
