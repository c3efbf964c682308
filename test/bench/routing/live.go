package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"time"

	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/internal/replay"
	"github.com/seed-60ae5743/baton/internal/stats"
)

// liveOptions say what is played live, and how.
type liveOptions struct {
	fleet    fleet // as in the simulation, capacity included
	scale    scale
	decode   int // decode workers
	requests int
	repeats  int
	modes    []liveMode
	whole    bool   // the workers serve requests alone
	slow     int    // so many of them are half as fast
	python   string // with the rivals' packages; "": none
	shared   bool   // replicas tell each other what they have booked
	record   string // the folder in which the plugin records; "": it does not

	published      *published // nil: the simulated workers' own tokenizer
	asked, refused string     // files for the workers, with its tokens
}

func (o *liveOptions) check() error {
	if !(o.scale.Speedup > 0) || o.scale.Speedup > 1e4 || o.scale.Page < 4 || o.scale.Page > traceBlock || traceBlock%o.scale.Page != 0 {
		return fmt.Errorf("-speedup %g and -page %d: expected above 0, and a divisor of %d from 4", o.scale.Speedup, o.scale.Page, traceBlock)
	}
	if o.decode < 1 || o.requests < 1 || o.repeats < 1 {
		return errors.New("-decode, -live-requests and -live-repeats: expected above 0")
	}
	return nil
}

// decodes is how many workers only decode.
func (o *liveOptions) decodes() int {
	if o.whole {
		return 0
	}
	return o.decode
}

// tokensPerSecond is how fast a live worker prefills.
func (o *liveOptions) tokensPerSecond() float64 {
	return o.fleet.Speed * float64(o.scale.Page) / traceBlock * o.scale.Speedup
}

// liveMode is one way to pick, as the plugin is configured for it.
type liveMode struct {
	name    string
	what    string
	like    string // the simulated mode that it is compared with
	prefill string // routing.prefill of the configuration
	tokens  string // tokens.mode
	events  bool   // prefill workers publish KV events
	files   bool   // the plugin has the model's files, and /tokenize answers 503

	rival *rivalMode // in the place of Envoy and the plugin

	replicas int // of the plugin, each of which knows what it has picked itself
}

// source returns where the tokens of prompts are to come from; "": they are not to be exact.
func (m *liveMode) source() decision.TokenSource {
	switch {
	case m.files:
		return decision.LocalTokenizer
	case m.tokens == "auto":
		return decision.EngineTokenize
	default:
		return ""
	}
}

// liveModes are all of them; published: with those that need a published tokenizer; whole: with the rivals.
func liveModes(published, whole bool) []liveMode {
	all := []liveMode{
		{name: "kv", what: "KV events, tokens asked of an engine", like: "kv", prefill: "mode: kv", tokens: "auto", events: true},
		{name: "kv-blocks", what: "kv with the cost in blocks", like: "kv-blocks", prefill: "mode: kv, cost: blocks", tokens: "auto", events: true},
		{name: "estimate", what: "kv by the byte estimate", like: "estimate", prefill: "mode: kv", tokens: "estimate", events: true},
		{name: "no-events", what: "kv with exact tokens over workers that publish no events", like: "estimate", prefill: "mode: kv", tokens: "auto"},
		{name: "least-loaded", what: "fewest requests in flight", like: "least-loaded", prefill: "mode: least-loaded", tokens: "off"},
		{name: "power-of-two", what: "the less loaded of two drawn", like: "power-of-two", prefill: "mode: power-of-two", tokens: "off"},
		{name: "round-robin", what: "in turn", like: "round-robin", prefill: "mode: round-robin", tokens: "off"},
		{name: "random", what: "drawn", like: "random", prefill: "mode: random", tokens: "off"},
	}
	if published {
		all = slices.Insert(all, 1, liveMode{name: "kv-files", what: "KV events, tokens made from the model's files; the workers' /tokenize answers 503", like: "kv", prefill: "mode: kv", tokens: "auto", events: true, files: true})
	}
	if whole {
		for _, r := range rivals() {
			all = append(all, liveMode{name: r.name, what: "another's: " + r.what, like: r.like, events: r.events, rival: &r})
		}
	}
	for i := range all {
		all[i].replicas = 1
	}
	return all
}

// replicatedLive returns each mode with each count of replicas, one after the other.
func replicatedLive(all []liveMode, counts []int) []liveMode {
	var out []liveMode
	for _, m := range all {
		for _, n := range counts {
			if m.rival != nil && n > 1 {
				continue
			}
			r := m
			r.name, r.what, r.like, r.replicas = nameOf(m.name, n), whatOf(m.what, n), nameOf(m.like, n), n
			out = append(out, r)
		}
	}
	return out
}

// chosenLive returns the modes of a comma-separated list; "" means all.
func chosenLive(names string, published, whole bool) ([]liveMode, error) {
	all := liveModes(published, whole)
	if names == "" {
		return slices.DeleteFunc(all, func(m liveMode) bool { return m.rival != nil }), nil
	}
	return named("live mode", names, all, func(m liveMode) string { return m.name })
}

// liveRun is one mode once.
type liveRun struct {
	replay.Figures              // in the trace's time
	workers        replay.Times // to the first token at the workers, in the trace's time
	idle, late     float64      // ms that passed: the path alone, and p99 of what requests were sent late
	cpu            float64      // share of all processors that the parts used together; NaN: not known
	exact          float64      // share of prompts whose tokens came from where the mode has them from
	estimated      int          // picks by an estimate where exact tokens were expected
	errors         int
	faults         []string
}

// runLive plays a trace in one mode over fresh processes.
func runLive(ctx context.Context, p parts, o *liveOptions, m *liveMode, trace []replay.Request, stderr io.Writer) (liveRun, error) {
	l, err := openLab(ctx, p, o, m)
	if err != nil {
		return liveRun{}, err
	}
	defer l.close()
	ctx, cancel := context.WithTimeoutCause(ctx, time.Duration(float64(trace[len(trace)-1].At)/o.scale.Speedup)+2*time.Minute,
		errors.New("not done two minutes after the last request"))
	defer cancel()
	if m.files {
		if err := l.try(ctx, o.scale); err != nil {
			return liveRun{}, fmt.Errorf("%w\n%s", err, l.logs())
		}
	}
	before, _ := l.cpu() // what is wrong with it shows below
	start := time.Now()
	got, err := play(ctx, l.url, l.engines(), trace, o.scale)
	if err != nil {
		return liveRun{}, fmt.Errorf("%w\n%s", err, l.logs())
	}
	after, err := l.cpu()
	r := liveRun{
		Figures: got.figures(o.scale), idle: stats.Micros(got.idle) / 1e3, late: stats.Micros(got.late()) / 1e3,
		cpu:    (after - before).Seconds() / time.Since(start).Seconds() / float64(runtime.NumCPU()),
		errors: got.failed(), faults: got.faults,
	}
	if err != nil {
		r.cpu = math.NaN()
	}
	at, err := l.atWorkers(ctx)
	if err != nil {
		return liveRun{}, err
	}
	r.workers = times(replay.TimesOf(at), o.scale.Speedup)
	if m.rival != nil {
		return r, nil
	}
	if o.record != "" {
		time.Sleep(1500 * time.Millisecond) // it writes each second
	}
	list, parts, err := l.decisions(ctx, len(trace))
	if err != nil {
		return liveRun{}, err
	}
	r.judge(list, m, o.whole)
	if slices.Max(parts)-slices.Min(parts) > 1 {
		r.faults = append(r.faults, fmt.Sprintf("the replicas picked for %v requests: expected equal parts", parts))
	}
	if len(r.faults) > 0 {
		fmt.Fprintf(stderr, "%s", l.logs())
	}
	return r, nil
}

// judge adds what the plugin says of its decisions.
func (r *liveRun) judge(list []decision.Record, m *liveMode, whole bool) {
	var believed, tokens int64
	again, alone := 0, 0
	for i := range list {
		d := &list[i]
		if d.Attempt > 1 {
			again++
		}
		if from := m.source(); from != "" && d.TokenSource != from {
			r.estimated++
		}
		computes := &d.Prefill
		if whole {
			computes = &d.Decode
		}
		if !computes.Made() || whole && d.Prefill.Made() {
			alone++
			continue
		}
		believed, tokens = believed+computes.OverlapBlocks*int64(d.BlockSize), tokens+d.ISLTokens
	}
	if again > 0 {
		r.faults = append(r.faults, fmt.Sprintf("%d attempts were fresh: expected none", again))
	}
	if alone > 0 {
		r.faults = append(r.faults, fmt.Sprintf("%d attempts were served by other roles than they should", alone))
	}
	if m.source() != "" {
		r.exact = 1 - float64(r.estimated)/float64(max(len(list), 1))
	}
	r.Believed = float64(believed) / float64(max(tokens, 1))
}

// measureLive plays every mode as often as is asked for, in turns.
func measureLive(ctx context.Context, p parts, o *liveOptions, trace []replay.Request, stderr io.Writer) ([]liveRow, error) {
	runs := make([][]liveRun, len(o.modes))
	for n := range o.repeats {
		for i := range o.modes {
			m := &o.modes[i]
			fmt.Fprintf(stderr, "live, %s: %d requests in %s\n", m.name, len(trace),
				time.Duration(float64(trace[len(trace)-1].At)/o.scale.Speedup).Round(time.Second))
			r, err := runLive(ctx, p, o, m, trace, stderr)
			if err != nil {
				return nil, fmt.Errorf("live, mode %s, repeat %d: %w", m.name, n+1, err)
			}
			runs[i] = append(runs[i], r)
		}
	}
	rows := make([]liveRow, len(runs))
	for i, list := range runs {
		rows[i] = summariseLive(&o.modes[i], list)
	}
	return rows, nil
}

// liveRow is one live mode over its repeats: medians, and the worst of what
// should not be.
type liveRow struct {
	row
	Like      string
	Workers   replay.Times
	Idle      float64 // ms
	Late      float64 // ms
	CPU       float64
	Exact     float64 // share of prompts
	Estimated int
	Errors    int
	Faults    []string
}

func summariseLive(m *liveMode, runs []liveRun) liveRow {
	out := liveRow{Like: m.like}
	var f []replay.Figures
	var at []replay.Times
	var idle, cpu, exact []float64
	for _, r := range runs {
		at = append(at, r.workers)
		f, idle, cpu, exact = append(f, r.Figures), append(idle, r.idle), append(cpu, r.cpu), append(exact, r.exact)
		out.Late = max(out.Late, r.late)
		out.Estimated, out.Errors = out.Estimated+r.estimated, out.Errors+r.errors
		out.Faults = append(out.Faults, r.faults...)
	}
	out.Workers = replay.MedianTimes(at)
	out.row, out.Idle, out.CPU, out.Exact = summarise(m.name, f), stats.Median(idle), stats.Median(cpu), stats.Median(exact)
	return out
}

// times returns t with each time multiplied.
func times(t replay.Times, by float64) replay.Times {
	of := func(d time.Duration) time.Duration { return time.Duration(by * float64(d)) }
	return replay.Times{Mean: of(t.Mean), P50: of(t.P50), P90: of(t.P90), P95: of(t.P95), P99: of(t.P99)}
}
