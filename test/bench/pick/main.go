package main

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/overlap"
	"github.com/seed-60ae5743/baton/internal/stats"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/bench/host"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "pick:", err)
		os.Exit(1)
	}
}

type options struct {
	workers []int
	dp      int
	repeats int
	each    time.Duration
}

func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("pick", flag.ContinueOnError)
	sizes := f.String("workers", "10,100,1000", "sizes of the prefill pool")
	f.IntVar(&o.dp, "dp", 8, "data-parallel ranks of each worker")
	f.IntVar(&o.repeats, "repeats", 5, "repeats of each figure, of which the best is printed")
	f.DurationVar(&o.each, "for", 200*time.Millisecond, "length of one repeat")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	for s := range strings.SplitSeq(*sizes, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			return o, fmt.Errorf("-workers %q: expected numbers above 0 with commas between them", *sizes)
		}
		o.workers = append(o.workers, n)
	}
	if o.dp < 1 || o.repeats < 1 || o.each <= 0 {
		return o, fmt.Errorf("-dp %d -repeats %d -for %s: expected each above 0", o.dp, o.repeats, o.each)
	}
	return o, nil
}

func run(args []string, out io.Writer) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s, %d of its cores used, %s, %s; best of %d repeats of %s\n\n",
		cmp.Or(host.CPU(), runtime.GOARCH), runtime.GOMAXPROCS(0), runtime.Version(), loadAverage(), o.repeats, o.each)
	fmt.Fprintln(out, "| workers × ranks | what | p50 µs | p99 µs | allocations |")
	fmt.Fprintln(out, "| --- | --- | --- | --- | --- |")
	for _, n := range o.workers {
		l, err := newLab(n, o.dp, 1)
		if err != nil {
			return err
		}
		if err := o.rows(out, n, l.cases()); err != nil {
			return err
		}
		if err := l.widen(); err != nil {
			return err
		}
		if err := o.rows(out, n, l.wideCases()); err != nil {
			return err
		}
	}
	return nil
}

// rows prints a row of the table for each case, with n workers.
func (o *options) rows(out io.Writer, n int, cases []action) error {
	for _, c := range cases {
		best, err := o.best(c)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "| %d × %d | %s | %.2f | %.2f | %d |\n", n, o.dp, c.name, stats.Micros(best.p50), stats.Micros(best.p99), best.allocations)
	}
	return nil
}

// best is the fastest of the repeats.
func (o *options) best(c action) (figure, error) {
	best := figure{p50: time.Hour}
	for range o.repeats {
		f, err := measure(c, o.each)
		if err != nil {
			return best, fmt.Errorf("%s: %w", c.name, err)
		}
		if f.p50 < best.p50 {
			best = f
		}
	}
	return best, nil
}

// action is one thing to be timed. prepare is not.
type action struct {
	name    string
	prepare func()
	do      func() error
}

func (l *lab) cases() []action {
	columns, req := l.columns(), l.request(worker.Prefill, l.prefill, &l.params, time.Time{})
	columns.Near = new(picker.Shortlist)
	idle := picker.NewCandidates(make([]picker.Candidate, len(l.prefill))...)
	idle.Overlap = make([]uint32, len(l.prefill))
	decode := picker.DecodeOverride(l.params)
	chain := l.chain()
	var into *load.Reservation
	nothing := func() {}
	next := func() { chain, into = l.chain(), l.slot() }
	return []action{
		{"pick alone", nothing, func() error {
			_, err := picker.Pick(&req.Pick, columns, &l.params, 0, l.rng)
			return err
		}},
		{"pick alone, all equal", nothing, func() error {
			_, err := picker.Pick(&req.Pick, idle, &l.params, 0, l.rng)
			return err
		}},
		{"index look-up", next, func() error {
			l.lookup.Of(l.snap, l.prefill, overlap.Prompt{Hashes: chain}, &l.answer)
			return nil
		}},
		{"prefill: pick and booking", next, func() error { return l.pickPrefill(into) }},
		{"decode: pick and booking", next, func() error { return l.decideDecode(&decode, into) }},
		{"prefill: hashes to decision", next, func() error { return l.decide(chain, into) }},
	}
}

// wideCases are those that another tier, or what was routed, has a part in.
func (l *lab) wideCases() []action {
	chain := l.chain()
	var into *load.Reservation
	next := func() { chain, into = l.chain(), l.slot() }
	return []action{
		{"index look-up, all views", next, func() error {
			l.lookup.Of(l.snap, l.prefill, overlap.Prompt{Hashes: chain}, &l.answer)
			return nil
		}},
		{"prefill: hashes to decision, all views", next, func() error { return l.decide(chain, into) }},
		{"note of a routed prompt", next, func() error {
			l.index.Route(l.prefill[l.next%len(l.prefill)], chain, kvindex.Predicted, time.Now())
			return nil
		}},
	}
}

type figure struct {
	p50, p99    time.Duration
	allocations uint64 // a run
}

// measure times single runs. What reading the clock costs is in the figures.
func measure(c action, each time.Duration) (figure, error) {
	took := make([]time.Duration, 0, 1<<20)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for until := time.Now().Add(each); len(took) < cap(took); {
		c.prepare()
		start := time.Now()
		err := c.do()
		end := time.Now()
		if err != nil {
			return figure{}, err
		}
		took = append(took, end.Sub(start))
		if end.After(until) {
			break
		}
	}
	runtime.ReadMemStats(&after)
	slices.Sort(took)
	n := len(took)
	return figure{p50: stats.Quantile(took, 0.50), p99: stats.Quantile(took, 0.99), allocations: (after.Mallocs - before.Mallocs) / uint64(n)}, nil
}

func loadAverage() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "load not known"
	}
	first, _, _ := strings.Cut(string(b), " ")
	return "load " + first
}
