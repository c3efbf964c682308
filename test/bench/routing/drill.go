package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/seed-60ae5743/baton/internal/stats"
	"github.com/seed-60ae5743/baton/test/enginesim"
	"github.com/seed-60ae5743/baton/test/stack"
)

// drillRow is one thing that goes wrong while requests come.
type drillRow struct {
	name, what string
	lasts      time.Duration // what goes wrong; 0: until the end
	watched    time.Duration // from when it begins
	factor     float64       // of the rate, as long as it lasts
	// strike lets it begin at a worker that has requests, and returns how it ends; nil: nothing happens to a worker.
	strike func(ctx context.Context, victim *stack.Worker) (mend func() error, err error)
}

// The rows' names.
const (
	rowDeath      = "death"
	rowSlowHealth = "slow-health"
	rowStandstill = "standstill"
	rowBurst      = "burst"
)

// slowHealth is how late the answer of a worker's page of health is.
const slowHealth = 3 * time.Second

// drillRows are all of them.
func drillRows() []drillRow {
	none := func() error { return nil }
	return []drillRow{
		{name: rowDeath, what: "one worker of four is killed (SIGKILL) with requests on it and does not return: one that prefills, or, where requests are served whole, one of those", watched: 10 * time.Second, factor: 1,
			strike: func(_ context.Context, w *stack.Worker) (func() error, error) { return none, w.Kill() }},
		{name: rowSlowHealth, what: fmt.Sprintf("one worker of four answers /health %v later than it did; its requests are served well", slowHealth), watched: 6 * time.Second, factor: 1,
			strike: func(ctx context.Context, w *stack.Worker) (func() error, error) {
				// No request has this text: the page of health alone is slow.
				f := enginesim.Fault{Mode: enginesim.FaultSlow, DelayMS: int(slowHealth.Milliseconds()), Health: true, Only: "(no request)"}
				return none, w.Sim.SetFault(ctx, f)
			}},
		{name: rowStandstill, what: "one worker of four is stopped (SIGSTOP) for 10 s with requests on it, and goes on", lasts: 10 * time.Second, watched: 14 * time.Second, factor: 1,
			strike: func(_ context.Context, w *stack.Worker) (func() error, error) {
				return func() error { return w.Signal(syscall.SIGCONT) }, w.Signal(syscall.SIGSTOP)
			}},
		{name: rowBurst, what: "five times the rate for 3 s", lasts: 3 * time.Second, watched: 8 * time.Second, factor: 5},
	}
}

// Before something goes wrong: requests to warm up, then those that the others are compared with.
const (
	drillWarm  = 2 * time.Second
	drillQuiet = 4 * time.Second
	drillRate  = 30 // requests a second
)

// drillOptions say what the drill plays.
type drillOptions struct {
	modes []drillMode
	rows  []drillRow
}

// chosenDrill returns the modes and rows of comma-separated lists; "" means all.
func chosenDrill(modes, rows string) (*drillOptions, error) {
	o := &drillOptions{}
	var err error
	o.modes, err = named("drill mode", modes, drillModes(), func(m drillMode) string { return m.name })
	if err != nil {
		return nil, err
	}
	o.rows, err = named("drill row", rows, drillRows(), func(r drillRow) string { return r.name })
	return o, err
}

// runDrill plays every row with every mode, each with fresh processes.
func runDrill(ctx context.Context, p parts, o *drillOptions, stderr io.Writer) (*drillReport, error) {
	r := &drillReport{Machine: machine(), Load: loadAverage(), Rate: drillRate}
	var failed error
	for i := range o.rows {
		for k := range o.modes {
			row, m := &o.rows[i], &o.modes[k]
			c := drillCell{Row: row.name, Mode: m.name, NotRun: m.cannot[row.name]}
			if c.NotRun == "" {
				fmt.Fprintf(stderr, "%s, %s\n", row.name, m.name)
				err := c.play(ctx, p, row, m)
				if ctx.Err() != nil {
					return nil, context.Cause(ctx)
				}
				if err != nil {
					fmt.Fprintf(stderr, "%s, %s: not run: %v\n", row.name, m.name, err)
					c.NotRun, _, _ = strings.Cut(err.Error(), "\n")
				}
				if err != nil && m.ours {
					failed = errors.Join(failed, fmt.Errorf("drill, row %s, mode %s: %w", row.name, m.name, err))
				}
			}
			r.Cells = append(r.Cells, c)
		}
	}
	return r, failed
}

// play plays one row with one mode.
func (c *drillCell) play(ctx context.Context, p parts, row *drillRow, m *drillMode) error {
	l, err := openDrill(ctx, p, m)
	if err != nil {
		return err
	}
	defer l.close()
	begins := drillWarm + drillQuiet
	end := begins + row.watched
	shots := drillShots(drillRate, end, begins, begins+row.lasts, row.factor)
	cl := newClient(l.url + drillPath)
	defer cl.close()
	start := time.Now()
	var wg sync.WaitGroup
	var struck error
	if row.strike != nil {
		wg.Go(func() { struck = l.strike(ctx, row, start.Add(begins), c) })
	}
	answers := cl.askAll(ctx, shots, start)
	wg.Wait()
	if struck != nil {
		return struck
	}
	c.judge(answers, begins, end)
	return nil
}

// strike waits for the time and for a worker that has a request, and lets go wrong what the row says.
func (l *lab) strike(ctx context.Context, row *drillRow, at time.Time, c *drillCell) error {
	if !sleep(ctx, time.Until(at)) {
		return context.Cause(ctx)
	}
	victim, running := l.busiest(ctx)
	c.OnIt = running
	if victim == nil {
		return errors.New("no worker had a request within 2 s")
	}
	mend, err := row.strike(ctx, victim)
	if err != nil {
		return err
	}
	sleep(ctx, row.lasts)
	return mend()
}

// busiest returns the worker that runs most requests, once there is one, and how many these are.
func (l *lab) busiest(ctx context.Context) (*stack.Worker, int) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	for ctx.Err() == nil {
		running := make([]int, len(l.prefill))
		var wg sync.WaitGroup
		for i, w := range l.prefill {
			wg.Go(func() {
				if s, err := w.Sim.State(ctx, false); err == nil {
					running[i] = s.Running
				}
			})
		}
		wg.Wait()
		if most := slices.Max(running); most > 0 {
			return l.prefill[slices.Index(running, most)], most
		}
		sleep(ctx, time.Millisecond)
	}
	return nil, 0
}

// sleep waits, and tells whether it has waited to the end.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// judge takes what clients saw before something went wrong and from then on.
func (c *drillCell) judge(answers []answer, begins, end time.Duration) {
	quiet, fault := windows(answers, begins)
	fault = within(fault, 0, end)
	c.Quiet, c.Fault = windowOf(quiet), windowOf(fault)
	if c.Quiet.P50 > 0 {
		c.P50, c.P95, c.Worst = c.Fault.P50/c.Quiet.P50, c.Fault.P95/c.Quiet.P95, c.Fault.Worst/c.Quiet.Worst
	}
	c.Requests, c.Failed, c.Begun = c.Fault.Sent, c.Fault.Failed, c.Fault.Failures[errMidStream.Error()]
	c.Back = asBefore(fault, begins, end, c.Quiet.P95)
}

// windows returns what had ended when something went wrong, after the warm-up, and what ended from then on: requests
// that were with a worker then are among these.
func windows(answers []answer, begins time.Duration) (quiet, fault []answer) {
	for _, a := range answers {
		switch {
		case a.At+a.Took >= begins:
			fault = append(fault, a)
		case a.At >= drillWarm:
			quiet = append(quiet, a)
		}
	}
	return quiet, fault
}

// within returns the answers to what was due from one time to another.
func within(answers []answer, from, to time.Duration) (out []answer) {
	for _, a := range answers {
		if a.At >= from && a.At < to {
			out = append(out, a)
		}
	}
	return out
}

// windowOf sums up answers. Those that failed have no time.
func windowOf(answers []answer) (w drillWindow) {
	var took, late []time.Duration
	for _, a := range answers {
		late = append(late, a.Late)
		if a.Failure == "" {
			took = append(took, a.Took)
			continue
		}
		if w.Failures == nil {
			w.Failures = map[string]int{}
		}
		w.Failures[a.Failure]++
		w.Failed++
	}
	w.Sent = len(answers)
	slices.Sort(took)
	slices.Sort(late)
	if len(late) > 0 {
		w.Late = stats.Micros(stats.Quantile(late, 0.99)) / 1e3
	}
	if len(took) > 0 {
		w.P50, w.P95 = stats.Micros(stats.Quantile(took, 0.5))/1e3, stats.Micros(stats.Quantile(took, 0.95))/1e3
		w.Worst = stats.Micros(took[len(took)-1]) / 1e3
	}
	return w
}

// asBefore returns the seconds from begins until requests are answered as before: from then on, of what is due
// in a second none fails and nine of ten are whole within 1.5 times p95 (ms). -1: not until the end.
func asBefore(answers []answer, begins, end time.Duration, p95 float64) float64 {
	last := begins
	for from := begins; from < end; from += time.Second {
		since := from
		if from == begins {
			since = 0 // those that were under way
		}
		w := within(answers, since, from+time.Second)
		var took []time.Duration
		bad := false
		for _, a := range w {
			took = append(took, a.Took)
			bad = bad || a.Failure != ""
		}
		slices.Sort(took)
		if bad || len(took) > 0 && stats.Micros(stats.Quantile(took, 0.9))/1e3 > 1.5*p95 {
			last = from + time.Second
		}
	}
	if last >= end {
		return -1
	}
	return (last - begins).Seconds()
}

// sortedFailures are the ways to fail with how often each came, the most frequent first.
func (w *drillWindow) sortedFailures() string {
	var names []string
	for name := range w.Failures {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(w.Failures[b], w.Failures[a]), cmp.Compare(a, b))
	})
	for i, name := range names {
		names[i] = fmt.Sprintf("%d × %s", w.Failures[name], name)
	}
	return strings.Join(names, ", ")
}
