package extproc

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/engine/handoff"
	"github.com/seed-60ae5743/baton/internal/engine/sglang"
	"github.com/seed-60ae5743/baton/internal/engine/vllm"
	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/patience"
	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// The tests in this file play requests with the machine and a real health.Tracker. Clients
// try to make healthy workers be set aside, and workers are sick in every way.

// hostileRequests is how many requests are played, over all fleets.
func hostileRequests() int { return fewer(100_000) }

// hostileShare is how many of these requests the nth fleet gets.
func hostileShare(n int) int {
	return hostileRequests()*(n+1)/len(hostileLayouts) - hostileRequests()*n/len(hostileLayouts)
}

// fewer returns the rounds of a random test: with -short, as in make test-unit, a tenth.
func fewer(rounds int) int {
	if testing.Short() {
		return rounds / 10
	}
	return rounds
}

// act is what happens to one attempt at its workers: the events of its legs.
type act uint8

const (
	actServe       act = iota
	actRejected        // 4xx of the worker that answers
	actRejectedFar     // the same of prefill
	actBusy
	actError    // 5xx
	actErrorFar // of prefill
	actLost     // the connection, before an answer
	actLostFar
	actRefuse // the connection is refused
	actRefuseFar
	actEmpty    // a head without a body
	actEmptyEnd // a stream that ends at once
	actBreak    // in the middle of the answer
	actSlow     // longer than any limit, served in the end
	actDeadline // the client's own
	actLeave    // the client leaves before the answer
	actLeaveMid // and in its middle
	actSilent   // never answers; a probe is not answered either
	actHang     // never answers, and its probe does
)

// playground plays requests in a made-up time.
type playground struct {
	t       *testing.T
	r       *rand.Rand
	now     time.Time
	tracker *health.Tracker
	moves   map[worker.ID]int // how often each changed its state
	aside   map[worker.ID]int // how often each was set aside
	mates   int               // how often a request that a worker had refused was sent to a mate
	told    int               // how many reports on workers there were
	story   []string          // the latest requests and reports on workers
	prefill []worker.ID
	serve   []worker.ID
	kind    handoff.Kind
	silent  map[worker.ID]bool
	gone    map[worker.ID]bool // workers that are aside, for which no attempt should wait
	far     bool               // prefill is the worker that does not answer
	seq     uint64
	limits  patience.Limits
}

// poolOfAll is the pool of a playground's workers.
var poolOfAll = worker.Key{Model: "m"}

func newPlayground(t *testing.T, seed uint64, kind handoff.Kind, prefill, serve int) *playground {
	g := &playground{t: t, r: rand.New(rand.NewPCG(seed, 1)), now: testStart, moves: map[worker.ID]int{}, aside: map[worker.ID]int{}, silent: map[worker.ID]bool{}, gone: map[worker.ID]bool{}, kind: kind}
	var err error
	g.tracker = health.New(health.Config{Seed: seed + 1, Hooks: health.Hooks{Transition: func(x health.Transition) {
		g.moves[x.Rank.ID]++
		g.gone[x.Rank.ID] = x.Silent()
		if x.To == health.Aside {
			g.aside[x.Rank.ID]++
			g.tellf("worker %s is set aside: %s", x.Rank.ID, x.Reason)
		}
	}}})
	role := worker.Decode
	if prefill == 0 {
		role = worker.Aggregated
	}
	var ws []*worker.Worker
	add := func(n int, from worker.ID, role worker.Role, list *[]worker.ID) {
		for i := range n {
			w := routetest.Workers()[0]
			w.ID, w.Role = from+worker.ID(i), role
			if role != worker.Prefill {
				w.Bootstrap = worker.Bootstrap{}
			}
			w.Endpoint, err = worker.ParseEndpoint(fmt.Sprintf("10.0.%d.%d:80", from/100, i+1))
			require.NoError(t, err)
			ws, *list = append(ws, w), append(*list, w.ID)
		}
	}
	add(prefill, 100, worker.Prefill, &g.prefill)
	add(serve, 200, role, &g.serve)
	snap, err := worker.NewSnapshot(1, ws)
	require.NoError(t, err)
	pool := snap.Pool(worker.Key{Model: "m"})
	require.Equal(t, prefill+serve, len(pool.Prefill)+max(len(pool.Decode), len(pool.Aggregated)), "all can be picked")
	g.tracker.Update(snap, g.now)
	return g
}

// tellf adds a line to the story, and keeps the story short.
func (g *playground) tellf(format string, a ...any) {
	if len(g.story) == 60 {
		g.story = append(g.story[:0], g.story[30:]...)
	}
	g.story = append(g.story, fmt.Sprintf(format, a...))
}

// pick returns a worker that is in service, and if possible one that is not avoided. It
// returns false if no worker is in service.
func (g *playground) pick(ws []worker.ID, avoid []worker.Rank) (worker.Rank, bool) {
	var best, rest []worker.ID
next:
	for _, id := range ws {
		if !g.tracker.Allows(worker.Rank{ID: id}) {
			continue
		}
		for _, r := range avoid {
			if r.ID == id {
				rest = append(rest, id)
				continue next
			}
		}
		best = append(best, id)
	}
	if len(best) == 0 {
		best = rest
	}
	if len(best) == 0 {
		return worker.Rank{}, false
	}
	return worker.Rank{ID: best[g.r.IntN(len(best))]}, true
}

// request plays one request with all its attempts, and reports whether it was served. The
// function what returns what happens to an attempt at its workers.
func (g *playground) request(what func(attempt int, prefill, serve worker.ID) act) bool {
	g.seq++
	var before avoided
	for attempt := 1; attempt <= 3; attempt++ {
		g.now = g.now.Add(time.Duration(g.r.IntN(20)) * time.Millisecond)
		d, ok := g.pick(g.serve, before.Avoid)
		if !ok {
			return false
		}
		p := &leg.Plan{Nonce: g.seq, Decode: d, DecodeAddr: "a", Suspects: before.Suspects, StartWithin: time.Second, OverdueAfter: 6 * time.Second, AnswerWithin: 30 * time.Second}
		_, p.Spare.Decode = g.other(g.serve, d.ID, before.Avoid)
		if len(g.prefill) > 0 {
			if p.Prefill, ok = g.pick(g.prefill, before.Avoid); !ok {
				return false
			}
			if before.Keep.ID != 0 && g.tracker.Allows(before.Keep) {
				if slices.Contains(g.prefill, before.Keep.ID) {
					p.Prefill = before.Keep
				} else {
					p.Decode, d = before.Keep, before.Keep
					_, p.Spare.Decode = g.other(g.serve, d.ID, before.Avoid)
				}
			}
			p.Disaggregated, p.Kind, p.Token, p.DecodeAlone = true, g.kind, "sealed", false
			_, p.Spare.Prefill = g.other(g.prefill, p.Prefill.ID, before.Avoid)
			p.Failing = g.tracker.HandoffFailing(p.Prefill, d, g.now)
		}
		x := &attemptPlay{g: g, m: mainOf(testRules(), leg.Way{}), plan: p, number: attempt}
		trial := g.tracker.Begin(d)
		trialFar := g.tracker.Begin(p.Prefill)
		x.play(what(attempt, p.Prefill.ID, d.ID))
		g.tracker.End(d, trial)
		g.tracker.End(p.Prefill, trialFar)
		if x.outcome == blame.OK {
			g.limits.Took(patience.Subject{Pool: poolOfAll, Leg: patience.Whole}, 1, 1)
		}
		if x.outcome != blame.Retried {
			return x.outcome == blame.OK
		}
		learned, _ := x.m.Learned()
		before.Avoid = append(before.Avoid, learned.Avoid...)
		before.Suspects, before.Keep = learned.Suspects, learned.Keep
	}
	return false
}

func (g *playground) other(ws []worker.ID, but worker.ID, avoid []worker.Rank) (worker.Rank, bool) {
	r, ok := g.pick(ws, append(slices.Clip(avoid), worker.Rank{ID: but}))
	for _, a := range avoid {
		ok = ok && a.ID != r.ID
	}
	return r, ok && r.ID != but
}

// attemptPlay plays one attempt: it does what the runner and Envoy do.
type attemptPlay struct {
	g       *playground
	m       *leg.Main
	plan    *leg.Plan
	number  int
	outcome leg.Outcome
}

func (x *attemptPlay) send(ev *leg.Event) {
	if x.m.Over() {
		return
	}
	for _, e := range append([]leg.Effect(nil), x.m.Step(x.g.now, ev)...) {
		switch e.Op {
		case leg.OpCharge, leg.OpSuspect, leg.OpPairFailed, leg.OpPairServed:
			x.g.told++
		}
		switch e.Op {
		case leg.OpRelay:
			if x.m.ServesSoFar() {
				x.g.tracker.Began(x.m.Plan().Decode, x.g.now)
			}
		case leg.OpCharge, leg.OpPairFailed, leg.OpPairServed:
			x.g.tellf("%s request %d/%d: effect %d %s %s proven=%t", x.g.now.Sub(testStart), x.g.seq, x.number, e.Op, e.Rank, e.Charge, e.Proven)
			if repays(&e) {
				x.g.limits.Repaid(poolOfAll)
			}
			tell(x.g.tracker, &e, x.g.seq, x.m.PickedAt(), x.g.now)
			if e.Charge == blame.Connect {
				x.g.probe(e.Rank.ID)
			}
		case leg.OpSuspect:
			x.g.probe(e.Rank.ID)
		case leg.OpFinish:
			x.outcome = e.Outcome
		}
	}
}

// probe probes a suspect, as health's own prober does.
func (g *playground) probe(id worker.ID) {
	if g.silent[id] {
		g.tracker.Report(worker.Rank{ID: id}, health.Report{Outcome: health.ConnectFailed}, g.now)
	}
}

// awaitsAnswer reports whether workers have the request, and nothing of the answer has gone to
// the client.
func awaitsAnswer(m *leg.Main) bool {
	return m.Plan() != nil && !m.Concluded() && m.Answer().Relayed.IsZero()
}

// wait lets the time d pass, or less if the attempt is over before.
func (x *attemptPlay) wait(d time.Duration) {
	until := x.g.now.Add(d)
	for awaitsAnswer(x.m) {
		at := x.m.WakeAt()
		if at.IsZero() || at.After(until) {
			break
		}
		x.g.now = at
		ev := leg.Event{Kind: leg.EventTimer}
		ev.Repeat = x.m.WouldRepeat(at, &ev) && x.g.limits.Repeat(poolOfAll, at)
		x.send(&ev)
		for _, id := range []worker.ID{x.plan.Prefill.ID, x.plan.Decode.ID} {
			if awaitsAnswer(x.m) && id != 0 && x.g.gone[id] {
				x.send(&leg.Event{Kind: leg.EventGone, Rank: worker.Rank{ID: id}, Whole: true})
			}
		}
	}
	if awaitsAnswer(x.m) {
		x.g.now = until
	}
}

// begin brings the attempt to where its workers have been picked.
func (x *attemptPlay) begin() {
	x.send(&leg.Event{Kind: leg.EventRequestHeaders, Headers: &wire.Headers{Method: "POST", Path: "/v1/completions", AttemptCount: fmt.Sprint(x.number)}})
	x.send(&leg.Event{Kind: leg.EventRequestBody, Body: []byte(`{"model":"m","prompt":"hello","max_tokens":9}`), EndOfStream: true})
	x.send(&leg.Event{Kind: leg.EventPicked, Plan: x.plan})
}

func (x *attemptPlay) play(a act) {
	far := x.plan.Disaggregated
	first := far && x.plan.Kind.PrefillFirst()
	x.g.tellf("request %d/%d at %s, %s: act %d", x.g.seq, x.number, x.plan.Prefill, x.plan.Decode, a)
	x.begin()
	prefilled := func(s blame.Sight, status int) {
		if first {
			ans := &leg.OwnAnswer{Status: status, Sent: true, Odd: x.odd(s, x.plan.Prefill, x.plan.Spare.Prefill)}
			if s == blame.Lost || s == blame.Unconnected {
				ans.LocalReply = map[blame.Sight]string{blame.Lost: "UC", blame.Unconnected: "UF"}[s]
			}
			if s == blame.Served {
				ans.Body = []byte(`{"choices":[{"text":"a","finish_reason":"length"}],"kv_transfer_params":{"remote_engine_id":"e"}}`)
			}
			x.send(&leg.Event{Kind: leg.EventLeg, Leg: leg.Report{State: leg.Started}})
			x.send(&leg.Event{Kind: leg.EventPrefilled, Answer: ans})
			return
		}
		x.send(&leg.Event{Kind: leg.EventLeg, Leg: leg.Report{State: leg.Started}})
		r := leg.Report{State: leg.Well}
		if s != blame.Served {
			r = leg.Report{State: leg.Failed, Reason: s, Status: status, Odd: x.odd(s, x.plan.Prefill, x.plan.Spare.Prefill)}
		}
		x.send(&leg.Event{Kind: leg.EventLeg, Leg: r})
		x.send(&leg.Event{Kind: leg.EventLeg, Leg: leg.Report{State: leg.Ended}})
	}
	well := func() {
		if far {
			prefilled(blame.Served, 200)
		}
	}
	head := func(status int, local string, eos bool) {
		h := &wire.Headers{Status: fmt.Sprint(status), LocalReply: local}
		ev := &leg.Event{Kind: leg.EventResponseHeaders, Headers: h, EndOfStream: eos}
		if local == "" {
			ev.Odd = x.odd(leg.SightOfStatus(status), x.plan.Decode, x.plan.Spare.Decode)
		}
		x.send(ev)
	}
	over := func(s blame.Sight) {
		x.send(&leg.Event{Kind: leg.EventClosed})
		x.send(&leg.Event{Kind: leg.EventLogged, Seen: s, Reached: true})
	}
	if near, ok := nearby[a]; ok && !far {
		a = near
	}
	switch a {
	case actServe:
		well()
		head(200, "", false)
		over(blame.Served)
	case actRejected:
		well()
		head(404, "", false)
		over(blame.Served)
	case actRejectedFar:
		prefilled(blame.Rejected, 404)
	case actBusy:
		well()
		head(429, "", false)
		over(blame.Served)
	case actError:
		well()
		head(500, "", false)
		over(blame.Served)
	case actErrorFar:
		prefilled(blame.Errored, 500)
	case actLost:
		well()
		head(503, "UC", false)
	case actLostFar:
		prefilled(blame.Lost, 503)
	case actRefuse:
		well()
		head(503, "UF", false)
	case actRefuseFar:
		prefilled(blame.Unconnected, 503)
	case actEmpty:
		well()
		head(200, "", true)
		over(blame.Served)
	case actEmptyEnd:
		well()
		head(200, "", false)
		over(blame.Empty)
	case actBreak:
		well()
		head(200, "", false)
		over(blame.BrokeOff)
	case actSlow:
		x.send(&leg.Event{Kind: leg.EventLeg, Leg: leg.Report{State: leg.Started}})
		x.wait(20 * time.Second)
		if awaitsAnswer(x.m) {
			well()
			head(200, "", false)
			over(blame.Served)
		}
	case actDeadline:
		x.send(&leg.Event{Kind: leg.EventLeg, Leg: leg.Report{State: leg.Started}})
		if far && !first {
			x.send(&leg.Event{Kind: leg.EventLeg, Leg: leg.Report{State: leg.Failed, Reason: blame.Ended}})
		}
		head(504, "UT", false)
	case actLeave:
		x.send(&leg.Event{Kind: leg.EventLeg, Leg: leg.Report{State: leg.Started}})
		x.send(&leg.Event{Kind: leg.EventClosed})
		if far && !first {
			x.send(&leg.Event{Kind: leg.EventLeg, Leg: leg.Report{State: leg.Failed, Reason: blame.Ended}})
		}
	case actLeaveMid:
		well()
		head(200, "", false)
		over(blame.ClientLeft)
	case actSilent, actHang:
		if first && !x.g.far {
			well()
		} else {
			x.send(&leg.Event{Kind: leg.EventLeg, Leg: leg.Report{State: leg.Started}})
		}
		x.wait(2 * time.Minute)
	}
	x.send(&leg.Event{Kind: leg.EventClosed})
}

// nearby replaces acts of the prefill worker if one worker serves the request alone.
var nearby = map[act]act{actRejectedFar: actRejected, actErrorFar: actError, actLostFar: actLost, actRefuseFar: actRefuse}

func (x *attemptPlay) odd(s blame.Sight, at worker.Rank, spare bool) bool {
	if s != blame.Rejected || !spare || x.number >= 3 || !x.g.tracker.AskMate(at) {
		return false
	}
	x.g.mates++
	return true
}

// hostileMix are the acts that clients can cause at every worker.
var hostileMix = []act{
	actServe, actServe, actRejected, actRejectedFar, actBusy, actError, actErrorFar, actLost, actLostFar, actSlow, actDeadline, actLeave, actLeaveMid,
}

// hostileLayouts are the fleets to which hostile clients send requests.
var hostileLayouts = []struct {
	name           string
	kind           handoff.Kind
	prefill, serve int
}{
	{"aggregated", sglang.HandOff, 0, 4}, {"two alone", sglang.HandOff, 0, 2},
	{"mirrored 2+2", sglang.HandOff, 2, 2}, {"mirrored 1+1", sglang.HandOff, 1, 1}, {"mirrored 3+5", sglang.HandOff, 3, 5},
	{"first 2+2", vllm.HandOff, 2, 2}, {"first 1+1", vllm.HandOff, 1, 1},
}

// TestNoClientSetsAHealthyWorkerAside: a request has the same effect at each worker. None of
// 100,000 such requests changes the state of a worker.
func TestNoClientSetsAHealthyWorkerAside(t *testing.T) {
	t.Parallel()
	var played atomic.Int64
	t.Run("fleets", func(t *testing.T) {
		for i, c := range hostileLayouts {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				g := newPlayground(t, 7, c.kind, c.prefill, c.serve)
				for range hostileShare(i) {
					a := hostileMix[g.r.IntN(len(hostileMix))]
					if g.r.IntN(200) == 0 {
						a = actBreak
					}
					g.request(func(int, worker.ID, worker.ID) act { return a })
					require.Empty(t, g.moves, "transitions\n%s", strings.Join(g.story, "\n"))
				}
				played.Add(int64(g.seq))
			})
		}
	})
	if !t.Failed() {
		require.EqualValues(t, hostileRequests(), played.Load(), "requests that were played to their end")
	}
}

// TestHealthyWorkersHaveFewRequestsAskedTwice: whatever clients ask for, at most one of a
// hundred requests is sent to a mate after a worker has refused it. make test-long runs the
// other fleets.
func TestHealthyWorkersHaveFewRequestsAskedTwice(t *testing.T) {
	requests := fewer(30_000)
	most := requests / 100
	if testing.Short() {
		most += 3 // the budget with which a Tracker begins
	}
	for _, c := range hostileLayouts {
		if !everyFleet && c.name != "aggregated" && c.name != "mirrored 2+2" && c.name != "first 2+2" {
			continue
		}
		for _, mix := range []struct {
			name string
			acts []act
		}{
			{"all that clients do", hostileMix},
			{"one in three is refused", []act{actServe, actServe, actRejected}},
			{"one in ten is refused", []act{actServe, actServe, actServe, actServe, actServe, actServe, actServe, actServe, actServe, actRejected}},
			{"most are refused", []act{actServe, actRejected, actRejected, actRejectedFar}},
		} {
			t.Run(c.name+", "+mix.name, func(t *testing.T) {
				t.Parallel()
				g := newPlayground(t, 3, c.kind, c.prefill, c.serve)
				for range requests {
					a := mix.acts[g.r.IntN(len(mix.acts))]
					g.request(func(int, worker.ID, worker.ID) act { return a })
				}
				t.Logf("%d of %d: %.2f %%", g.mates, requests, 100*float64(g.mates)/float64(requests))
				require.LessOrEqual(t, g.mates, most)
			})
		}
	}
}

// TestASickWorkerDoesNotWin: one worker is sick, in each possible way, beside good ones. It
// gets no requests after ten, at least 95 of the next hundred are served, and no other worker
// changes its state. If a third of the clients is hostile and makes other workers fail in the
// same way, ten is the mean of several runs.
func TestASickWorkerDoesNotWin(t *testing.T) {
	near := []act{actRejected, actBusy, actError, actLost, actRefuse, actEmpty, actEmptyEnd, actBreak, actSilent, actHang}
	far := []act{actRejectedFar, actErrorFar, actLostFar, actRefuseFar, actSilent, actHang}
	const runs = 4
	for _, c := range []struct {
		name           string
		kind           handoff.Kind
		prefill, serve int
		role           string
		ways           []act
	}{
		{"one of two", sglang.HandOff, 0, 2, "serve", near},
		{"one of five", sglang.HandOff, 0, 5, "serve", near},
		{"decode, mirrored", sglang.HandOff, 2, 2, "serve", near},
		{"prefill, mirrored", sglang.HandOff, 2, 2, "prefill", far},
		{"decode, after prefill", vllm.HandOff, 2, 2, "serve", near},
		{"prefill, before decode", vllm.HandOff, 2, 2, "prefill", far},
	} {
		for _, way := range c.ways {
			t.Run(fmt.Sprintf("%s/%d", c.name, way), func(t *testing.T) {
				t.Parallel()
				ward := func(seed int) (*playground, worker.ID) {
					g := newPlayground(t, uint64(way)+100*uint64(seed), c.kind, c.prefill, c.serve)
					bad := g.serve[0]
					if c.role == "prefill" {
						bad = g.prefill[0]
					}
					g.silent[bad], g.far = way == actSilent || way == actRefuse || way == actRefuseFar, c.role == "prefill"
					return g, bad
				}
				most, among := 0, 0
				for seed := range runs {
					g, bad := ward(seed)
					most = max(most, g.besideSick(bad, way, nil))
					g, bad = ward(runs + seed)
					among += g.besideSick(bad, way, actsAtSick)
				}
				t.Logf("requests that it has met: %d at most; among hostile clients %.1f", most, float64(among)/runs)
				require.LessOrEqual(t, most, 10)
				require.LessOrEqual(t, among, 10*runs)
			})
		}
	}
}

// actsAtSick are the acts that hostile clients cause at workers that are well.
var actsAtSick = []act{actRejected, actRejectedFar, actBusy, actError, actErrorFar, actLost, actLostFar, actDeadline, actLeave, actLeaveMid}

// besideSick plays requests while one worker is sick and fails each request that it gets. It
// returns how many requests without a fault of their own the sick worker got.
func (g *playground) besideSick(bad worker.ID, way act, hostile []act) (met int) {
	after, served := 0, 0
	for range 16 {
		g.request(func(int, worker.ID, worker.ID) act { return actServe })
	}
	for range 200 {
		others := actServe
		if len(hostile) > 0 && g.r.IntN(3) == 0 {
			others = hostile[g.r.IntN(len(hostile))]
		}
		out := g.aside[bad] > 0
		ok := g.request(func(_ int, p, d worker.ID) act {
			if p != bad && d != bad {
				return others
			}
			if others == actServe {
				met++
			}
			return way
		})
		if others == actServe && out {
			after++
			served += map[bool]int{true: 1}[ok]
		}
	}
	story := strings.Join(g.story, "\n")
	delete(g.moves, bad)
	require.Empty(g.t, g.moves, "transitions of healthy workers\n%s", story)
	require.Greater(g.t, after, 40, "it is out of the traffic\n%s", story)
	require.GreaterOrEqual(g.t, float64(served), 0.95*float64(after), "served of those after that\n%s", story)
	return met
}
