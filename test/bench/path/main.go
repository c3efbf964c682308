package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/seed-60ae5743/baton/internal/stats"
	"github.com/seed-60ae5743/baton/test/bench/host"
	"github.com/seed-60ae5743/baton/test/stack"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	quick    bool
	slice    time.Duration
	repeats  int
	only     string
	servers  string
	step     time.Duration
	place    string
	profile  bool
	deadline time.Duration
	out      string
}

func parse(args []string, stderr io.Writer) (*options, error) {
	o := &options{}
	fs := flag.NewFlagSet("path", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.BoolVar(&o.quick, "quick", false, "five repeats of 200 ms: about a minute, rough figures")
	fs.DurationVar(&o.slice, "duration", 400*time.Millisecond, "length of one slice of one case")
	fs.IntVar(&o.repeats, "repeats", 11, "interleaved repeats; at least 5 for figures to be told to others")
	fs.StringVar(&o.only, "only", "", "regular `expression` over cells such as buffered/2KB/16: measure only these")
	fs.StringVar(&o.servers, "servers", strings.Join([]string{nothingServer, batonServer, roundRobinServer, syncServer, unreadServer, streamServer}, ","), "what to measure besides Envoy alone")
	fs.DurationVar(&o.step, "step", defaultStep, "how long the decode worker works after its prefill has come")
	fs.StringVar(&o.place, "place", "auto", "processors: shared (the kernel decides), split (Envoy on one of its own), auto (split from 4 on)")
	fs.BoolVar(&o.profile, "profile", false, "afterwards, take CPU and allocation profiles of the plugin at 16 clients")
	fs.DurationVar(&o.deadline, "deadline", 20*time.Minute, "end after this, with an error")
	fs.StringVar(&o.out, "out", "", "folder for results; default .run/bench below the repository's root")
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	if fs.NArg() > 0 {
		return nil, fmt.Errorf("argument %q: expected flags only", fs.Arg(0))
	}
	if o.quick {
		o.slice, o.repeats = min(o.slice, 200*time.Millisecond), min(o.repeats, 5)
	}
	if o.slice <= 0 || o.repeats <= 0 || o.step < 0 {
		return nil, errors.New("duration and repeats: expected above 0; step: not below 0")
	}
	return o, nil
}

// plan returns what the flags ask for.
func (o *options) plan() (*plan, error) {
	re, err := regexp.Compile(o.only)
	if err != nil {
		return nil, fmt.Errorf("only: %w", err)
	}
	p := &plan{Repeats: o.repeats, Slice: o.slice, Warm: o.slice / 2}
	for _, size := range []int{2_000, 220_000} {
		for _, clients := range []int{1, 16, 64} {
			for _, mode := range []string{buffered, fullDuplex} {
				if c := (cell{mode, size, clients}); re.MatchString(c.String()) {
					p.Cells = append(p.Cells, c)
				}
			}
		}
	}
	if len(p.Cells) == 0 {
		return nil, fmt.Errorf("only %q: no cell of that name; expected such as buffered/2KB/16", o.only)
	}
	for name := range strings.SplitSeq(o.servers, ",") {
		if _, ok := plugins()[name]; !ok && name != nothingServer {
			return nil, fmt.Errorf("server %q: expected nothing or one of %q", name, slices.Sorted(maps.Keys(plugins())))
		}
		p.Servers = append(p.Servers, name)
	}
	return p, nil
}

// modes returns the modes of the cells.
func (p *plan) modes() []string {
	var out []string
	for _, c := range p.Cells {
		if !slices.Contains(out, c.Mode) {
			out = append(out, c.Mode)
		}
	}
	return out
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	p, err := o.plan()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.deadline, fmt.Errorf("not done within %s", o.deadline))
	defer cancel()
	if o.out == "" {
		root, err := stack.Root()
		if err != nil {
			return err
		}
		o.out = filepath.Join(root, ".run", "bench")
	}
	l, err := o.lab(p)
	if err != nil {
		return err
	}
	defer l.close()
	fmt.Fprintln(stderr, "starting the workers, the servers and", 1+len(p.Servers)*len(p.modes()), "Envoys")
	if err := l.open(ctx, p.Servers, p.modes()); err != nil {
		return err
	}
	samples, err := measure(ctx, p, l.variants, stderr)
	if ctx.Err() != nil {
		return context.Cause(ctx) // the processes are ending too: what they said is a consequence
	}
	if err != nil {
		return err
	}
	if o.profile {
		if err := profile(ctx, p, l, o.out, stderr); err != nil {
			return err
		}
	}
	r := &report{Machine: thisMachine(), Rows: rows(p, samples), Samples: samples, Method: method{
		Repeats: p.Repeats, SliceMS: stats.Micros(p.Slice) / 1000, StepUS: stats.Micros(o.step), Placement: o.place,
	}}
	if err := r.write(o.out); err != nil {
		return err
	}
	fmt.Fprint(stdout, r.text())
	fmt.Fprintf(stdout, "Results: %s\n", filepath.Join(o.out, "path.{md,json,svg}"))
	return lost(samples)
}

// lost returns an error when requests have failed.
func lost(samples []sample) error {
	failed := 0
	for _, s := range samples {
		failed += s.Failed
	}
	if failed > 0 {
		return fmt.Errorf("%d requests failed: the figures of their cells mean little", failed)
	}
	return nil
}

// lab builds the binaries and finds Envoy; it starts nothing.
func (o *options) lab(p *plan) (*lab, error) {
	// The path of a unix socket may have about 100 bytes, so sockets are kept
	// in a short folder rather than below the repository.
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return nil, err
	}
	l := &lab{dir: dir, bin: filepath.Join(o.out, "bin"), step: o.step}
	l.closers = append(l.closers, func() { _ = os.RemoveAll(dir) })
	if err := o.prepare(l, p); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (o *options) prepare(l *lab, p *plan) (err error) {
	l.place, err = place(o.place, cpus())
	if err != nil {
		return err
	}
	l.envoyPath, err = stack.FindEnvoy(os.Getenv("ENVOY"))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(l.bin, 0o755); err != nil {
		return err
	}
	commands := []string{"./test/bench/nothing", "./test/bench/constant"}
	if slices.ContainsFunc(p.Servers, func(s string) bool { return s != nothingServer }) {
		commands = append(commands, "./cmd/extproc")
	}
	return stack.Build(l.bin, "", false, commands...)
}

func thisMachine() machine {
	return machine{
		CPU: cmp.Or(host.CPU(), "unknown CPU"), Cores: cmp.Or(len(cpus()), runtime.NumCPU()), OS: runtime.GOOS + "/" + runtime.GOARCH,
		Go: runtime.Version(), Envoy: stack.EnvoyVersion,
	}
}
