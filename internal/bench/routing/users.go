package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/bench/policies"
	"github.com/seed-60ae5743/baton/internal/replay"
)

// usersRequests is how many requests of the trace are played over fleets by name.
const usersRequests = 1500

// users plays each traffic over each fleet, with each mode, and prints what users feel.
func (o *options) users(stdout, stderr io.Writer) error {
	var b strings.Builder
	limit := o.requests
	if limit == 0 {
		limit = usersRequests
	}
	trace, err := o.read(limit, 1)
	if err != nil {
		return err
	}
	s := policies.Scenarios{
		Ranks: o.Ranks, PerToken: 1 / o.Speed, PerPrompt: o.Overhead.Seconds(), CacheBlocks: o.capacities[0],
		EventDelay: o.EventDelay, Seed: o.seed, Trace: trace,
	}
	fmt.Fprintf(&b, "# What users feel, by way to pick\n\nSimulated, in simulated time. %s\n", s.String())
	fmt.Fprintf(&b, "Good: a first token within %v and a mean of %v between tokens. Seeds %d to %d, medians; in brackets, relative to %s.\n", o.target.FirstToken, o.target.Between, o.seed, o.seed+uint64(o.repeats)-1, o.modes[0].name)
	for fleetName := range strings.SplitSeq(o.fleets, ",") {
		for name := range strings.SplitSeq(cmp.Or(o.traffics, "65"), ",") {
			f, w, err := s.Play(fleetName, name)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, "\n## %s, %s\n\n%d requests; one cache that forgets nothing would have %.1f %% of their tokens.\n\n", fleetName, name, len(w.Requests), 100*w.Bound())
			b.WriteString("| mode | TTFT mean | p99 | hit | between tokens p99 | goodput | preempted | busiest |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n")
			var first replay.Figures
			for i := range o.modes {
				fmt.Fprintf(stderr, "%s, %s, %s\n", fleetName, name, o.modes[i].name)
				got, err := o.felt(&o.modes[i], f, w)
				if err != nil {
					return err
				}
				if i == 0 {
					first = got
				}
				writeFelt(&b, o.modes[i].name, &got, &first)
			}
		}
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	fmt.Fprint(stdout, b.String())
	return os.WriteFile(filepath.Join(o.out, "routing-users.md"), []byte(b.String()), 0o644)
}

// felt runs one mode with every seed, and returns the medians.
func (o *options) felt(m *mode, f *replay.Fleet, w *replay.Workload) (out replay.Figures, err error) {
	var runs []replay.Figures
	for i := range o.repeats {
		r, err := m.play(f, w, o.seed+uint64(i))
		if err != nil {
			return out, err
		}
		runs = append(runs, r.Figures(o.target))
	}
	return medians(runs), nil
}

func writeFelt(b *strings.Builder, name string, f, first *replay.Figures) {
	relative := func(a, of time.Duration) string {
		return fmt.Sprintf("%+.0f %%", 100*(float64(a)/float64(max(of, 1))-1))
	}
	fmt.Fprintf(b, "| %s | %s (%s) | %s (%s) | %.1f %% | %.0f ms (%s) | %.1f %% | %d | %.2f |\n", name,
		seconds(f.First.Mean), relative(f.First.Mean, first.First.Mean), seconds(f.First.P99), relative(f.First.P99, first.First.P99), 100*f.Hit,
		f.Between.P99.Seconds()*1e3, relative(f.Between.P99, first.Between.P99), 100*f.Goodput, f.Preempted, f.Busiest)
}
