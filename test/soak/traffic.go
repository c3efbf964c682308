package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// traffic sends requests at random moments, rate of them a second.
type traffic struct {
	w     *world
	seed  uint64
	rate  float64
	slack time.Duration

	inFlight atomic.Int64
	wg       sync.WaitGroup
}

// most bounds what is in flight; a machine that is slower than the rate sends
// less.
const most = 400

// run sends until within ends, and returns when each request has been judged.
// The end of ctx ends requests, too.
func (t *traffic) run(ctx, within context.Context) {
	rng := rand.New(rand.NewPCG(t.seed, 2))
	for n := 1; ; n++ {
		a := drawAsk(rng, n, t.w.models, len(t.w.lanes))
		pause(within, time.Duration(rng.ExpFloat64()/t.rate*float64(time.Second)))
		if within.Err() != nil {
			break
		}
		if t.inFlight.Load() >= most {
			continue
		}
		t.inFlight.Add(1)
		t.wg.Go(func() {
			defer t.inFlight.Add(-1)
			t.one(ctx, a)
		})
	}
	t.wg.Wait()
}

// one sends a request, judges what comes, and returns its class.
func (t *traffic) one(ctx context.Context, a *ask) string {
	g := t.w.send(ctx, a, t.slack)
	if ctx.Err() != nil {
		return "interrupted"
	}
	class, wrong := judge(a, g, t.w.events.history(), t.w.lanes[a.Lane].fullDuplex, t.slack)
	t.w.events.mu.Lock()
	t.w.events.asked++
	t.w.events.mu.Unlock()
	t.w.events.count(class)
	if wrong != "" {
		t.w.events.violate(a.String()+": "+wrong, t.w.story(a, g))
	}
	return class
}

// errLeave is why a client's context ended.
var errLeave = errors.New("the client leaves")

// send makes one request. Beyond the deadline and twice the slack it is given
// up; that is then too late by far.
func (w *world) send(ctx context.Context, a *ask, slack time.Duration) *got {
	g := &got{From: w.events.since()}
	defer func() { g.To = w.events.since() }()
	ctx, cancel := context.WithTimeout(ctx, a.deadline()+2*slack)
	defer cancel()
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	if a.Leave > 0 {
		defer time.AfterFunc(a.Leave, func() { leave(errLeave) }).Stop()
	}
	l := w.lanes[a.Lane]
	url := fmt.Sprintf("http://127.0.0.1:%d%s", l.ports[0], a.Path)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(a.Body))
	if err != nil {
		g.Err = err.Error()
		return g
	}
	req.GetBody = nil // nothing is sent twice
	req.Header.Set("Content-Type", "application/json")
	if a.Timeout > 0 {
		req.Header.Set("X-Request-Timeout-Ms", strconv.FormatInt(a.Timeout.Milliseconds(), 10))
	}
	resp, err := l.client.Do(req)
	if err == nil {
		defer resp.Body.Close()
		g.Status, g.RequestID = resp.StatusCode, resp.Header.Get("X-Request-Id")
		var text bytes.Buffer
		_, err = io.Copy(&text, resp.Body)
		g.Body = text.String()
	}
	if err != nil {
		g.Err = err.Error()
		g.Left = errors.Is(context.Cause(ctx), errLeave)
	}
	return g
}

// story tells all that is known of a request: what went wrong around it, what
// the plugin noted, and the logs of its lane.
func (w *world) story(a *ask, g *got) string {
	var b strings.Builder
	fmt.Fprintf(&b, "request %s, sent at %.2fs, over at %.2fs\n", g.RequestID, g.From.Seconds(), g.To.Seconds())
	fmt.Fprintf(&b, "got: status %d, %d bytes, error %q, ends with %q\n", g.Status, len(g.Body), g.Err, g.Body[max(0, len(g.Body)-300):])
	b.WriteString("faults from 8 s before it:\n")
	for _, s := range w.events.history() {
		if s.From > g.To || s.To != 0 && s.To+workerReach < g.From {
			continue
		}
		if s.Fault.On.Model == a.Model || s.Fault.etcd() || s.Fault.lane() && s.Fault.On.Index == a.Lane {
			fmt.Fprintf(&b, "  %.2f–%.2f  %s\n", s.From.Seconds(), s.To.Seconds(), s.Fault)
		}
	}
	plugin, proxy := w.lanes[a.Lane].now()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	page, err := plugin.Page(ctx, "/debug/decisions?n=256")
	fmt.Fprintf(&b, "decisions: %s\n", decisionsOf(page, err, g.RequestID))
	for _, m := range w.members {
		if m.on.Model == a.Model && g.RequestID != "" {
			b.WriteString(w.seenBy(ctx, m, g.RequestID))
		}
	}
	fmt.Fprintf(&b, "plugin:\n%s\nEnvoy:\n%s", lastLines(plugin.Log(), 25), lastLines(proxy.Log(), 8))
	return b.String()
}

// seenBy tells what a worker's log has of a request.
func (w *world) seenBy(ctx context.Context, m *member, id string) string {
	_, control := m.now()
	rs, err := control.Requests(ctx, 0)
	if err != nil {
		return fmt.Sprintf("%s: %v\n", m.on, err)
	}
	var b strings.Builder
	for _, r := range rs {
		if r.Headers.Get("X-Request-Id") != id {
			continue
		}
		fmt.Fprintf(&b, "%s: request %d at %.3fs for %.3fs: %s %d %s, fault %q, %d tokens, room %d, hand-off %s\n",
			m.on, r.Seq, r.Started.Sub(w.events.started).Seconds(), r.Ended.Sub(r.Started).Seconds(),
			r.Outcome, r.Status, r.Error, r.Fault, r.OutputTokens, r.Room, r.Handoff)
	}
	return b.String()
}
