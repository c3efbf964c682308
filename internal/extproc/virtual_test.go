package extproc

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/engine/handoff"
	"github.com/seed-60ae5743/baton/internal/engine/sglang"
	"github.com/seed-60ae5743/baton/internal/engine/vllm"
	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/patience"
	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// TestEnginesOfAnySpeedAreWaitedFor is a walk in virtual time through the product's own limits,
// with its own defaults: engines are ten times slower and faster than they assume. Nobody who is
// well is set aside, each request is served, and a worker that dies without a word is out of the
// traffic in time.
func TestEnginesOfAnySpeedAreWaitedFor(t *testing.T) {
	for _, kind := range []handoff.Kind{sglang.HandOff, vllm.HandOff} {
		for _, c := range []struct {
			speed float64       // how many times the engine's times are those below
			stops bool          // a dead worker's machine takes connections
			gone  time.Duration // in which such a worker is out of the traffic
		}{
			{0.1, false, 5 * time.Second}, {1, false, 5 * time.Second}, {10, false, 15 * time.Second},
			{0.1, true, 5 * time.Second}, {1, true, 5 * time.Second}, {10, true, 15 * time.Second},
		} {
			t.Run(fmt.Sprintf("%s %v %t", kind, c.speed, c.stops), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					w := newVirtual(t, kind, c.speed, c.stops)
					w.load(240, 500*time.Millisecond)
					require.Empty(t, w.aside, "all are well")
					w.die(100)
					died := time.Now()
					go func() {
						for w.tracker.Standing(worker.Rank{ID: 100}) == health.Free {
							<-time.After(100 * time.Millisecond)
						}
						w.out = time.Since(died)
					}()
					w.load(240, 500*time.Millisecond)
					require.Equal(t, []worker.ID{100}, w.aside)
					require.LessOrEqual(t, w.out, c.gone)
					w.end()
				})
			})
		}
	}
}

// How long an engine takes at speed 1: a prompt of a thousand tokens, decode's first token, its
// page, which SGLang does not answer before a second, and any other page, which waits for an event
// loop that is busy.
const (
	virtualTokens  = 1000
	virtualPrefill = 300 * time.Millisecond
	virtualFirst   = 100 * time.Millisecond
	virtualPage    = 1050 * time.Millisecond
	virtualKnock   = 200 * time.Millisecond
)

// virtual is two prefill and two decode workers in virtual time.
type virtual struct {
	t       *testing.T
	kind    handoff.Kind
	speed   float64
	cfg     Config
	tracker *health.Tracker
	limits  patience.Limits
	stops   bool
	end     func()
	out     time.Duration

	mu       sync.Mutex
	dead     map[worker.ID]bool // guarded by mu
	aside    []worker.ID        // guarded by mu
	attempts map[*virtualLeg]bool
	turn     int
}

// virtualLeg is an attempt, and what is to happen to it.
type virtualLeg struct{ events chan leg.Event }

func newVirtual(t *testing.T, kind handoff.Kind, speed float64, stops bool) *virtual {
	w := &virtual{t: t, kind: kind, speed: speed, stops: stops, dead: map[worker.ID]bool{}, attempts: map[*virtualLeg]bool{}}
	w.cfg = Defaults
	var err error
	w.tracker = health.New(health.Config{Client: &http.Client{Transport: w}, Seed: 1, Hooks: health.Hooks{Transition: w.changed}})
	var ws []*worker.Worker
	for _, id := range []worker.ID{100, 101, 200, 201} {
		at, err := worker.ParseEndpoint(fmt.Sprintf("10.0.0.%d:80", id))
		require.NoError(t, err)
		x := &worker.Worker{ID: id, Role: worker.Decode, Engine: worker.SGLang, Endpoint: at, Models: []string{"m"}, DPSize: 1, BlockSize: 16}
		if id < 200 {
			x.Role, x.Bootstrap = worker.Prefill, worker.Bootstrap{Host: "10.0.0.1", Port: 8998}
		}
		ws = append(ws, x)
	}
	snap, err := worker.NewSnapshot(1, ws)
	require.NoError(t, err)
	w.tracker.Update(snap, time.Now())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.tracker.Run(ctx) }()
	w.end = func() {
		cancel()
		<-ended
	}
	return w
}

func (w *virtual) after(d time.Duration) <-chan time.Time {
	return time.After(time.Duration(float64(d) * w.speed))
}

func (w *virtual) die(id worker.ID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dead[id] = true
}

func (w *virtual) isDead(id worker.ID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dead[id]
}

// RoundTrip answers the questions of health.
func (w *virtual) RoundTrip(r *http.Request) (*http.Response, error) {
	var id worker.ID
	_, err := fmt.Sscanf(r.URL.Host, "10.0.0.%d:80", &id)
	takes := virtualKnock
	if r.URL.Path == "/health" {
		takes = virtualPage
	}
	answer := w.after(takes)
	dead := err != nil || w.isDead(id)
	if dead {
		answer = nil
	}
	if !dead || w.stops {
		httptrace.ContextClientTrace(r.Context()).GotConn(httptrace.GotConnInfo{})
	}
	select {
	case <-answer:
		return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader(""))}, nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

// changed tells the attempts, as the server does.
func (w *virtual) changed(x health.Transition) {
	kind := leg.EventGone
	switch {
	case x.Mute():
		kind = leg.EventMute
	case !x.Silent():
		return
	}
	go func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if x.To == health.Aside && !slices.Contains(w.aside, x.Rank.ID) {
			w.aside = append(w.aside, x.Rank.ID)
		}
		for a := range w.attempts {
			a.events <- leg.Event{Kind: kind, Rank: x.Rank, Whole: true}
		}
	}()
}

// load sends so many requests and waits for all. Each has to be served.
func (w *virtual) load(n int, every time.Duration) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { w.request(i) })
		<-time.After(every)
	}
	wg.Wait()
}

func (w *virtual) request(n int) {
	var before leg.Lesson
	for attempt := 1; attempt <= 3; attempt++ {
		p := w.plan(&before)
		m, out := w.play(p, attempt)
		if out == blame.OK {
			return
		}
		if out != blame.Retried {
			w.t.Errorf("request %d, attempt %d: %s", n, attempt, out)
			return
		}
		learned, _ := m.Learned()
		before.Avoid, before.Suspects, before.Keep = append(before.Avoid, learned.Avoid...), learned.Suspects, learned.Keep
	}
	w.t.Errorf("request %d: no attempt is left", n)
}

// pick takes the workers in turn. If none may be picked the request waits, as in the plugin.
func (w *virtual) pick(ids []worker.ID, avoid []worker.Rank) worker.Rank {
	for {
		w.mu.Lock()
		w.turn++
		turn := w.turn
		w.mu.Unlock()
		for _, but := range [][]worker.Rank{avoid, nil} {
			for i := range ids {
				r := worker.Rank{ID: ids[(turn/2+i)%len(ids)]}
				if w.tracker.Allows(r) && !slices.Contains(but, r) {
					return r
				}
			}
		}
		<-time.After(pickPause)
	}
}

const pickPause = 250 * time.Millisecond

func (w *virtual) plan(before *leg.Lesson) *leg.Plan {
	p := &leg.Plan{Disaggregated: true, Kind: w.kind, Token: "sealed", DecodeAddr: "a", Suspects: before.Suspects}
	p.Prefill, p.Decode = w.pick([]worker.ID{100, 101}, before.Avoid), w.pick([]worker.ID{200, 201}, before.Avoid)
	key := worker.Key{Model: "m"}
	p.Spare.Prefill = w.tracker.Spare(key, worker.Prefill, append([]worker.Rank{p.Prefill}, before.Avoid...)...)
	p.Spare.Decode = w.tracker.Spare(key, worker.Decode, append([]worker.Rank{p.Decode}, before.Avoid...)...)
	p.StartWithin = w.limits.Limit(patience.Subject{Worker: p.Prefill.ID, Pool: key, Leg: patience.Start}, w.cfg.StartTimeout)
	p.OverdueAfter = w.limits.Limit(patience.Subject{Worker: p.Prefill.ID, Pool: key, Leg: patience.Prefill}, w.cfg.overdueAfter(virtualTokens))
	p.AnswerWithin = w.limits.Limit(patience.Subject{Worker: p.Decode.ID, Pool: key, Leg: patience.Stream}, w.cfg.AnswerBase)
	return p
}

// play runs one attempt to its end.
func (w *virtual) play(p *leg.Plan, attempt int) (*leg.Main, leg.Outcome) {
	a := &virtualLeg{events: make(chan leg.Event, 64)}
	w.mu.Lock()
	w.attempts[a] = true
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		delete(w.attempts, a)
		w.mu.Unlock()
	}()
	m, out, done := mainOf(testRules(), leg.Way{}), leg.Outcome(""), false
	key, begun := worker.Key{Model: "m"}, time.Now()
	step := func(ev leg.Event) {
		now := time.Now()
		if m.WouldRepeat(now, &ev) {
			ev.Repeat = w.limits.Repeat(key, now)
		}
		for _, e := range m.Step(now, &ev) {
			switch e.Op {
			case leg.OpSuspect:
				w.tracker.Suspect(e.Rank, now)
				if w.tracker.Aside(e.Rank) { // it was set aside before this attempt waited long enough
					a.events <- leg.Event{Kind: leg.EventGone, Rank: e.Rank}
				}
			case leg.OpCharge, leg.OpPairFailed, leg.OpPairServed:
				if repays(&e) {
					w.limits.Repaid(key)
				}
				tell(w.tracker, &e, p.Nonce, m.PickedAt(), now)
			case leg.OpFinish:
				out, done = e.Outcome, true
			}
		}
	}
	step(leg.Event{Kind: leg.EventRequestHeaders, Headers: &wire.Headers{Method: "POST", Path: "/v1/completions", AttemptCount: fmt.Sprint(attempt)}})
	step(leg.Event{Kind: leg.EventRequestBody, Body: []byte(`{"model":"m","prompt":"hello","max_tokens":9}`), EndOfStream: true})
	step(leg.Event{Kind: leg.EventPicked, Plan: p})
	step(leg.Event{Kind: leg.EventLeg, Leg: leg.Report{State: leg.Started}})
	computed, first := w.after(virtualPrefill), (<-chan time.Time)(nil)
	if w.isDead(p.Prefill.ID) {
		computed = nil
	}
	for !done {
		select {
		case <-computed:
			computed, first = nil, w.after(virtualFirst)
			w.limits.Took(patience.Subject{Worker: p.Prefill.ID, Pool: key, Leg: patience.Prefill}, w.cfg.overdueAfter(virtualTokens), time.Since(begun))
			if w.kind.PrefillFirst() {
				step(leg.Event{Kind: leg.EventPrefilled, Answer: &leg.OwnAnswer{Status: 200, Sent: true, Body: []byte(handedOver)}})
			} else {
				step(leg.Event{Kind: leg.EventLeg, Leg: leg.Report{State: leg.Well}})
			}
		case <-first:
			w.limits.Took(patience.Subject{Worker: p.Decode.ID, Pool: key, Leg: patience.Stream}, w.cfg.AnswerBase, time.Duration(float64(virtualFirst)*w.speed))
			step(leg.Event{Kind: leg.EventResponseHeaders, Headers: &wire.Headers{Status: "200"}})
			step(leg.Event{Kind: leg.EventClosed})
			step(leg.Event{Kind: leg.EventLogged, Seen: blame.Served, Status: 200, Reached: true})
		case ev := <-a.events:
			step(ev)
		case <-time.After(time.Until(m.WakeAt())):
			step(leg.Event{Kind: leg.EventTimer})
		}
	}
	return m, out
}
