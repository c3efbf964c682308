package leg

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/internal/engine/sglang"
	"github.com/seed-60ae5743/baton/internal/engine/vllm"
	"github.com/seed-60ae5743/baton/internal/engine/vllmmooncake"
	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// The tests here send random events, also in orders in which Envoy would not send them,
// and hold the machines to the invariants of the package documentation. They keep the
// rules of a runner: one answer for each OpPick, and no message of Envoy's after
// EventClosed. But a timer may also fire early.

const randomRuns = 50_000

// mainRandom is a simple mainStream: it counts the effects that it gets.
type mainRandom struct {
	r   *rand.Rand
	m   *Main
	now time.Time

	picking       bool // OpPick is not answered
	booked        bool
	disaggregated bool
	closed        bool
	deaf          bool // an ImmediateResponse went out, or the stream was left
	ended         bool // the leg has told its end
	routed        int
	immediates    int
	finished      int
	decode        int // bookings held
	prefill       int
	prefilling    bool // OpPrefill is not answered
	held          bool // prefill's answer says that prefill holds KV
	taken         bool // decode has seen the hand-off
	collecting    bool // OpCollect is not answered
	collects      int
	relayed       bool
	came, passed  int // pieces of the answer
	story         []string
}

func (x *mainRandom) fail(format string, a ...any) error {
	return fmt.Errorf("%s\n%s", fmt.Sprintf(format, a...), strings.Join(x.story, "\n"))
}

func (x *mainRandom) send(ev Event, name string) error {
	was, held := x.m.phase, x.m.handover.held()
	effects := x.m.Step(x.now, &ev)
	mirrored := x.m.plan != nil && x.m.plan.Kind.Holds()
	x.held = x.held || mirrored && x.m.far.well
	if held && !x.m.handover.held() && x.collects == 0 && !x.seenBy(&ev, was, effects) && !(mirrored && !x.m.far.well) {
		return x.fail("X5: %s in %s: what prefill holds is forgotten", name, was)
	}
	var ops []string
	for i := range effects {
		ops = append(ops, effects[i].Op.String())
	}
	x.story = append(x.story, fmt.Sprintf("+%-8s %-26s %s → %s [%s]: %s", x.now.Sub(testStart), name, was, x.m.phase, x.m.far.state, strings.Join(ops, ", ")))
	for i := range effects {
		if err := x.check(&effects[i]); err != nil {
			return err
		}
	}
	if ev.Kind == EventPrefilled && x.m.handover.unsure() && x.m.plan.Kind.PrefillFirst() && x.routed == 1 && !x.closed && x.r.IntN(8) == 0 {
		return x.send(Event{Kind: EventStale}, "stale") // in place of the route
	}
	if ev.Kind == EventFound && !slices.Contains(ops, "pass") && !slices.Contains(ops, "immediate") {
		return x.fail("X7: nobody says whether the answer goes on")
	}
	return nil
}

// seenBy reports whether the hand-off needs no collecting leg any more: a leg was sent,
// decode has seen the hand-off, or nobody can know any more.
func (x *mainRandom) seenBy(ev *Event, was mainPhase, effects []Effect) bool {
	for i := range effects {
		if effects[i].Op == OpCollect {
			return true
		}
	}
	switch ev.Kind {
	case EventStale: // its lease is over soon, or is
		x.taken = true
		return true
	case EventFound: // the head of that answer has not come
		x.taken = true
		return true
	case EventResponseHeaders:
		x.taken = ev.Headers.LocalReply == "" || x.m.way.Plain() || reached(ev.Headers.LocalReply)
		return x.taken
	case EventLogged:
		x.taken = ev.Reached
		return x.taken
	case EventClosed: // the log came before it
		x.taken = x.m.logged.Reached
		return x.taken
	case EventTimer:
		x.taken = (was == mainLingering || was == mainEnded) && x.routed == 1 // the log has not come
		return x.taken
	}
	return false
}

func (x *mainRandom) check(e *Effect) error {
	switch e.Op {
	case OpContinue, OpRoute, OpRouteHeaders, OpRelay, OpImmediate, OpExtend, OpModels, OpHealth:
		if x.closed || x.deaf {
			return x.fail("X2, X4: %s after the end", e.Op.String())
		}
	}
	switch e.Op {
	case OpContinue:
		x.relayed = x.relayed || e.Of == wire.ResponseHeaders                              // the head of an answer that was made before us
		if e.Of == wire.ResponseBody && bytes.Contains(e.Body, []byte(`data: {"error"`)) { // the answer is cut
			if !e.EndOfStream || !x.relayed {
				return x.fail("X6: an error event is no end")
			}
		} else if e.Of == wire.ResponseBody || e.Of == wire.ResponseTrailers {
			if x.passed++; !x.relayed || e.Of == wire.ResponseBody && string(e.Body) != strconv.Itoa(x.passed) {
				return x.fail("X6: piece %d of the answer is %q, headers relayed: %t", x.passed, e.Body, x.relayed)
			}
		}
	case OpRelay:
		x.relayed = true
	case OpRoute, OpRouteHeaders:
		x.routed++
		if !x.booked || x.routed > 1 || x.decode != 1 || x.disaggregated != (x.prefill == 1) || x.prefilling != x.m.plan.SentBeside {
			return x.fail("X3: routed with %d decode and %d prefill bookings", x.decode, x.prefill)
		}
	case OpImmediate, OpModels, OpHealth:
		x.immediates++
		x.deaf = true
	case OpLeave:
		x.deaf = true
	case OpPick:
		x.picking = true
		if x.decode != 0 || x.prefill != 0 || x.prefilling || (e.Fail != nil) != (x.m.instead != nil) {
			return x.fail("X1: a pick with %d decode and %d prefill bookings", x.decode, x.prefill)
		}
	case OpPrefill:
		x.prefilling = true
		if x.decode != 1 || x.prefill != 1 {
			return x.fail("X3: prefill is asked for with %d decode and %d prefill bookings", x.decode, x.prefill)
		}
	case OpCollect:
		x.collecting = true
		if x.collects++; x.collects > 1 || !x.held || x.taken {
			return x.fail("X5: collected %d times, held %t, taken %t", x.collects, x.held, x.taken)
		}
	case OpReleaseDecode:
		x.decode--
		if x.collecting {
			return x.fail("X1: decode is released while it collects")
		}
	case OpReleasePrefill:
		x.prefill--
	case OpFinish:
		x.finished++
	case OpForget:
		if x.decode != 0 || x.prefill != 0 {
			return x.fail("X1: forgotten with %d decode and %d prefill bookings", x.decode, x.prefill)
		}
	}
	if x.decode < 0 || x.prefill < 0 || x.finished > 1 || x.immediates > 1 {
		return x.fail("X1, X2: decode %d, prefill %d, finished %d, immediates %d", x.decode, x.prefill, x.finished, x.immediates)
	}
	return nil
}

// answerPick answers OpPick as the runner's decide does: exactly once, at any time.
func (x *mainRandom) answerPick() error {
	x.picking = false
	if x.r.IntN(5) == 0 {
		return x.send(Event{Kind: EventRefused, Failure: &failNoDecode}, "refused")
	}
	p := &Plan{Nonce: 7, Decode: worker.Rank{ID: 3}, DecodeAddr: "10.0.0.3:80", OverdueAfter: 5 * time.Second, StartWithin: time.Second, AnswerWithin: pickOf(x.r, 0, 3*time.Second), Spare: Spare{Prefill: x.r.IntN(2) == 0, Decode: x.r.IntN(2) == 0}}
	x.booked, x.decode, x.disaggregated = true, 1, false
	if x.m.instead == nil && !x.m.req.Passes() && x.r.IntN(4) > 0 {
		x.disaggregated, x.prefill = true, 1
		p.Disaggregated, p.Prefill = true, worker.Rank{ID: 7}
		p.Bootstrap.Host, p.Token = "10.0.0.7", "sealed"
		p.Kind = pickOf(x.r, sglang.HandOff, vllm.HandOff, vllmmooncake.HandOff, engines.Sidecar)
		p.Bootstrap = worker.Bootstrap{Host: "10.0.0.7", Port: 8998, EngineIDs: []string{"e"}}
		p.SentBeside = x.m.way.Sends && (p.Kind == sglang.HandOff || p.Kind == vllmmooncake.HandOff)
		p.InHeaders = p.Kind == sglang.HandOff && x.r.IntN(3) == 0
		p.DecodeAlone = x.r.IntN(2) == 0
	}
	if x.m.Looks() && x.r.IntN(2) == 0 {
		p.AnswerToken, p.Looks = "sealed", true
	}
	return x.send(Event{Kind: EventPicked, Plan: p}, "picked")
}

// answerPrefill answers OpPrefill as the plugin's own leg does: exactly once, at any
// time.
func (x *mainRandom) answerPrefill() error {
	x.prefilling = false
	a := &OwnAnswer{Status: 200, Body: []byte(`{"choices":[{"text":"a","finish_reason":"length"}],"kv_transfer_params":{"remote_engine_id":"e"}}`)}
	beside := x.m.plan != nil && x.m.plan.SentBeside // what it holds then, send notes
	x.held = x.held || !beside
	if x.r.IntN(3) == 0 {
		x.held = x.held && beside
		a = pickOf(x.r,
			&OwnAnswer{Status: 200, Body: []byte(`{"choices":[{"text":"a","finish_reason":"stop"}],"kv_transfer_params":null}`)},
			&OwnAnswer{Status: 200, Body: []byte(`{"choices":[{"text":"a","finish_reason":"length"}]}`)},
			&OwnAnswer{Status: 200, Body: []byte(`{"choi`)},
			&OwnAnswer{Status: 200, Unread: true}, &OwnAnswer{Status: 200, Err: io.ErrUnexpectedEOF}, &OwnAnswer{Canceled: true, Err: io.EOF},
			&OwnAnswer{Status: 503}, &OwnAnswer{Status: 400, Body: []byte("no")}, &OwnAnswer{Status: 503, LocalReply: "UF"}, &OwnAnswer{Err: io.EOF})
	}
	return x.send(Event{Kind: EventPrefilled, Answer: a}, fmt.Sprintf("prefilled %d held=%t", a.Status, x.held))
}

func (x *mainRandom) answerCollect() error {
	x.collecting = false
	return x.send(Event{Kind: EventCollected}, "collected")
}

func pickOf[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

var randomReasons = []blame.Sight{
	blame.Errored, blame.Rejected, blame.Unconnected, blame.Lost, blame.Failing, blame.Unreadable, blame.Gone,
	blame.TimedOut, blame.Aborted, blame.NotStarted, blame.Overdue, blame.Busy, blame.Empty, blame.BrokeOff, blame.Ended,
}

// message sends one of Envoy's messages, mostly the one that is due.
func (x *mainRandom) message() error {
	kind := pickOf(x.r, EventRequestHeaders, EventRequestBody, EventRequestTrailers, EventResponseHeaders, EventResponseBody, EventResponseTrailers)
	if x.r.IntN(5) > 0 {
		switch x.m.phase {
		case mainAwaitHeaders:
			kind = EventRequestHeaders
		case mainAwaitBody:
			kind = EventRequestBody
		case mainRouted:
			kind = EventResponseHeaders
		case mainStreaming, mainHolding:
			kind = pickOf(x.r, EventResponseBody, EventResponseBody, EventResponseTrailers)
		default:
			return nil
		}
	}
	ev := Event{Kind: kind, EndOfStream: x.r.IntN(3) > 0}
	switch kind {
	case EventRequestHeaders:
		ev.EndOfStream = x.r.IntN(20) == 0
		ev.FullDuplex, ev.AnswerDuplex = x.r.IntN(2) == 0, x.r.IntN(2) == 0
		ev.AnswerBodies = ev.AnswerDuplex
		ev.Headers = &wire.Headers{
			Method: pickOf(x.r, "POST", "POST", "POST", "POST", "GET"), Path: pickOf(x.r, "/v1/completions", "/v1/completions", "/v1/completions", "/v1/models", "/x"),
			AttemptCount: pickOf(x.r, "1", "2", "3"), Timeout: pickOf(x.r, "", "", "5000", "-1"),
		}
	case EventRequestBody:
		ev.Body = append(x.m.rules.Buffers.Borrow(200), pickOf(x.r, `{"model":"m","prompt":"hi"}`, `{"model":"m","prompt":"hi","stream":true}`, `{`)...)
	case EventResponseBody:
		x.came++
		ev.Body = strconv.AppendInt(x.m.rules.Buffers.Borrow(10), int64(x.came), 10)
	case EventResponseTrailers:
		x.came++
	case EventResponseHeaders:
		ev.Headers = &wire.Headers{Status: pickOf(x.r, "200", "200", "200", "404", "500", "503"), LocalReply: pickOf(x.r, "", "", "", "", "UF", "UC", "UT"), ContentType: pickOf(x.r, "", "text/event-stream")}
		ev.Answerer = pickOf(x.r, nil, nil, nil, &Answerer{}, &Answerer{Rank: worker.Rank{ID: 4}, Known: true})
	}
	return x.send(ev, fmt.Sprintf("message %d %+v", kind, ev.Headers))
}

func (x *mainRandom) one() error {
	switch n := x.r.IntN(12); {
	case n < 5:
		if !x.closed {
			return x.message()
		}
	case n < 7:
		if x.picking {
			return x.answerPick()
		}
		if x.prefilling {
			return x.answerPrefill()
		}
		if x.collecting {
			return x.answerCollect()
		}
		if x.routed > 0 && x.disaggregated && !x.ended {
			states := 4
			if x.m.plan != nil && x.m.plan.sent() {
				states = 1 // its end comes with its answer
			}
			r := Report{State: Started + State(x.r.IntN(states)), Reason: pickOf(x.r, randomReasons...), Status: pickOf(x.r, 200, 400, 429, 500)}
			x.ended = r.State == Ended
			return x.send(Event{Kind: EventLeg, Leg: r}, "leg "+r.State.String()+" "+string(r.Reason))
		}
	case n == 7:
		x.now = x.now.Add(pickOf(x.r, time.Millisecond, 300*time.Millisecond, 2*time.Second, 30*time.Second, 5*time.Minute))
		return x.timer()
	case n == 8:
		return x.send(Event{Kind: EventGone, Rank: worker.Rank{ID: pickOf[worker.ID](x.r, 3, 7)}, Whole: true, Left: x.r.IntN(2) == 0}, "gone")
	case n == 9 && x.r.IntN(3) == 0:
		return x.send(Event{Kind: EventDrain}, "drain")
	case n == 9 && x.r.IntN(2) == 0:
		return x.send(Event{Kind: pickOf(x.r, EventLogBroken, EventRuns)}, "the log breaks, or tells that the answer runs")
	case n == 10 && x.booked && x.r.IntN(2) == 0:
		return x.send(Event{Kind: EventLogged, Seen: pickOf(x.r, blame.Served, blame.BrokeOff, blame.ClientLeft, blame.Empty, blame.Expired), Reached: x.r.IntN(2) == 0}, "logged")
	case n == 10 && x.m.plan != nil && x.m.plan.AnswerToken != "":
		return x.send(Event{Kind: EventFound, Seen: pickOf(x.r, blame.Errored, blame.Empty, blame.Busy, blame.Rejected)}, "found")
	case n == 11 && x.r.IntN(3) == 0:
		return x.close()
	}
	return nil
}

// timer fires if a timer is due, and sometimes if none is: a timer that was stopped may
// have been on its way.
func (x *mainRandom) timer() error {
	if at := x.m.WakeAt(); !at.IsZero() && !at.After(x.now) || x.r.IntN(4) == 0 {
		return x.fire()
	}
	return nil
}

// fire sends EventTimer until no timer is due. Each one that is due goes off once.
func (x *mainRandom) fire() error {
	for range clocksOfAnAttempt {
		if err := x.send(Event{Kind: EventTimer}, "timer"); err != nil {
			return err
		}
		if at := x.m.WakeAt(); at.IsZero() || at.After(x.now) {
			return nil
		}
	}
	return x.fail("X8: a clock stays due, and the timer goes off for ever")
}

// clocksOfAnAttempt is how many times WakeAt chooses from: the timers and the deadline.
const clocksOfAnAttempt = 11

func (x *mainRandom) close() error {
	if x.closed {
		return nil
	}
	x.closed = true
	return x.send(Event{Kind: EventClosed}, "closed")
}

// settle brings what runs to its end: the pick is answered, the stream ends, and time
// passes. The prefill leg may never report its end.
func (x *mainRandom) settle() error {
	if x.picking {
		if err := x.answerPick(); err != nil {
			return err
		}
	}
	if err := x.close(); err != nil {
		return err
	}
	if x.prefilling {
		if err := x.answerPrefill(); err != nil {
			return err
		}
	}
	for range 1000 {
		if x.collecting {
			if err := x.answerCollect(); err != nil {
				return err
			}
		}
		at := x.m.WakeAt()
		if at.IsZero() {
			break
		}
		if at.After(x.now) {
			x.now = at
		}
		if err := x.fire(); err != nil {
			return err
		}
	}
	if x.m.phase != mainDone || x.decode != 0 || x.prefill != 0 {
		return x.fail("X1: at the end phase %s, %d decode and %d prefill bookings", x.m.phase, x.decode, x.prefill)
	}
	if x.finished != 1 {
		return x.fail("at the end %d outcomes", x.finished)
	}
	if x.held && !x.taken && x.collects == 0 || x.m.handover.held() && (x.m.far.well || !x.m.plan.Kind.Holds()) {
		return x.fail("X5: nobody takes what prefill holds")
	}
	return nil
}

func runMainRandom(seed uint64) error {
	r := rand.New(rand.NewPCG(seed, 0))
	rules := testRules()
	rules.HoldFirst = pickOf(r, true, true, false)
	rules.Hold, rules.Fallback = r.IntN(4) > 0, r.IntN(2) == 0
	x := &mainRandom{r: r, m: mainOf(rules, Way{}), now: testStart}
	x.m.way = pickOf(r, Way{}, Way{Sends: true}, Way{Speaks: Gateway}, Way{Speaks: PlainGateway})
	for range 4 + r.IntN(40) {
		if err := x.one(); err != nil {
			return err
		}
	}
	return x.settle()
}

func TestMainLegsKeepTheirInvariantsInAnyOrderOfEvents(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for i := range uint64(randomRuns) {
		require.NoError(t, runMainRandom(seed+i), "seed %d", seed+i)
	}
}

// prefillRandom is a simple prefillStream.
type prefillRandom struct {
	r      *rand.Rand
	l      *Prefill
	closed bool
	deaf   bool
	told   State
	owes   bool // the owner waits for Well or Failed: the leg has started and was not aborted
	story  []string
}

func (x *prefillRandom) send(ev Event, t *Ticket, name string) error {
	was := x.l.phase
	effects := x.l.Step(testStart, &ev, t)
	var ops []string
	for i := range effects {
		ops = append(ops, effects[i].Op.String()+" "+effects[i].Report.State.String())
	}
	x.story = append(x.story, fmt.Sprintf("%-26s %s → %s: %s", name, was, x.l.phase, strings.Join(ops, ", ")))
	for i := range effects {
		if what := x.check(&effects[i]); what != "" {
			return fmt.Errorf("%s\n%s", what, strings.Join(x.story, "\n"))
		}
	}
	return nil
}

func (x *prefillRandom) check(e *Effect) string {
	switch e.Op {
	case OpContinue: // the runner drops those after an ImmediateResponse: see Prefill.pass
		if x.closed {
			return "X4: an answer after the end"
		}
	case OpRoute, OpImmediate:
		if x.closed || x.deaf {
			return "X2, X4: " + e.Op.String() + " after the end"
		}
		if x.deaf = e.Op == OpImmediate; e.Op == OpRoute && x.told != Started {
			return "X3: routed, but not started"
		}
	case OpReport:
		if e.Report.State <= x.told || x.told == Well && e.Report.State == Failed {
			return "a report goes back from " + x.told.String()
		}
		if e.Report.State == Ended && x.owes {
			return "the end is told without a verdict"
		}
		x.told = e.Report.State
		x.owes = x.told == Started
	}
	return ""
}

func (x *prefillRandom) message() error {
	kind := pickOf(x.r, EventRequestHeaders, EventRequestBody, EventRequestTrailers, EventResponseHeaders, EventResponseBody, EventResponseTrailers)
	if x.r.IntN(5) > 0 {
		switch x.l.phase {
		case prefillAwaitHeaders:
			kind = EventRequestHeaders
		case prefillAwaitBody:
			kind = EventRequestBody
		case prefillRouted:
			kind = EventResponseHeaders
		case prefillAnswering:
			kind = EventResponseBody
		}
	}
	if x.deaf && kind < EventResponseHeaders && x.r.IntN(2) == 0 {
		return nil
	}
	ev := Event{Kind: kind, EndOfStream: x.r.IntN(2) == 0}
	var t *Ticket
	switch kind {
	case EventRequestHeaders:
		ev.EndOfStream, ev.FullDuplex = x.r.IntN(20) == 0, x.r.IntN(2) == 0
		ev.Headers = &wire.Headers{Path: pickOf(x.r, "/v1/completions", "/v1/completions", "/x")}
		t = &Ticket{HandOff: sglang.HandOff.Together, Endpoint: "10.0.0.7:80", Leg: prefill.Leg{Deadline: testStart.Add(time.Minute)}, Fail: pickOf(x.r, nil, nil, nil, &FailLegLate)}
	case EventRequestBody:
		ev.Body = append(x.l.rules.Buffers.Borrow(200), pickOf(x.r, `{"model":"m","prompt":"hi"}`, `{"model":"m","prompt":"hi"}`, `{`)...)
	case EventResponseHeaders:
		ev.EndOfStream = x.r.IntN(4) == 0
		ev.Headers = &wire.Headers{Status: pickOf(x.r, "200", "200", "200", "302", "404", "429", "500"), LocalReply: pickOf(x.r, "", "", "", "UF", "UT")}
	case EventResponseBody:
		ev.Body = append(x.l.rules.Buffers.Borrow(100), pickOf(x.r, `{"choices":[{"finish_reason":"length"}]}`, `{"choices":[{"finish_reason":"abort"}]}`, `{`)...)
	}
	return x.send(ev, t, fmt.Sprintf("message %d %+v", kind, ev.Headers))
}

func runPrefillRandom(seed uint64) error {
	x := &prefillRandom{r: rand.New(rand.NewPCG(seed, 1)), l: &Prefill{rules: testRules()}}
	for range 2 + x.r.IntN(12) {
		var err error
		if x.r.IntN(12) == 0 {
			x.owes = false // the owner that aborts a leg has judged it
			err = x.send(Event{Kind: EventAbort, Leg: Report{State: Failed, Reason: blame.Overdue}}, nil, "abort")
		} else {
			err = x.message()
		}
		if err != nil {
			return err
		}
	}
	x.closed = true
	if err := x.send(Event{Kind: EventClosed}, nil, "closed"); err != nil {
		return err
	}
	if x.told != None && x.told != Ended {
		return fmt.Errorf("the owner was last told %s\n%s", x.told, strings.Join(x.story, "\n"))
	}
	return nil
}

func TestPrefillLegsKeepTheirInvariantsInAnyOrderOfEvents(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for i := range uint64(randomRuns) {
		require.NoError(t, runPrefillRandom(seed+i), "seed %d", seed+i)
	}
}
