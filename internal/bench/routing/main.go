package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/bench/host"
	"github.com/seed-60ae5743/baton/internal/stack"
)

func main() {
	err := run(os.Args[1:], os.Stdout, os.Stderr)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "routing:", err)
		os.Exit(1)
	}
}

type options struct {
	fleet
	trace      string
	modes      []mode
	capacities []int
	rates      []float64
	requests   int
	repeats    int
	seed       uint64
	out        string
}

func parse(args []string, stderr io.Writer) (*options, error) {
	o := &options{}
	fs := flag.NewFlagSet("routing", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() {
		fmt.Fprint(stderr, "routing replays a conversation trace over simulated prefill ranks, in simulated time,\nand compares ways to pick. What it leaves out is in its doc.go.\n\n")
		fs.PrintDefaults()
	}
	fs.StringVar(&o.trace, "trace", "", "the trace, a JSON object a line; default ../shared/data/mooncake_conversation_trace.jsonl beside the repository")
	names := fs.String("modes", "", "modes with commas between them; default all")
	capacities := fs.String("capacity", "1000,4000", "sizes of each rank's cache in blocks of 512 tokens")
	rates := fs.String("rate", "1,1.3", "how many times as fast as in the trace requests arrive")
	fs.IntVar(&o.Ranks, "ranks", 8, "prefill ranks")
	fs.Float64Var(&o.Speed, "speed", 8000, "tokens a second that a rank prefills")
	fs.DurationVar(&o.Overhead, "overhead", 20*time.Millisecond, "of each prefill, whatever its length")
	fs.DurationVar(&o.EventDelay, "event-delay", 10*time.Millisecond, "from a rank's cache to the index")
	fs.DurationVar(&o.RoutedTTL, "estimate-ttl", 120*time.Second, "how long the estimate believes in what was routed")
	fs.DurationVar(&o.PredictedTTL, "predicted-ttl", 10*time.Second, "how long kv believes in what was routed before events tell of it")
	fs.IntVar(&o.requests, "requests", 0, "take only this many requests; 0: all")
	fs.IntVar(&o.repeats, "repeats", 3, "seeds for each mode, of which medians are printed")
	fs.Uint64Var(&o.seed, "seed", 1, "the first seed")
	fs.StringVar(&o.out, "out", "", "folder for results; default .run/bench below the repository's root")
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	if fs.NArg() > 0 {
		return nil, fmt.Errorf("argument %q: expected flags only", fs.Arg(0))
	}
	return o, o.check(*names, *capacities, *rates)
}

func (o *options) check(names, capacities, rates string) (err error) {
	if o.Ranks < 1 || o.Ranks > 1<<16 || !(o.Speed > 0) || o.Overhead < 0 || o.EventDelay < 0 || o.RoutedTTL <= 0 || o.PredictedTTL <= 0 || o.requests < 0 || o.repeats < 1 || o.seed == 0 {
		return errors.New("-ranks (to 65536), -speed, -estimate-ttl, -repeats and -seed: expected above 0; -overhead, -event-delay and -requests: not below 0")
	}
	if o.modes, err = chosen(names, o.Speed); err != nil {
		return err
	}
	for s := range strings.SplitSeq(capacities, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			return fmt.Errorf("-capacity %q: expected whole numbers above 0 with commas between them", capacities)
		}
		o.capacities = append(o.capacities, n)
	}
	for s := range strings.SplitSeq(rates, ",") {
		x, err := strconv.ParseFloat(s, 64)
		if err != nil || !(x > 0) || x > 1e6 {
			return fmt.Errorf("-rate %q: expected numbers above 0 with commas between them", rates)
		}
		o.rates = append(o.rates, x)
	}
	return nil
}

func run(args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	if o.trace == "" || o.out == "" {
		root, err := stack.Root()
		if err != nil {
			return err
		}
		if o.trace == "" {
			o.trace = filepath.Join(root, "..", "shared", "data", "mooncake_conversation_trace.jsonl")
		}
		if o.out == "" {
			o.out = filepath.Join(root, ".run", "bench")
		}
	}
	start := time.Now()
	r, err := o.measure(stderr)
	if err != nil {
		return err
	}
	text := r.markdown()
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	for name, content := range map[string]string{"routing.md": text, "routing.svg": plot(r)} {
		if err := os.WriteFile(filepath.Join(o.out, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	fmt.Fprint(stdout, text)
	fmt.Fprintf(stdout, "\nTook %s. Results: %s\n", time.Since(start).Round(100*time.Millisecond), filepath.Join(o.out, "routing.{md,svg}"))
	return nil
}

func (o *options) read(rate float64) ([]prompt, error) {
	f, err := os.Open(o.trace)
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	defer f.Close()
	trace, err := readTrace(f, o.requests, rate)
	if err != nil {
		return nil, fmt.Errorf("trace %s: %w", filepath.Base(o.trace), err)
	}
	return trace, nil
}

// measure runs every mode in every cell.
func (o *options) measure(stderr io.Writer) (*report, error) {
	r := &report{Machine: machine(), Trace: filepath.Base(o.trace), Fleet: o.fleet, Seed: o.seed, Repeats: o.repeats, Modes: o.modes}
	for _, rate := range o.rates {
		trace, err := o.read(rate)
		if err != nil {
			return nil, err
		}
		r.describe(trace)
		for _, capacity := range o.capacities {
			f := o.fleet
			f.Capacity = capacity
			c := cell{Capacity: capacity, Rate: rate, Demand: demand(trace, f)}
			for _, m := range o.modes {
				fmt.Fprintf(stderr, "%s, %s\n", c.String(), m.name)
				var runs []figures
				for i := range o.repeats {
					got, err := simulate(trace, f, m, o.seed+uint64(i))
					if err != nil {
						return nil, err
					}
					runs = append(runs, got)
				}
				c.Rows = append(c.Rows, summarise(m.name, runs))
			}
			r.Cells = append(r.Cells, c)
		}
	}
	return r, nil
}

// machine names where the run took place. The figures do not depend on it.
func machine() string {
	return fmt.Sprintf("%s, %d processors, %s/%s, %s", cmp.Or(host.CPU(), "unknown CPU"), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version())
}
