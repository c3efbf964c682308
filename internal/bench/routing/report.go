package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/replay"
)

// report is all that a run has found.
type report struct {
	Machine  string
	Trace    string
	Requests int
	Tokens   int64
	Bound    float64 // the hit rate that no routing can pass
	Fleet    fleet   // but for the capacity
	Seed     uint64
	Repeats  int
	Modes    []mode
	Cells    []cell
}

// cell is one fleet under one load.
type cell struct {
	Capacity int
	Rate     float64
	Demand   float64 // share of all ranks' time that the trace takes without a cache
	Rows     []row
}

func (c *cell) String() string {
	return fmt.Sprintf("%d blocks a rank, arrivals ×%g", c.Capacity, c.Rate)
}

func (r *report) describe(trace []replay.Request) {
	r.Requests, r.Tokens, r.Bound = len(trace), 0, workloadOf(trace).Bound()
	for i := range trace {
		r.Tokens += int64(trace[i].Tokens)
	}
}

func (r *report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Routing quality\n\nSimulated, in simulated time: equal flags give equal figures on every machine. Run on %s.\n\n", r.Machine)
	fmt.Fprintf(&b, "Trace %s: %d requests, %d prompt tokens; one cache that forgets nothing would have %.1f %% of them.\n", r.Trace, r.Requests, r.Tokens, 100*r.Bound)
	fmt.Fprintf(&b, "%d prefill ranks, one prompt at a time each, %g tokens/s and %s a prompt; KV events arrive after %s; the estimate believes for %s.\n", r.Fleet.Ranks, r.Fleet.Speed, r.Fleet.Overhead, r.Fleet.EventDelay, r.Fleet.RoutedTTL)
	fmt.Fprintf(&b, "Seeds %d to %d: medians, and the range of the p95 over them.\n\n", r.Seed, r.Seed+uint64(r.Repeats)-1)
	for _, m := range r.Modes {
		fmt.Fprintf(&b, "- %s: %s\n", m.name, m.what)
	}
	b.WriteString("\nHit: share of prompt tokens found in the rank's cache. Believed: what the pick counted on. TTFT: queueing and prefill. Busiest: tokens computed by the busiest rank over the mean.\n")
	for i := range r.Cells {
		r.Cells[i].write(&b)
	}
	return b.String()
}

func (c *cell) write(b *strings.Builder) {
	fmt.Fprintf(b, "\n## %s (%.0f %% of the fleet's time if nothing were cached)\n\n", c.String(), 100*c.Demand)
	b.WriteString("| mode | hit | believed | TTFT mean | p50 | p95 | p95 range | p99 | busiest |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n")
	for _, r := range c.Rows {
		fmt.Fprintf(b, "| %s | %.1f %% | %s | %s | %s | %s | %s–%s | %s | %.2f |\n", r.Mode, 100*r.Hit, share(r.Believed),
			seconds(r.First.Mean), seconds(r.First.P50), seconds(r.First.P95), seconds(r.LowP95), seconds(r.HighP95), seconds(r.First.P99), r.Busiest)
	}
}

func seconds(d time.Duration) string {
	if d < 10*time.Second {
		return fmt.Sprintf("%.2f s", d.Seconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}
