package main

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/test/stack"
)

// Bounds of the end.
const (
	recoverWithin  = 20 * time.Second // all that was broken serves again
	settleWithin   = 20 * time.Second // nothing is held: leases and waits of the engines are 10 s
	moreThanAtRest = 12               // goroutines: connections that a fleet at rest need not have
)

// serveAgain asks each model through each lane until it is served, and then
// some more: not one of those may fail.
func (w *world) serveAgain(ctx context.Context, t *traffic, when string) {
	good := goodAsks(t.seed)
	for l, m := range w.ways() {
		if !w.servedInTime(ctx, t, when, l, func() *ask { return good(l, m) }) {
			return
		}
	}
	// What is still aside is let in by its first good request.
	until := time.Now().Add(recoverWithin)
	for w.aside(ctx) != "" && time.Now().Before(until) && ctx.Err() == nil {
		for l, m := range w.ways() {
			t.one(ctx, good(l, m))
		}
	}
	if s := w.aside(ctx); s != "" && ctx.Err() == nil {
		w.events.violate(fmt.Sprintf("%s: %s after %s without faults", when, s, recoverWithin), w.allOf(ctx, w.lanes[0]))
	}
	for range 5 {
		for l, m := range w.ways() {
			w.mustServe(ctx, t, when, l, good(l, m))
		}
	}
}

// ways are the models, through each lane.
func (w *world) ways() iter.Seq2[*lane, model] {
	return func(yield func(*lane, model) bool) {
		for _, l := range w.lanes {
			for _, m := range w.models {
				if !yield(l, m) {
					return
				}
			}
		}
	}
}

// goodAsks draws requests of which none may fail without a fault.
func goodAsks(seed uint64) func(l *lane, m model) *ask {
	rng := rand.New(rand.NewPCG(seed, 3))
	n := 1_000_000
	return func(l *lane, m model) *ask {
		for {
			n++
			if a := drawAsk(rng, n, []model{m}, 1); a.Leave == 0 && a.Refusal == "" {
				a.Lane, a.Timeout = l.index, 0
				return a
			}
		}
	}
}

// servedInTime asks until it is served, and returns false if that takes too long, or the run
// ends.
func (w *world) servedInTime(ctx context.Context, t *traffic, when string, l *lane, good func() *ask) bool {
	until := time.Now().Add(recoverWithin)
	for {
		a := good()
		class := t.one(ctx, a)
		switch {
		case ctx.Err() != nil:
			return false
		case class == "whole":
			return true
		case time.Now().After(until):
			w.events.violate(fmt.Sprintf("%s: lane %d %s is not served within %s: %s", when, l.index, a.Model, recoverWithin, class), w.allOf(ctx, l))
			return false
		}
	}
}

// mustServe asks once. An answer that is not whole is a violation, unless the machine did not
// run us meanwhile.
func (w *world) mustServe(ctx context.Context, t *traffic, when string, l *lane, a *ask) {
	from := w.events.since()
	class := t.one(ctx, a)
	unruly := w.events.history().stalled(&got{From: from, To: w.events.since()}) > 0
	if class != "whole" && !unruly && ctx.Err() == nil {
		w.events.violate(fmt.Sprintf("%s: %s: nothing is wrong any more, and it got: %s", when, a, class), w.allOf(ctx, l))
	}
}

// aside says which lane's workers are not all known and healthy, or "".
func (w *world) aside(ctx context.Context) string {
	for _, l := range w.lanes {
		plugin, _ := l.now()
		m, err := plugin.Metrics(ctx)
		if err != nil {
			return err.Error()
		}
		// One that recovers need not be picked: the others may have more in their caches.
		healthy, _ := m.Sum("baton_workers", `state="healthy"`)
		recovering, _ := m.Sum("baton_workers", `state="recovering"`)
		if int(healthy+recovering) != len(w.members) {
			return fmt.Sprintf("lane %d has %g healthy and %g recovering workers of %d", l.index, healthy, recovering, len(w.members))
		}
	}
	return ""
}

// settle waits until nothing is booked, held or open anywhere. Everything is
// waited for at once, so that one thing that stays does not hide another.
func (w *world) settle(ctx context.Context) {
	soon, cancel := context.WithTimeout(ctx, settleWithin)
	defer cancel()
	var wg sync.WaitGroup
	for _, l := range w.lanes {
		plugin, proxy := l.now()
		wg.Go(func() { w.settlePlugin(soon, l, plugin) })
		for _, listener := range []string{"client", "main_leg", "prefill_leg", "sync_leg"} {
			wg.Go(func() { w.settleEnvoy(soon, l, proxy, "http."+listener+".downstream_rq_active") })
		}
	}
	for _, m := range w.members {
		engine, _ := m.now()
		wg.Go(func() {
			if err := stack.Settled(soon, engine); err != nil && ctx.Err() == nil {
				w.events.violate(m.on.String()+" is at rest: "+err.Error(), w.around(m, engine))
			}
		})
	}
	wg.Wait()
}

func (w *world) settlePlugin(ctx context.Context, l *lane, plugin *stack.Plugin) {
	booked := "unknown"
	if stack.Await(ctx, "bookings", func() bool {
		m, err := plugin.Metrics(ctx)
		if err == nil {
			booked = m.Booked()
		}
		return booked == ""
	}) != nil {
		w.events.violate(fmt.Sprintf("lane %d is at rest and has booked: %s", l.index, booked), w.allOf(context.Background(), l))
	}
	w.inspectPlugin(l, plugin)
}

func (w *world) settleEnvoy(ctx context.Context, l *lane, proxy *stack.Envoy, gauge string) {
	n := int64(-1)
	if stack.Await(ctx, gauge, func() bool {
		now, err := proxy.Stat(ctx, gauge)
		if err == nil {
			n = now
		}
		return n == 0
	}) != nil {
		w.events.violate(fmt.Sprintf("lane %d is at rest and Envoy has %s: %d", l.index, gauge, n), lastLines(proxy.Log(), 30))
	}
}

// inspectPlugin reads what a plugin has said.
func (w *world) inspectPlugin(l *lane, p *stack.Plugin) {
	log := p.Log()
	for _, sign := range []string{"panic", "DATA RACE", "invariant"} {
		if at := strings.Index(log, sign); at >= 0 {
			w.events.violate(fmt.Sprintf("lane %d: the plugin's log has %q", l.index, sign), fmt.Sprintf("%.6000s", log[at:]))
		}
	}
}

// compareGoroutines holds that the plugins have no more goroutines at work than
// when the fleet was new, some connections aside.
func (w *world) compareGoroutines(ctx context.Context, before []int) {
	for i, l := range w.lanes {
		plugin, _ := l.now()
		now, page := 0, ""
		ctx, cancel := context.WithTimeout(ctx, settleWithin)
		err := stack.Await(ctx, "goroutines", func() bool {
			if p, err := goroutines(ctx, plugin); err == nil {
				now, page = working(p), p
			}
			return now > 0 && now <= before[i]+moreThanAtRest
		})
		w.events.say("lane %d at rest: %d goroutines work, %d when it was new", l.index, now, before[i])
		if err != nil {
			w.events.violate(fmt.Sprintf("lane %d has %d goroutines that work at rest, %d when it was new", l.index, now, before[i]),
				strings.Join(strings.SplitN(page, "\n", 120), "\n"))
		}
		cancel()
	}
}

// goroutines reads a plugin's profile of them.
func goroutines(ctx context.Context, p *stack.Plugin) (string, error) {
	return p.Page(ctx, "/debug/pprof/goroutine?debug=1")
}

// working counts the goroutines of a profile, but for those of HTTP connections that
// are kept for the next request: how many there are says how much was asked at once.
func working(profile string) (n int) {
	for group := range strings.SplitSeq(profile, "\n\n") {
		lines := strings.Split(group, "\n")
		if strings.HasPrefix(lines[0], "goroutine profile:") {
			lines = lines[1:]
		}
		count, _, ok := strings.Cut(lines[0], " @ ")
		if here, err := strconv.Atoi(count); ok && err == nil && !strings.Contains(group, "net/http.(*persistConn)") {
			n += here
		}
	}
	return n
}

// allOf tells what a lane's plugin says of itself.
func (w *world) allOf(ctx context.Context, l *lane) string {
	plugin, proxy := l.now()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	state, err := plugin.Page(ctx, "/debug/state")
	if err != nil {
		state = err.Error()
	}
	return fmt.Sprintf("state: %.6000s\nplugin:\n%s\nEnvoy:\n%s", state, lastLines(plugin.Log(), 40), lastLines(proxy.Log(), 10))
}
