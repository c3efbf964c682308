package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/replay"
	"github.com/seed-60ae5743/baton/internal/stats"
	"github.com/seed-60ae5743/baton/internal/whatif"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/bench/policies"
)

// mode is one way to pick.
type mode struct {
	name   string
	what   string
	plugin whatif.Config
	rival  *policies.Rival // in the place of the plugin
}

// modes are all of them, in the order of the table.
func modes(speed float64) []mode {
	with := func(m picker.Mode, change func(*whatif.Config)) whatif.Config {
		c := whatif.Default()
		c.Predicted = false
		for _, p := range []*picker.Params{&c.Prefill, &c.Decode, &c.Whole} {
			p.Mode = m
		}
		if change != nil {
			change(&c)
		}
		return c
	}
	predicted := func(c *whatif.Config) { c.Predicted = true }
	estimated := func(c *whatif.Config) { c.Estimated = true }
	blocks := func(c *whatif.Config) {
		c.Prefill, c.Decode, c.Whole = picker.BlockParamsFor(worker.Prefill), picker.BlockParamsFor(worker.Decode), picker.BlockParamsFor(worker.Aggregated)
	}
	all := []mode{
		{"kv", "exact overlap from KV events, and what was routed until they come; default parameters", with(picker.KV, predicted), nil},
		{"kv-told", "exact overlap from KV events alone", with(picker.KV, nil), nil},
		{"kv-blocks", "kv with the cost in blocks, as before it was in seconds", with(picker.KV, func(c *whatif.Config) { predicted(c); blocks(c) }), nil},
		{"dynamo", "NVIDIA Dynamo's default: kv-blocks with all weights 1", with(picker.KV, func(c *whatif.Config) {
			predicted(c)
			c.Prefill, c.Decode, c.Whole = picker.DefaultParams(), picker.DefaultParams(), picker.DefaultParams()
		}), nil},
		{"estimate", "kv by the byte estimate: what was routed lately, at half weight", with(picker.KV, estimated), nil},
		{"estimate-full", "the same at full weight", with(picker.KV, func(c *whatif.Config) {
			estimated(c)
			c.Prefill.EstimatedOverlapWeight, c.Whole.EstimatedOverlapWeight = 1, 1
		}), nil},
		{"least-loaded", "fewest requests in flight, then booked tokens", with(picker.LeastLoaded, nil), nil},
		{"power-of-two", "the less loaded of two drawn", with(picker.PowerOfTwo, nil), nil},
		{"round-robin", "in turn", with(picker.RoundRobin, nil), nil},
		{"random", "drawn", with(picker.Random, nil), nil},
	}
	for _, r := range policies.Rivals() {
		all = append(all, mode{name: r.Name, what: "another's: " + r.What, rival: &r})
	}
	return all
}

// chosen returns the modes of a comma-separated list; "" means all.
func chosen(names string, speed float64) ([]mode, error) {
	return named("mode", names, modes(speed), func(m mode) string { return m.name })
}

// named returns those of a comma-separated list of names; "" means all.
func named[T any](kind, list string, all []T, name func(T) string) (out []T, err error) {
	if list == "" {
		return all, nil
	}
	for n := range strings.SplitSeq(list, ",") {
		i := slices.IndexFunc(all, func(t T) bool { return name(t) == n })
		if i < 0 {
			var known []string
			for _, t := range all {
				known = append(known, name(t))
			}
			return nil, fmt.Errorf("%s %q: expected %s", kind, n, strings.Join(known, ", "))
		}
		out = append(out, all[i])
	}
	return out, nil
}

// replicated returns each mode with each count of replicas, one after the other. Others' ways
// have one.
func replicated(all []mode, counts []int, lag time.Duration) []mode {
	var out []mode
	for _, m := range all {
		for _, n := range counts {
			if m.rival != nil && n > 1 {
				continue
			}
			r := m
			r.name, r.what, r.plugin.Replicas = nameOf(m.name, n), whatOf(m.what, n), n
			r.plugin.Told, r.plugin.Lag = lag >= 0, lag
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

// play runs one mode with one seed. What the plugin knows at the end must be what is so.
func (m *mode) play(f *replay.Fleet, w *replay.Workload, seed uint64) (*replay.Result, error) {
	if m.rival != nil {
		return replay.Run(f, w, m.rival.New(f, w.BlockTokens, seed))
	}
	c := m.plugin
	c.Seed = seed
	p, err := whatif.NewPlugin(f, w.BlockTokens, c)
	if err != nil {
		return nil, err
	}
	r, err := replay.Run(f, w, p)
	if err == nil {
		err = p.Verify(w, r)
	}
	if err != nil {
		return nil, fmt.Errorf("mode %s: %w", m.name, err)
	}
	return r, nil
}

// row is one mode over all seeds: medians, and two ranges.
type row struct {
	Mode string
	replay.Figures
	LowHit, HighHit float64
	LowP95, HighP95 time.Duration // of the first token
}

func summarise(name string, runs []replay.Figures) row {
	r := row{Mode: name, Figures: medians(runs), LowHit: runs[0].Hit, HighHit: runs[0].Hit, LowP95: runs[0].First.P95, HighP95: runs[0].First.P95}
	for _, f := range runs {
		r.LowHit, r.HighHit = min(r.LowHit, f.Hit), max(r.HighHit, f.Hit)
		r.LowP95, r.HighP95 = min(r.LowP95, f.First.P95), max(r.HighP95, f.First.P95)
	}
	return r
}

// medians has the median of each figure that is printed.
func medians(runs []replay.Figures) (out replay.Figures) {
	type figures = replay.Figures
	for _, of := range []func(*figures) *float64{
		func(f *figures) *float64 { return &f.Hit }, func(f *figures) *float64 { return &f.Believed },
		func(f *figures) *float64 { return &f.Busiest }, func(f *figures) *float64 { return &f.Goodput },
	} {
		*of(&out) = medianOf(runs, of)
	}
	for _, of := range []func(*figures) *time.Duration{
		func(f *figures) *time.Duration { return &f.First.Mean }, func(f *figures) *time.Duration { return &f.First.P50 },
		func(f *figures) *time.Duration { return &f.First.P90 }, func(f *figures) *time.Duration { return &f.First.P95 },
		func(f *figures) *time.Duration { return &f.First.P99 }, func(f *figures) *time.Duration { return &f.Between.P99 },
	} {
		*of(&out) = medianOf(runs, of)
	}
	out.Preempted = medianOf(runs, func(f *figures) *int { return &f.Preempted })
	return out
}

// medianOf is the median of one figure.
func medianOf[T cmp.Ordered](runs []replay.Figures, of func(*replay.Figures) *T) T {
	v := make([]T, len(runs))
	for i := range runs {
		v[i] = *of(&runs[i])
	}
	return stats.Median(v)
}
