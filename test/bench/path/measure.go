package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/seed-60ae5743/baton/internal/stats"
	"github.com/seed-60ae5743/baton/test/bench/host"
)

// cell is one place of the matrix.
type cell struct {
	Mode      string `json:"mode"`
	BodyBytes int    `json:"body_bytes"`
	Clients   int    `json:"clients"`
}

func (c cell) String() string { return fmt.Sprintf("%s/%dKB/%d", c.Mode, c.BodyBytes/1000, c.Clients) }

// sample is what one case did in one slice. Times are in microseconds; CPU,
// bytes and mallocs are the server's, a request.
type sample struct {
	Case      string  `json:"case"` // the server
	Mode      string  `json:"mode,omitempty"`
	BodyBytes int     `json:"body_bytes"`
	Clients   int     `json:"clients"`
	Repeat    int     `json:"repeat"`
	Requests  int     `json:"requests"`
	Failed    int     `json:"failed"`
	PerSecond float64 `json:"requests_per_second"`
	P50       float64 `json:"p50_us"`
	P99       float64 `json:"p99_us"`
	CPU       float64 `json:"server_cpu_us"`
	EnvoyCPU  float64 `json:"envoy_cpu_us"`
	Bytes     float64 `json:"allocated_bytes"`
	Mallocs   float64 `json:"mallocs"`
}

// plan is what is to be measured, and how long.
type plan struct {
	Cells   []cell
	Servers []string // besides Envoy alone
	Repeats int
	Slice   time.Duration
	Warm    time.Duration // before each cell, each case
}

// wants reports whether server s is measured in cell c. Round robin is shown
// at one load only: it is there to tell what routing by content costs. Two legs
// one after the other are shown at loads where waiting for a processor is not
// yet all there is.
func (p *plan) wants(s string, c cell) bool {
	switch s {
	case roundRobinServer:
		return c.Mode == buffered && c.Clients == 16
	case syncServer:
		return c.Clients <= 16
	case streamServer, unreadServer:
		return c.BodyBytes < largeBytes
	default:
		return true
	}
}

// load is a body size and a number of clients: what one crowd does.
type load struct{ bytes, clients int }

// loads returns the different loads of the cells, in their order.
func (p *plan) loads() []load {
	var out []load
	for _, c := range p.Cells {
		if l := (load{c.BodyBytes, c.Clients}); !slices.Contains(out, l) {
			out = append(out, l)
		}
	}
	return out
}

// cases returns the variants that are compared under a load: Envoy alone, all
// that some cell of this load wants, and both workers without Envoy where one
// of these is held against it.
func (p *plan) cases(l load, all []*variant) []*variant {
	wanted := func(name, mode string) bool {
		c := cell{mode, l.bytes, l.clients}
		return slices.Contains(p.Cells, c) && p.wants(name, c)
	}
	var out []*variant
	for _, v := range all {
		switch v.name {
		case aloneServer:
		case directServer:
			if !slices.ContainsFunc(all, func(o *variant) bool { return o.name == syncServer && wanted(o.name, o.mode) }) {
				continue
			}
		default:
			if !wanted(v.name, v.mode) {
				continue
			}
		}
		out = append(out, v)
	}
	return out
}

// measure runs the plan. It tells of its progress on w.
func measure(ctx context.Context, p *plan, all []*variant, w io.Writer) ([]sample, error) {
	var out []sample
	for _, l := range p.loads() {
		cases := p.cases(l, all)
		fmt.Fprintf(w, "%d KB, %d clients: %d cases, %d repeats of %s\n", l.bytes/1000, l.clients, len(cases), p.Repeats, p.Slice)
		got, err := compare(ctx, p, l, cases)
		if err != nil {
			return out, fmt.Errorf("%d KB, %d clients: %w", l.bytes/1000, l.clients, err)
		}
		out = append(out, got...)
	}
	return out, nil
}

// compare lets the cases take turns under one load.
func compare(ctx context.Context, p *plan, l load, cases []*variant) ([]sample, error) {
	crowds := make([]crowd, len(cases))
	for i, v := range cases {
		crowds[i] = v.crowd(l)
		defer crowds[i].close()
		if t := crowds[i].run(ctx, p.Warm); t.first != nil {
			return nil, fmt.Errorf("%s: %d of %d requests failed in the warm-up: %w", v, t.failed, t.failed+len(t.latencies), t.first)
		}
	}
	var out []sample
	for repeat := range p.Repeats {
		for k := range cases {
			i := (k + repeat) % len(cases)
			s, err := one(ctx, cases[i], crowds[i], p.Slice)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", cases[i], err)
			}
			s.BodyBytes, s.Clients, s.Repeat = l.bytes, l.clients, repeat
			out = append(out, s)
		}
	}
	return out, nil
}

// drain is the time after the last answer in which what trails behind it (the
// end of the prefill leg's stream) is still counted.
const drain = 20 * time.Millisecond

// meter reads what a variant has used so far.
type meter struct {
	cpu, envoy time.Duration
	allocated  totals
}

// read reads the clocks last (first is false: first), so that what asking for
// the totals costs is in no slice.
func (m *meter) read(ctx context.Context, v *variant, first bool) (err error) {
	clocks := func() (err error) {
		if v.envoy == nil {
			return nil
		}
		m.envoy, err = host.CPUTime(v.envoy.PID())
		if err != nil || v.server == nil {
			return err
		}
		m.cpu, err = host.CPUTime(v.server.pid)
		return err
	}
	if !first {
		if err := clocks(); err != nil {
			return err
		}
	}
	if v.server != nil {
		m.allocated, err = v.server.totals(ctx)
		if err != nil {
			return err
		}
	}
	if first {
		return clocks()
	}
	return nil
}

// one measures one slice of one case.
func one(ctx context.Context, v *variant, w crowd, d time.Duration) (sample, error) {
	var before, after meter
	if err := before.read(ctx, v, true); err != nil {
		return sample{}, err
	}
	t := w.run(ctx, d)
	time.Sleep(drain)
	if err := after.read(ctx, v, false); err != nil {
		return sample{}, err
	}
	if ctx.Err() != nil {
		return sample{}, context.Cause(ctx)
	}
	n := len(t.latencies)
	if n == 0 {
		return sample{}, fmt.Errorf("no request was answered: %w", t.first)
	}
	s := sample{
		Case: v.name, Mode: v.mode, Requests: n, Failed: t.failed, PerSecond: float64(n) / t.took.Seconds(),
		EnvoyCPU: stats.Micros(after.envoy-before.envoy) / float64(n),
	}
	slices.Sort(t.latencies)
	s.P50, s.P99 = stats.Micros(stats.Quantile(t.latencies, 0.50)), stats.Micros(stats.Quantile(t.latencies, 0.99))
	if v.server != nil {
		a := after.allocated.minus(before.allocated).minus(v.server.asking)
		s.CPU = stats.Micros(after.cpu-before.cpu) / float64(n)
		s.Bytes, s.Mallocs = float64(a.bytes)/float64(n), float64(a.mallocs)/float64(n)
	}
	return s, nil
}
