// Command soak runs a whole deployment for minutes while all kinds of things go
// wrong in it, and holds what must be true all the while and at the end.
//
//	go -C test run ./soak                 three minutes, a seed of its own
//	go -C test run ./soak -seed 7 -for 10m -rate 30
//
// # What runs
//
// Two lanes, each a real Envoy with its plugin, one in buffered and one in full
// duplex mode, over the same simulated workers of SGLang and vLLM, found in a
// real etcd with `extproc register` beside each, and of TensorRT-LLM, found in a
// file. Each process is a real one, on loopback, ended by its id.
//
// # What goes wrong
//
// Workers are killed and come back under new ids, here or elsewhere; they are
// stopped, drained, hang, slow down, refuse, answer errors, break off, give no
// hand-off or a spoiled one. Plugins and Envoys end by SIGTERM or SIGKILL. etcd
// is stopped or killed. Clients leave at any moment, bring deadlines of their
// own, ask for several choices, and send what is to be refused. Faults and
// requests are drawn from the seed, the same again for the same flags; when
// exactly each meets the other is not.
//
// # What must hold
//
//   - Nothing waits past its deadline and the slack.
//   - A request ends in its whole, right answer; or in a row of the failure
//     table, with its status, that something which was wrong around then
//     explains; or, where the decode worker or Envoy itself (in full duplex the
//     plugin) broke under it, in an answer that is cut. A connection is lost
//     with its Envoy alone.
//   - A deadline is never told before it has passed.
//   - No healthy worker is set aside: something was wrong with it itself then, or up to
//     8 s before. What clients do, and what befalls others, is no reason.
//   - No decode worker gets a request without its parameters, and no engine's
//     rule is broken.
//   - After the faults no KV is left to its lease, whenever clients leave.
//   - After the faults each model is served through each lane, every worker is
//     healthy again, and then not one request fails.
//   - At rest nothing is booked, held, or open: in plugins, Envoys, engines. The
//     plugins have no more goroutines than when they were new.
//
// The explanations are generous in one way: a fault of a model's worker explains
// an error of any request for that model for some seconds after it. What they
// cannot excuse is a wrong answer, a wait, an untyped error, a cut without a
// cause at that moment, or anything that is left at the end.
//
// It prints what went wrong and what clients saw, and PASS or FAIL with the
// first violation's story; exit code 1 is FAIL, 2 a stage that could not be
// built, 130 an interrupt.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/stack"
)

// The exit codes.
const (
	exitPass        = 0
	exitFail        = 1
	exitStage       = 2
	exitInterrupted = 130
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Getenv("ENVOY"), os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// options are the flags.
type options struct {
	seed    uint64
	length  time.Duration
	rate    float64
	every   time.Duration
	slack   time.Duration
	engines []worker.Engine
	verbose bool
	race    bool
	calm    bool
}

func parse(args []string, stderr io.Writer) (*options, error) {
	o := &options{}
	fs := flag.NewFlagSet("soak", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Uint64Var(&o.seed, "seed", 0, "of faults and requests; 0: drawn, and printed")
	fs.DurationVar(&o.length, "for", 3*time.Minute, "how long faults and requests go on; the end takes up to two minutes more")
	fs.Float64Var(&o.rate, "rate", 15, "requests a second")
	fs.DurationVar(&o.every, "every", 700*time.Millisecond, "a new fault about so often")
	fs.DurationVar(&o.slack, "slack", 2*time.Second, "what a request may take beyond its deadline; raise it on a busy machine")
	engines := fs.String("engines", "sglang,vllm,trtllm", "whose workers run")
	fs.BoolVar(&o.verbose, "v", false, "print each fault as it begins")
	fs.BoolVar(&o.race, "race", false, "build the processes with the race detector")
	fs.BoolVar(&o.calm, "calm", false, "no faults: what clients then see must be whole answers")
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	if fs.NArg() > 0 || o.length <= 0 || o.rate <= 0 || o.every <= 0 || o.slack < 0 {
		return nil, errors.New("expected flags only; for, rate and every above 0, slack not below")
	}
	for name := range strings.SplitSeq(*engines, ",") {
		e, err := worker.ParseEngine(name)
		if err != nil {
			return nil, fmt.Errorf("engines: %w", err)
		}
		if !slices.Contains(o.engines, e) {
			o.engines = append(o.engines, e)
		}
	}
	for o.seed == 0 {
		o.seed = uint64(rand.Uint32())
	}
	return o, nil
}

// run is main without the process around it.
func run(ctx context.Context, args []string, env string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return exitPass
	}
	var pass bool
	if err == nil {
		pass, err = perform(ctx, o, env, stdout)
	}
	switch {
	case ctx.Err() != nil:
		_, _ = fmt.Fprintln(stderr, "soak: interrupted; everything is stopped")
		return exitInterrupted
	case err != nil:
		_, _ = fmt.Fprintln(stderr, "soak:", err)
		return exitStage
	case !pass:
		return exitFail
	}
	return exitPass
}

// fleets are the models of a run. register knows no TensorRT-LLM.
func fleets(engines []worker.Engine) []model {
	out := make([]model, len(engines))
	for i, e := range engines {
		out[i] = model{Name: string(e), Engine: e, Prefills: 2, Decodes: 2, Etcd: e != worker.TensorRTLLM}
	}
	return out
}

// perform builds and starts everything, soaks, and stops everything.
func perform(ctx context.Context, o *options, env string, out io.Writer) (pass bool, err error) {
	w := &world{models: fleets(o.engines)}
	w.envoyPath, err = stack.FindEnvoy(env)
	if err != nil {
		return false, err
	}
	w.dir, err = os.MkdirTemp("", "baton-soak-")
	if err != nil {
		return false, fmt.Errorf("a folder: %w", err)
	}
	defer os.RemoveAll(w.dir)
	w.binDir = w.dir
	fmt.Fprintf(out, "soak: seed %d, %s, %g requests a second, a fault each %s, slack %s\n", o.seed, o.length, o.rate, o.every, o.slack)
	if err := stack.Build(w.binDir, "invariants", o.race, "./cmd/extproc", "./test/cmd/enginesim", "./test/cmd/devetcd"); err != nil {
		return false, err
	}
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	w.events = newRecord(out, o.verbose)
	defer w.close()
	if err := w.open(life); err != nil {
		return false, err
	}
	w.events.started = time.Now()
	if err := w.soak(ctx, life, o); err != nil {
		return false, err
	}
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	w.events.summary()
	fmt.Fprintf(out, "\nAt the end: %s\n", w.sizes(life))
	return w.events.verdict(o.seed), nil
}

// goroutines counts those of each plugin that do something.
func (w *world) goroutines(ctx context.Context) (n []int, err error) {
	for _, l := range w.lanes {
		plugin, _ := l.now()
		page, err := goroutines(ctx, plugin)
		if err != nil {
			return nil, err
		}
		n = append(n, working(page))
	}
	return n, nil
}

// soak is the run itself: a calm beginning, the faults, a calm end.
func (w *world) soak(ctx, life context.Context, o *options) error {
	t := &traffic{w: w, seed: o.seed, rate: o.rate, slack: o.slack}
	watching, seen := context.WithCancel(ctx)
	defer seen()
	var beside, faults sync.WaitGroup
	beside.Go(func() { w.events.stalls(watching) })
	w.serveAgain(ctx, t, "at the start")
	w.settle(ctx)
	if w.events.failed() || ctx.Err() != nil { // the stage itself is wrong
		return nil
	}
	before, err := w.goroutines(ctx)
	if err != nil {
		return err
	}
	w.events.say("everything is up: %s", w.sizes(ctx))
	var plan []fault
	if !o.calm {
		plan = planFaults(o.seed, o.length, o.every, w.models, len(w.lanes), w.etcd != nil)
	}
	within, done := context.WithTimeout(ctx, o.length)
	defer done()
	beside.Go(func() { w.watch(watching) })
	beside.Go(func() { w.progress(watching, t) })
	stage := make(chan error, len(plan))
	begun := time.Now()
	faults.Go(func() {
		for _, f := range plan {
			pause(within, time.Until(begun.Add(f.At)))
			if within.Err() != nil {
				return
			}
			faults.Go(func() {
				if err := w.strike(within, life, f); err != nil {
					stage <- fmt.Errorf("%s: %w", f, err)
					done()
				}
			})
		}
	})
	t.run(ctx, within)
	faults.Wait()
	if ctx.Err() == nil {
		w.events.say("the faults are over: %s", w.sizes(ctx))
		w.serveAgain(ctx, t, "at the end")
		w.settle(ctx)
		w.holdNothing(ctx, t)
		w.compareGoroutines(ctx, before)
	}
	seen()
	beside.Wait()
	close(stage)
	var errs []error
	for err := range stage {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
