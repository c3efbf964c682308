package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/seed-60ae5743/baton/internal/replay"
	"github.com/seed-60ae5743/baton/internal/replay/replaytest"
	"github.com/seed-60ae5743/baton/internal/whatif"
	"github.com/seed-60ae5743/baton/test/bench/host"
	"github.com/seed-60ae5743/baton/test/stack"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
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
	replicas   []int
	lag        time.Duration
	seed       uint64
	spread     bool
	quick      bool
	bursts     bool
	agents     bool
	out        string
	live       bool
	tokenizer  string
	played     liveOptions
	predicts   string        // two live modes; "": nothing is predicted
	drilled    *drillOptions // nil: no drill

	fleets, traffics string // by name; "": the ranks that prefill alone, in the trace's rate
	target           replay.Target
}

func parse(args []string, stderr io.Writer) (*options, error) {
	o := &options{}
	fs := flag.NewFlagSet("routing", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() {
		fmt.Fprint(stderr, "routing replays a conversation trace over simulated prefill ranks, in simulated time,\nthen a slice of it live, over real processes, and compares ways to pick. What it\nleaves out is in its doc.go.\n\n")
		fs.PrintDefaults()
	}
	fs.StringVar(&o.trace, "trace", "", "the trace, a JSON object a line; default ../shared/data/mooncake_conversation_trace.jsonl beside the repository")
	names := fs.String("modes", "", "modes with commas between them; default all")
	capacities := fs.String("capacity", "4000,1000", "sizes of each rank's cache in blocks of 512 tokens")
	rates := fs.String("rate", "1,1.3", "how many times as fast as in the trace requests arrive")
	replicas := fs.String("replicas", "1", "counts of the plugin's replicas with commas between them: each mode is played with each. Requests go to them in turn")
	fs.IntVar(&o.Ranks, "ranks", 8, "prefill ranks")
	fs.Float64Var(&o.Speed, "speed", 8000, "tokens a second that a rank prefills")
	fs.DurationVar(&o.Overhead, "overhead", 20*time.Millisecond, "of each prefill, whatever its length")
	fs.DurationVar(&o.EventDelay, "event-delay", 10*time.Millisecond, "from a rank's cache to the index")
	fs.DurationVar(&o.RoutedTTL, "estimate-ttl", 120*time.Second, "how long the estimate believes in what was routed")
	fs.DurationVar(&o.PredictedTTL, "predicted-ttl", 10*time.Second, "how long kv believes in what was routed before events tell of it")
	fs.IntVar(&o.requests, "requests", 0, "take only this many requests; 0: all")
	fs.IntVar(&o.repeats, "repeats", 3, "seeds for each mode, of which medians are printed")
	fs.Uint64Var(&o.seed, "seed", 1, "the first seed")
	fs.BoolVar(&o.spread, "spread", true, "let requests of one timestamp arrive evenly until the next one: the trace tells times in steps of 3 s")
	fs.BoolVar(&o.live, "live", true, "play a slice live too, with the first -capacity and the first -rate; false needs no Envoy")
	liveNames := fs.String("live-modes", "", "live modes with commas between them; default all")
	fs.Float64Var(&o.played.scale.Speedup, "speedup", 10, "how many times as fast as in the trace live time goes: more is sooner done, and the path weighs more")
	fs.IntVar(&o.played.scale.Page, "page", 16, "tokens of a live block, which stands for 512: more makes prompts longer, and their bytes dearer")
	fs.StringVar(&o.tokenizer, "tokenizer", "", "a `family` of make tokenizers, as qwen3: live prompts are chats of its words, workers take Python's tokens for them (make real-tools), and the live mode kv-files is there; default: the simulated workers' own")
	fs.IntVar(&o.played.decode, "decode", 2, "live decode workers")
	liveFleet, drill := o.liveFlags(fs), drillFlags(fs)
	fs.StringVar(&o.fleets, "fleet", "", "play whole answers over fleets by name, with commas between them: whole or apart, and any of +two-slow, +halved, +throttled, +four. Simulates only, with the first -capacity")
	fs.StringVar(&o.traffics, "traffic", "", "with -fleet: loads in percent of the fleet's time if nothing were cached, bursts, or agents, with commas between them; default 65")
	fs.DurationVar(&o.target.FirstToken, "target-first", 4*time.Second, "with -fleet: the latest first token of a request that counts as good")
	fs.DurationVar(&o.target.Between, "target-between", 200*time.Millisecond, "with -fleet: its longest mean time between tokens")
	fs.BoolVar(&o.quick, "quick", false, "try it out: 60 requests, one seed, the first cell, two live modes at twice the speed-up")
	fs.StringVar(&o.out, "out", "", "folder for results; default .run/bench below the repository's root")
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	if fs.NArg() > 0 {
		return nil, fmt.Errorf("argument %q: expected flags only", fs.Arg(0))
	}
	if err := errors.Join(o.check(*names, *capacities, *rates, *replicas), drill(&o.drilled)); err != nil {
		return nil, err
	}
	if o.quick {
		set := map[string]bool{}
		fs.Visit(func(f *flag.Flag) { set[f.Name] = true })
		o.hurry(set, liveNames)
	}
	if err := o.played.named(*liveFleet); err != nil {
		return nil, err
	}
	o.played.fleet, o.played.shared = o.fleet, o.lag >= 0
	o.played.fleet.Capacity = o.capacities[0]
	if err := o.played.check(); err != nil {
		return nil, err
	}
	live, err := chosenLive(*liveNames, o.tokenizer != "", o.played.whole)
	o.played.modes = replicatedLive(live, o.replicas)
	return o, err
}

// liveFlags adds the flags of what is played live, beside the trace's slice over pairs.
func (o *options) liveFlags(fs *flag.FlagSet) (fleet *string) {
	fs.IntVar(&o.played.requests, "live-requests", 1500, "how long the slice is, from the trace's beginning")
	fs.IntVar(&o.played.repeats, "live-repeats", 1, "runs of each live mode, in turns, of which medians are printed")
	fleet = fs.String("live-fleet", "apart", "what is played live: apart, or whole: the workers serve requests alone, and live modes may be others' programs (live-modes: dynamo, envoy-least-request, sglang-gateway, smg, vllm-cache-aware, vllm-kv-aware); with +two-slow two of them are half as fast")
	fs.DurationVar(&o.lag, "lag", time.Millisecond, "how late, simulated, what a replica tells comes to the others, beside the 20 ms for which it is gathered; below 0, live, too: they tell each other nothing")
	fs.BoolVar(&o.bursts, "bursts", false, "live, and in the slice's simulation: bunch what arrives in 10 s into the first one")
	fs.BoolVar(&o.agents, "agents", false, "live, and in the slice's simulation: agents' traffic in the place of the trace")
	fs.StringVar(&o.predicts, "replay", "", "two live modes with a comma between them: record the slice live in the first one, predict the second one by the record, play that live three times, and compare. Nothing else is done")
	fs.StringVar(&o.played.python, "python", "", "a Python `program` with the packages of others' programs (make bench-rivals)")
	return fleet
}

// drillFlags adds the flags of the drill. What it returns reads them.
func drillFlags(fs *flag.FlagSet) func(to **drillOptions) error {
	wanted := fs.Bool("drill", false, "play the drill, and nothing else: steady requests through Baton and others' programs, and one thing that goes wrong")
	rows := fs.String("drill-rows", "", "what goes wrong, with commas between: death, slow-health, standstill, burst; default all")
	modes := fs.String("drill-modes", "", "with what, with commas between: kv, kv-apart, kv-apart-vllm, dynamo, envoy-least-request, sglang-gateway, sglang-gateway-apart, smg, smg-apart, vllm-cache-aware, vllm-kv-aware, vllm-apart; default all")
	return func(to **drillOptions) (err error) {
		if *wanted {
			*to, err = chosenDrill(*modes, *rows)
		}
		return err
	}
}

// named sets the live fleet by its name.
func (o *liveOptions) named(fleet string) error {
	base, slow := strings.CutSuffix(fleet, "+two-slow")
	if base != "apart" && base != "whole" {
		return fmt.Errorf("-live-fleet %q: expected apart or whole, with or without +two-slow", fleet)
	}
	o.whole = base == "whole"
	if slow {
		o.slow = 2
	}
	return nil
}

// hurry makes a run short, but for what was set.
func (o *options) hurry(set map[string]bool, liveNames *string) {
	o.capacities, o.rates = o.capacities[:1], o.rates[:1]
	if !set["requests"] {
		o.requests = 60
	}
	if !set["repeats"] {
		o.repeats = 1
	}
	if !set["live-requests"] {
		o.played.requests = 60
	}
	if !set["speedup"] {
		o.played.scale.Speedup *= 2
	}
	if !set["live-modes"] {
		*liveNames = "kv,round-robin"
	}
}

func (o *options) check(names, capacities, rates, replicas string) (err error) {
	if o.Ranks < 1 || o.Ranks > 1<<16 || !(o.Speed > 0) || o.Overhead < 0 || o.EventDelay < 0 || o.RoutedTTL <= 0 || o.PredictedTTL <= 0 || o.requests < 0 || o.repeats < 1 || o.seed == 0 {
		return errors.New("-ranks (to 65536), -speed, -estimate-ttl, -repeats and -seed: expected above 0; -overhead, -event-delay and -requests: not below 0")
	}
	if o.traffics != "" && o.fleets == "" {
		return fmt.Errorf("-traffic %q: expected -fleet, too", o.traffics)
	}
	o.live = o.live && o.fleets == "" // no worker of the live part writes whole answers
	o.modes, err = chosen(names, o.Speed)
	if err != nil {
		return err
	}
	o.capacities, err = counts("capacity", capacities, 1e9)
	if err != nil {
		return err
	}
	o.replicas, err = counts("replicas", replicas, 64)
	if err != nil {
		return err
	}
	o.modes = replicated(o.modes, o.replicas, o.lag)
	for s := range strings.SplitSeq(rates, ",") {
		x, err := strconv.ParseFloat(s, 64)
		if err != nil || !(x > 0) || x > 1e6 {
			return fmt.Errorf("-rate %q: expected numbers above 0 with commas between them", rates)
		}
		o.rates = append(o.rates, x)
	}
	return nil
}

// counts reads the value of a flag.
func counts(flag, text string, most int) ([]int, error) {
	var out []int
	for s := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > most {
			return nil, fmt.Errorf("-%s %q: expected whole numbers from 1 to %d with commas between them", flag, text, most)
		}
		out = append(out, n)
	}
	return out, nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
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
	var p parts
	if o.live || o.drilled != nil { // what is missing is to be said before minutes have passed
		p, err = build(o.out)
		if err != nil {
			return err
		}
		p.python = o.played.python
	}
	if o.drilled != nil {
		return o.drill(ctx, p, stdout, stderr)
	}
	if err := o.publish(stderr); err != nil {
		return err
	}
	if o.predicts != "" {
		return o.predict(ctx, p, stdout, stderr)
	}
	r, err := o.measure(stderr)
	if err != nil {
		return err
	}
	text, files := r.markdown(), map[string]string{"routing.svg": plot(r)}
	lost := func() error { return nil }
	if o.live {
		c, err := o.compare(ctx, p, r, stderr)
		if err != nil {
			return err
		}
		text, files["routing-live.svg"], lost = text+c.markdown(), plotLive(c), c.lost
	}
	files["routing.md"] = text
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(o.out, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	fmt.Fprint(stdout, text)
	fmt.Fprintf(stdout, "\nTook %s. Results: %s\n", time.Since(start).Round(100*time.Millisecond), filepath.Join(o.out, "routing*.{md,svg}"))
	return lost()
}

// publish has the tokens of all live requests made, if they are to be those of a published
// tokenizer.
func (o *options) publish(stderr io.Writer) error {
	if !o.live || o.tokenizer == "" {
		return nil
	}
	root, err := stack.Root()
	if err != nil {
		return err
	}
	o.played.published, err = openPublished(root, o.tokenizer)
	if err != nil {
		return err
	}
	o.played.scale.Words = o.played.published.words
	trace, err := o.read(o.played.requests, o.rates[0])
	if err != nil {
		return err
	}
	var bodies [][]byte
	var words []int
	for i := range trace {
		words = append(words, o.played.scale.words(&trace[i]))
		bodies = append(bodies, o.played.scale.body(&trace[i]))
	}
	fmt.Fprintf(stderr, "tokens of %d requests, by Python with %s's tokenizer and template\n", len(bodies), o.tokenizer)
	o.played.asked, o.played.refused = filepath.Join(o.out, "tokens-asked.jsonl"), filepath.Join(o.out, "tokens-refused.jsonl")
	return o.played.published.tables(root, o.played.scale.warmUps(), bodies, words, o.played.asked, o.played.refused)
}

func (o *options) read(limit int, rate float64) ([]replay.Request, error) {
	text, err := os.ReadFile(o.trace)
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	w, err := replay.ParseTrace(text, limit, rate)
	if err != nil {
		return nil, fmt.Errorf("trace %s: %w", filepath.Base(o.trace), err)
	}
	if o.spread {
		replay.Spread(w.Requests)
	}
	return w.Requests, nil
}

// sliceSeeds are taken for the simulation of the slice: they show how far runs
// differ by chance alone, of which a live run is one.
const sliceSeeds = 20

// sliceOf returns the requests that are played live: of the trace, or agents'. What an agent sends next, it sends
// a pause after an answer; live it comes when it would if the plugin's defaults picked.
func (o *options) sliceOf() ([]replay.Request, error) {
	if !o.agents {
		return o.read(o.played.requests, o.rates[0])
	}
	a := replaytest.DefaultAgents()
	a.Seed, a.BlockTokens, a.Requests = o.seed, traceBlock, 2*o.played.requests // sessions overlap: the first half is dense
	w, f := a.Workload(), o.played.simulated()
	p, err := whatif.NewPlugin(f, w.BlockTokens, whatif.Default())
	if err != nil {
		return nil, err
	}
	r, err := replay.Run(f, w, p)
	if err != nil {
		return nil, err
	}
	for i := range w.Requests {
		w.Requests[i].At, w.Requests[i].Follows = time.Duration(float64(r.Outcomes[i].At)/o.rates[0]), 0
	}
	slices.SortStableFunc(w.Requests, func(a, b replay.Request) int { return cmp.Compare(a.At, b.At) })
	return w.Requests[:min(len(w.Requests), o.played.requests)], nil
}

// compare plays the slice live, and simulates it.
func (o *options) compare(ctx context.Context, p parts, r *report, stderr io.Writer) (*comparison, error) {
	trace, err := o.sliceOf()
	if err != nil {
		return nil, err
	}
	if o.bursts {
		replaytest.Bunch(trace, 10*time.Second, time.Second)
	}
	trace = o.played.scale.shrink(trace)
	sim := o.played.simulated()
	c := &comparison{
		options: o.played, Trace: r.Trace, Requests: len(trace), Bound: workloadOf(trace).Bound(), Demand: replaytest.Demand(workloadOf(trace), sim),
		Span: time.Duration(float64(trace[len(trace)-1].At) / o.played.scale.Speedup), Slice: map[string]row{}, All: len(r.Cells[0].Load.Requests), Whole: map[string]row{},
	}
	for _, row := range r.Cells[0].Rows {
		c.Whole[row.Mode] = row
	}
	for _, m := range replicated(modes(o.Speed), o.replicas, o.lag) {
		c.Slice[m.name], err = o.simulate(sim, workloadOf(trace), m, sliceSeeds)
		if err != nil {
			return nil, err
		}
	}
	c.Live, err = measureLive(ctx, p, &o.played, trace, stderr)
	return c, err
}

// simulate runs a mode with so many seeds.
func (o *options) simulate(f *replay.Fleet, w *replay.Workload, m mode, seeds int) (row, error) {
	m.plugin.RoutedTTL, m.plugin.PredictedTTL = o.RoutedTTL, o.PredictedTTL
	var runs []replay.Figures
	for i := range seeds {
		r, err := m.play(f, w, o.seed+uint64(i))
		if err != nil {
			return row{}, err
		}
		runs = append(runs, r.Figures(o.target))
	}
	return summarise(m.name, runs), nil
}

// measure runs every mode in every cell.
func (o *options) measure(stderr io.Writer) (*report, error) {
	r := &report{Machine: machine(), Trace: filepath.Base(o.trace), Seed: o.seed, Repeats: o.repeats, Modes: o.modes}
	var err error
	if o.fleets != "" {
		err = o.users(r)
	} else {
		err = o.prefills(r)
	}
	if err != nil {
		return nil, err
	}
	for i := range r.Cells {
		c := &r.Cells[i]
		for _, m := range o.modes {
			fmt.Fprintf(stderr, "%s, %s\n", c.Heading, m.name)
			got, err := o.simulate(c.Fleet, c.Load, m, o.repeats)
			if err != nil {
				return nil, err
			}
			c.Rows = append(c.Rows, got)
		}
	}
	return r, nil
}

// prefills adds the cells of prefill ranks alone, by arrivals and caches.
func (o *options) prefills(r *report) error {
	r.About = fmt.Sprintf("%d prefill ranks, one prompt at a time each, %g tokens/s and %s a prompt; KV events arrive after %s; the estimate believes for %s.", o.Ranks, o.Speed, o.Overhead, o.EventDelay, o.RoutedTTL)
	for _, rate := range o.rates {
		trace, err := o.read(o.requests, rate)
		if err != nil {
			return err
		}
		for _, capacity := range o.capacities {
			f := o.fleet
			f.Capacity = capacity
			r.Cells = append(r.Cells, cell{Heading: fmt.Sprintf("%d blocks a rank, arrivals ×%g", capacity, rate), Fleet: f.simulated(), Load: workloadOf(trace)})
		}
	}
	return nil
}

// usersRequests is how many requests of the trace are played over fleets by name.
const usersRequests = 1500

// users adds the cells of whole answers, by fleets and traffic with names.
func (o *options) users(r *report) error {
	trace, err := o.read(cmp.Or(o.requests, usersRequests), 1)
	if err != nil {
		return err
	}
	s := replaytest.Scenarios{
		Ranks: o.Ranks, PerToken: 1 / o.Speed, PerPrompt: o.Overhead.Seconds(), CacheBlocks: o.capacities[0],
		EventDelay: o.EventDelay, Seed: o.seed, Trace: trace,
	}
	r.About = fmt.Sprintf("%s Goodput: the share of requests with a first token within %v and a mean of %v between tokens. Relative: to %s.", s.String(), o.target.FirstToken, o.target.Between, o.modes[0].name)
	for fleetName := range strings.SplitSeq(o.fleets, ",") {
		for traffic := range strings.SplitSeq(cmp.Or(o.traffics, "65"), ",") {
			f, w, err := s.Play(fleetName, traffic)
			if err != nil {
				return err
			}
			r.Cells = append(r.Cells, cell{Heading: fleetName + ", " + traffic, Fleet: f, Load: w, Whole: true})
		}
	}
	return nil
}

// machine names where the run took place. The figures do not depend on it.
func machine() string {
	return fmt.Sprintf("%s, %d processors, %s/%s, %s", cmp.Or(host.CPU(), "unknown CPU"), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version())
}
