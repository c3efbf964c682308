package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/bench/stats"
	"github.com/seed-60ae5743/baton/pkg/picker"
)

// mode is one way to pick.
type mode struct {
	name      string
	what      string
	params    picker.Params
	estimated bool // the overlap is what was routed, not what ranks told
	predicted bool // it is both, whichever is more
	replicas  int  // of the plugin, each of which knows what it has picked itself
}

// modes are all of them, in the order of the table.
func modes(speed float64) []mode {
	with := func(m picker.Mode, change func(*picker.Params)) picker.Params {
		p := picker.DefaultParams()
		p.Mode, p.BlockSize = m, traceBlock
		if change != nil {
			change(&p)
		}
		return p
	}
	return []mode{
		{"kv", "exact overlap from KV events, and what was routed until they come; default parameters", with(picker.KV, nil), false, true, 1},
		{"seconds", "kv by a cost in seconds", with(picker.KV, func(p *picker.Params) { p.InSeconds = true }), false, true, 1},
		{"kv-told", "exact overlap from KV events alone", with(picker.KV, nil), false, false, 1},
		{"kv-decay", "kv, queued tokens decaying at the ranks' speed",
			with(picker.KV, func(p *picker.Params) { p.PrefillTokensPerSecond = speed }), false, true, 1},
		{"estimate", "kv by the byte estimate: what was routed lately, at half weight", with(picker.KV, nil), true, false, 1},
		{"estimate-full", "the same at full weight",
			with(picker.KV, func(p *picker.Params) { p.EstimatedOverlapWeight = 1 }), true, false, 1},
		{"least-loaded", "fewest requests in flight, then booked tokens", with(picker.LeastLoaded, nil), false, false, 1},
		{"power-of-two", "the less loaded of two drawn", with(picker.PowerOfTwo, nil), false, false, 1},
		{"round-robin", "in turn", with(picker.RoundRobin, nil), false, false, 1},
		{"random", "drawn", with(picker.Random, nil), false, false, 1},
	}
}

// chosen returns the modes of a comma-separated list; "" means all.
func chosen(names string, speed float64) ([]mode, error) {
	all := modes(speed)
	if names == "" {
		return all, nil
	}
	var out []mode
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(all, func(m mode) bool { return m.name == name })
		if i < 0 {
			var known []string
			for _, m := range all {
				known = append(known, m.name)
			}
			return nil, fmt.Errorf("mode %q: expected %s", name, strings.Join(known, ", "))
		}
		out = append(out, all[i])
	}
	return out, nil
}

// replicated returns each mode with each count of replicas, one after the other.
func replicated(all []mode, counts []int) []mode {
	var out []mode
	for _, m := range all {
		for _, n := range counts {
			r := m
			r.name, r.what, r.replicas = nameOf(m.name, n), whatOf(m.what, n), n
			out = append(out, r)
		}
	}
	return out
}

// nameOf is the name of a mode with so many replicas.
func nameOf(mode string, replicas int) string {
	if replicas == 1 {
		return mode
	}
	return fmt.Sprintf("%s ×%d", mode, replicas)
}

func whatOf(what string, replicas int) string {
	if replicas == 1 {
		return what
	}
	return fmt.Sprintf("the same by %d replicas of the plugin, asked in turn", replicas)
}

// figures are what one run has found.
type figures struct {
	Hit, Believed            float64 // shares of the prompt tokens
	Mean, P50, P90, P95, P99 time.Duration
	Busiest                  float64 // tokens computed by the busiest rank over the mean
}

// simulate runs one mode with one seed.
func simulate(trace []prompt, f fleet, m mode, seed uint64) (figures, error) {
	s, err := newSim(f, m, seed)
	if err != nil {
		return figures{}, err
	}
	if err := s.run(trace); err != nil {
		return figures{}, fmt.Errorf("mode %s: %w", m.name, err)
	}
	return s.figures(), nil
}

func (s *sim) figures() figures {
	computed := make([]int64, 0, len(s.ranks))
	for _, r := range s.ranks {
		computed = append(computed, r.computed)
	}
	f := timings(s.ttft)
	f.Hit, f.Believed = float64(s.hits)/float64(s.tokens), float64(s.believed)/float64(s.tokens)
	f.Busiest = busiest(computed)
	return f
}

// timings sums up times to the first token, of which there is at least one, and
// sorts them.
func timings(ttft []time.Duration) figures {
	slices.Sort(ttft)
	var sum time.Duration
	for _, d := range ttft {
		sum += d
	}
	return figures{
		Mean: sum / time.Duration(len(ttft)), P50: stats.Quantile(ttft, 0.50), P90: stats.Quantile(ttft, 0.90),
		P95: stats.Quantile(ttft, 0.95), P99: stats.Quantile(ttft, 0.99),
	}
}

// busiest returns what the busiest rank computed over the mean.
func busiest(computed []int64) float64 {
	var most, all int64
	for _, n := range computed {
		most, all = max(most, n), all+n
	}
	return float64(most) * float64(len(computed)) / float64(max(all, 1))
}

// row is one mode over all seeds: medians, and two ranges.
type row struct {
	Mode string
	figures
	LowHit, HighHit float64
	LowP95, HighP95 time.Duration
}

func summarise(name string, runs []figures) row {
	r := row{Mode: name, figures: figures{
		Hit: medianOf(runs, func(f figures) float64 { return f.Hit }), Believed: medianOf(runs, func(f figures) float64 { return f.Believed }),
		Busiest: medianOf(runs, func(f figures) float64 { return f.Busiest }),
		Mean:    medianOf(runs, func(f figures) time.Duration { return f.Mean }),
		P50:     medianOf(runs, func(f figures) time.Duration { return f.P50 }),
		P90:     medianOf(runs, func(f figures) time.Duration { return f.P90 }),
		P95:     medianOf(runs, func(f figures) time.Duration { return f.P95 }),
		P99:     medianOf(runs, func(f figures) time.Duration { return f.P99 }),
	}}
	r.LowHit, r.HighHit = runs[0].Hit, runs[0].Hit
	r.LowP95, r.HighP95 = runs[0].P95, runs[0].P95
	for _, f := range runs {
		r.LowHit, r.HighHit = min(r.LowHit, f.Hit), max(r.HighHit, f.Hit)
		r.LowP95, r.HighP95 = min(r.LowP95, f.P95), max(r.HighP95, f.P95)
	}
	return r
}

// medianOf is the median of one figure.
func medianOf[T cmp.Ordered](runs []figures, of func(figures) T) T {
	v := make([]T, len(runs))
	for i, f := range runs {
		v[i] = of(f)
	}
	return stats.Median(v)
}
