package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/pkg/picker"
)

// mode is one way to pick.
type mode struct {
	name      string
	what      string
	params    picker.Params
	estimated bool // the overlap is what was routed, not what ranks told
	predicted bool // it is both, whichever is more
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
		{"kv", "exact overlap from KV events, and what was routed until they come; default parameters", with(picker.KV, nil), false, true},
		{"kv-told", "exact overlap from KV events alone", with(picker.KV, nil), false, false},
		{"kv-decay", "kv, queued tokens decaying at the ranks' speed",
			with(picker.KV, func(p *picker.Params) { p.PrefillTokensPerSecond = speed }), false, true},
		{"estimate", "kv by the byte estimate: what was routed lately, at half weight", with(picker.KV, nil), true, false},
		{"estimate-full", "the same at full weight",
			with(picker.KV, func(p *picker.Params) { p.EstimatedOverlapWeight = 1 }), true, false},
		{"least-loaded", "fewest requests in flight, then booked tokens", with(picker.LeastLoaded, nil), false, false},
		{"power-of-two", "the less loaded of two drawn", with(picker.PowerOfTwo, nil), false, false},
		{"round-robin", "in turn", with(picker.RoundRobin, nil), false, false},
		{"random", "drawn", with(picker.Random, nil), false, false},
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

// figures are what one run has found.
type figures struct {
	Hit, Believed       float64 // shares of the prompt tokens
	Mean, P50, P95, P99 time.Duration
	Busiest             float64 // tokens computed by the busiest rank over the mean
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
	slices.Sort(s.ttft)
	var sum time.Duration
	for _, d := range s.ttft {
		sum += d
	}
	var most, all int64
	for _, r := range s.ranks {
		most, all = max(most, r.computed), all+r.computed
	}
	return figures{
		Hit: float64(s.hits) / float64(s.tokens), Believed: float64(s.believed) / float64(s.tokens),
		Mean: sum / time.Duration(len(s.ttft)), P50: quantile(s.ttft, 0.50), P95: quantile(s.ttft, 0.95), P99: quantile(s.ttft, 0.99),
		Busiest: float64(most) * float64(len(s.ranks)) / float64(all),
	}
}

// quantile returns the least of sorted values that a share q of them does not
// exceed.
func quantile(sorted []time.Duration, q float64) time.Duration {
	i := int(math.Ceil(q * float64(len(sorted))))
	return sorted[min(max(i, 1), len(sorted))-1]
}

// row is one mode over all seeds: medians, and the range of the p95.
type row struct {
	Mode string
	figures
	LowP95, HighP95 time.Duration
}

func summarise(name string, runs []figures) row {
	r := row{Mode: name, figures: figures{
		Hit: median(runs, func(f figures) float64 { return f.Hit }), Believed: median(runs, func(f figures) float64 { return f.Believed }),
		Busiest: median(runs, func(f figures) float64 { return f.Busiest }),
		Mean:    median(runs, func(f figures) time.Duration { return f.Mean }),
		P50:     median(runs, func(f figures) time.Duration { return f.P50 }),
		P95:     median(runs, func(f figures) time.Duration { return f.P95 }),
		P99:     median(runs, func(f figures) time.Duration { return f.P99 }),
	}}
	r.LowP95, r.HighP95 = runs[0].P95, runs[0].P95
	for _, f := range runs {
		r.LowP95, r.HighP95 = min(r.LowP95, f.P95), max(r.HighP95, f.P95)
	}
	return r
}

// median is the middle value, the lower one of two.
func median[T cmp.Ordered](runs []figures, of func(figures) T) T {
	var v []T
	for _, f := range runs {
		v = append(v, of(f))
	}
	slices.Sort(v)
	return v[(len(v)-1)/2]
}
