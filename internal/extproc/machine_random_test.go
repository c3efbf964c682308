package extproc

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
	"github.com/seed-60ae5743/baton/internal/extproc/wire"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/prefill/handoff"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// The tests here send random events, in orders that no Envoy would send too,
// and hold the machines to X1 to X4 of the package documentation. What the
// stream promises the machine is kept: one answer for each opPick, no message
// of Envoy after evClosed, a timer no sooner than wakeAt.

const randomRuns = 50_000

// mainRandom is a toy of mainStream: it counts what it is told to do.
type mainRandom struct {
	r   *rand.Rand
	m   *mainLeg
	now time.Time

	picking       bool // opPick is not answered
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
	prefilling    bool // opPrefill is not answered
	held          bool // prefill's answer says that it holds KV
	taken         bool // decode has answered with it
	collecting    bool // opCollect is not answered
	collects      int
	relayed       bool
	came, passed  int // pieces of the answer
	story         []string
}

func (x *mainRandom) fail(format string, a ...any) error {
	return fmt.Errorf("%s\n%s", fmt.Sprintf(format, a...), strings.Join(x.story, "\n"))
}

func (x *mainRandom) send(ev event, name string) error {
	was, held := x.m.phase, x.m.handover.held()
	effects := x.m.step(x.now, &ev)
	mirrored := x.m.plan != nil && x.m.plan.kind.Holds()
	x.held = x.held || mirrored && x.m.far.well
	if held && !x.m.handover.held() && x.collects == 0 && !x.seenBy(&ev, was, effects) && !(mirrored && !x.m.far.well) {
		return x.fail("X5: %s in %s: what prefill holds is forgotten", name, was)
	}
	var ops []string
	for i := range effects {
		ops = append(ops, effects[i].op.String())
	}
	x.story = append(x.story, fmt.Sprintf("+%-8s %-26s %s → %s [%s]: %s", x.now.Sub(testStart), name, was, x.m.phase, x.m.far.state, strings.Join(ops, ", ")))
	for i := range effects {
		if err := x.check(&effects[i]); err != nil {
			return err
		}
	}
	if ev.kind == evFound && !slices.Contains(ops, "pass") && !slices.Contains(ops, "immediate") {
		return x.fail("X7: nobody says whether the answer goes on")
	}
	return nil
}

// seenBy reports whether the hand-off needs no collecting: decode has seen it, or
// nobody can know any more.
func (x *mainRandom) seenBy(ev *event, was mainPhase, effects []effect) bool {
	for i := range effects {
		if effects[i].op == opCollect {
			return true
		}
	}
	switch ev.kind {
	case evFound: // of an answer whose head has not come
		x.taken = true
		return true
	case evResponseHeaders:
		x.taken = ev.headers.LocalReply == "" || x.m.way.plain || reached(ev.headers.LocalReply)
		return x.taken
	case evLogged:
		x.taken = ev.reached
		return x.taken
	case evClosed: // the log came first
		x.taken = x.m.logged.reached
		return x.taken
	case evTimer:
		x.taken = (was == mainLingering || was == mainEnded) && x.routed == 1 // the log has not come
		return x.taken
	}
	return false
}

func (x *mainRandom) check(e *effect) error {
	switch e.op {
	case opContinue, opRoute, opRouteHeaders, opRelay, opImmediate, opExtend, opModels:
		if x.closed || x.deaf {
			return x.fail("X2, X4: %s after the end", e.op.String())
		}
	}
	switch e.op {
	case opContinue:
		x.relayed = x.relayed || e.of == wire.ResponseHeaders                              // of an answer made before us
		if e.of == wire.ResponseBody && bytes.Contains(e.body, []byte(`data: {"error"`)) { // it is cut
			if !e.endOfStream || !x.relayed {
				return x.fail("X6: an error event is no end")
			}
		} else if e.of == wire.ResponseBody || e.of == wire.ResponseTrailers {
			if x.passed++; !x.relayed || e.of == wire.ResponseBody && string(e.body) != strconv.Itoa(x.passed) {
				return x.fail("X6: piece %d of the answer is %q, headers relayed: %t", x.passed, e.body, x.relayed)
			}
		}
	case opRelay:
		x.relayed = true
	case opRoute, opRouteHeaders:
		x.routed++
		if !x.booked || x.routed > 1 || x.decode != 1 || x.disaggregated != (x.prefill == 1) || x.prefilling {
			return x.fail("X3: routed with %d decode and %d prefill bookings", x.decode, x.prefill)
		}
	case opImmediate, opModels:
		x.immediates++
		x.deaf = true
	case opLeave:
		x.deaf = true
	case opPick:
		x.picking = true
		if x.decode != 0 || x.prefill != 0 || x.prefilling || (e.fail != nil) != (x.m.instead != nil) {
			return x.fail("X1: a pick with %d decode and %d prefill bookings", x.decode, x.prefill)
		}
	case opPrefill:
		x.prefilling = true
		if x.decode != 1 || x.prefill != 1 {
			return x.fail("X3: prefill is asked for with %d decode and %d prefill bookings", x.decode, x.prefill)
		}
	case opCollect:
		x.collecting = true
		if x.collects++; x.collects > 1 || !x.held || x.taken {
			return x.fail("X5: collected %d times, held %t, taken %t", x.collects, x.held, x.taken)
		}
	case opReleaseDecode:
		x.decode--
		if x.collecting {
			return x.fail("X1: decode is released while it collects")
		}
	case opReleasePrefill:
		x.prefill--
	case opFinish:
		x.finished++
	case opForget:
		if x.decode != 0 || x.prefill != 0 {
			return x.fail("X1: forgotten with %d decode and %d prefill bookings", x.decode, x.prefill)
		}
	}
	if x.decode < 0 || x.prefill < 0 || x.finished > 1 || x.immediates > 1 {
		return x.fail("X1, X2: decode %d, prefill %d, finished %d, immediates %d", x.decode, x.prefill, x.finished, x.immediates)
	}
	return nil
}

// answerPick is what decide does: exactly one answer, at any time.
func (x *mainRandom) answerPick() error {
	x.picking = false
	if x.r.IntN(5) == 0 {
		return x.send(event{kind: evRefused, failure: &failNoDecode}, "refused")
	}
	p := &plan{nonce: 7, decode: worker.Rank{ID: 3}, decodeAddr: "10.0.0.3:80", overdueAfter: 5 * time.Second, startWithin: time.Second, answerWithin: pickOf(x.r, 0, 3*time.Second), spare: spare{Prefill: x.r.IntN(2) == 0, Decode: x.r.IntN(2) == 0}}
	x.booked, x.decode, x.disaggregated = true, 1, false
	if x.m.instead == nil && !x.m.req.passes() && x.r.IntN(4) > 0 {
		x.disaggregated, x.prefill = true, 1
		p.disaggregated, p.prefill = true, worker.Rank{ID: 7}
		p.bootstrapHost, p.token = "10.0.0.7", "sealed"
		p.kind = pickOf(x.r, handoff.Rendezvous, handoff.NIXLPull, handoff.Mooncake)
		p.bootstrap = worker.Bootstrap{Host: "10.0.0.7", Port: 8998, EngineIDs: []string{"e"}}
		p.inHeaders = p.kind == handoff.Rendezvous && x.r.IntN(3) == 0
		p.decodeAlone = x.r.IntN(2) == 0
	}
	if x.m.looks() && x.r.IntN(2) == 0 {
		p.answerToken, p.looks = "sealed", true
	}
	return x.send(event{kind: evPicked, plan: p}, "picked")
}

// answerPrefill is what the plugin's own leg does: one answer, at any time.
func (x *mainRandom) answerPrefill() error {
	x.prefilling = false
	a := &legAnswer{status: 200, body: []byte(`{"choices":[{"text":"a","finish_reason":"length"}],"kv_transfer_params":{"remote_engine_id":"e"}}`)}
	x.held = true
	if x.r.IntN(3) == 0 {
		x.held = false
		a = pickOf(x.r,
			&legAnswer{status: 200, body: []byte(`{"choices":[{"text":"a","finish_reason":"stop"}],"kv_transfer_params":null}`)},
			&legAnswer{status: 200, body: []byte(`{"choices":[{"text":"a","finish_reason":"length"}]}`)},
			&legAnswer{status: 200, body: []byte(`{"choi`)},
			&legAnswer{status: 200, err: io.ErrUnexpectedEOF}, &legAnswer{canceled: true, err: io.EOF},
			&legAnswer{status: 503}, &legAnswer{status: 400, body: []byte("no")}, &legAnswer{status: 503, localReply: "UF"}, &legAnswer{err: io.EOF})
	}
	return x.send(event{kind: evPrefilled, answer: a}, fmt.Sprintf("prefilled %d held=%t", a.status, x.held))
}

func (x *mainRandom) answerCollect() error {
	x.collecting = false
	return x.send(event{kind: evCollected}, "collected")
}

func pickOf[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

var randomReasons = []blame.Sight{
	blame.Errored, blame.Rejected, blame.Unconnected, blame.Lost, blame.Failing, blame.Unreadable, blame.Gone,
	blame.TimedOut, blame.Aborted, blame.NotStarted, blame.Overdue, blame.Busy, blame.Empty, blame.BrokeOff, blame.Ended,
}

// message is one of Envoy's, the one that is due more often than others.
func (x *mainRandom) message() error {
	kind := pickOf(x.r, evRequestHeaders, evRequestBody, evRequestTrailers, evResponseHeaders, evResponseBody, evResponseTrailers)
	if x.r.IntN(5) > 0 {
		switch x.m.phase {
		case mainAwaitHeaders:
			kind = evRequestHeaders
		case mainAwaitBody:
			kind = evRequestBody
		case mainRouted:
			kind = evResponseHeaders
		case mainStreaming, mainHolding:
			kind = pickOf(x.r, evResponseBody, evResponseBody, evResponseTrailers)
		default:
			return nil
		}
	}
	ev := event{kind: kind, endOfStream: x.r.IntN(3) > 0}
	switch kind {
	case evRequestHeaders:
		ev.endOfStream = x.r.IntN(20) == 0
		ev.fullDuplex, ev.answerDuplex = x.r.IntN(2) == 0, x.r.IntN(2) == 0
		ev.answerBodies = ev.answerDuplex
		ev.headers = &wire.Headers{
			Method: pickOf(x.r, "POST", "POST", "POST", "POST", "GET"), Path: pickOf(x.r, "/v1/completions", "/v1/completions", "/v1/completions", "/v1/models", "/x"),
			AttemptCount: pickOf(x.r, "1", "2", "3"), Timeout: pickOf(x.r, "", "", "5000", "-1"),
		}
	case evRequestBody:
		ev.body = append(x.m.rules.buffers.Borrow(200), pickOf(x.r, `{"model":"m","prompt":"hi"}`, `{"model":"m","prompt":"hi","stream":true}`, `{`)...)
	case evResponseBody:
		x.came++
		ev.body = strconv.AppendInt(x.m.rules.buffers.Borrow(10), int64(x.came), 10)
	case evResponseTrailers:
		x.came++
	case evResponseHeaders:
		ev.headers = &wire.Headers{Status: pickOf(x.r, "200", "200", "200", "404", "500", "503"), LocalReply: pickOf(x.r, "", "", "", "", "UF", "UC", "UT"), ContentType: pickOf(x.r, "", "text/event-stream")}
		ev.answerer = pickOf(x.r, nil, nil, nil, &answerer{}, &answerer{rank: worker.Rank{ID: 4}, known: true})
	}
	return x.send(ev, fmt.Sprintf("message %d %+v", kind, ev.headers))
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
			r := legReport{state: legStarted + legState(x.r.IntN(4)), reason: pickOf(x.r, randomReasons...), status: pickOf(x.r, 200, 400, 429, 500)}
			x.ended = r.state == legEnded
			return x.send(event{kind: evLeg, leg: r}, "leg "+r.state.String()+" "+string(r.reason))
		}
	case n == 7:
		x.now = x.now.Add(pickOf(x.r, time.Millisecond, 300*time.Millisecond, 2*time.Second, 30*time.Second, 5*time.Minute))
		return x.timer()
	case n == 8:
		return x.send(event{kind: evGone, rank: worker.Rank{ID: pickOf[worker.ID](x.r, 3, 7)}, whole: true, left: x.r.IntN(2) == 0}, "gone")
	case n == 9 && x.r.IntN(3) == 0:
		return x.send(event{kind: evDrain}, "drain")
	case n == 10 && x.booked && x.r.IntN(2) == 0:
		return x.send(event{kind: evLogged, seen: pickOf(x.r, blame.Served, blame.BrokeOff, blame.ClientLeft, blame.Empty, blame.Expired), reached: x.r.IntN(2) == 0}, "logged")
	case n == 10 && x.m.plan != nil && x.m.plan.answerToken != "":
		return x.send(event{kind: evFound, seen: pickOf(x.r, blame.Errored, blame.Empty, blame.Busy, blame.Rejected)}, "found")
	case n == 11 && x.r.IntN(3) == 0:
		return x.close()
	}
	return nil
}

// timer fires if it is due, sometimes also when it is not: a timer that was
// stopped may have been on its way.
func (x *mainRandom) timer() error {
	if at := x.m.wakeAt(); !at.IsZero() && !at.After(x.now) || x.r.IntN(4) == 0 {
		return x.fire()
	}
	return nil
}

// fire lets the timer go off until no clock is due: each of them goes off once.
func (x *mainRandom) fire() error {
	for range clocksOfAnAttempt {
		if err := x.send(event{kind: evTimer}, "timer"); err != nil {
			return err
		}
		if at := x.m.wakeAt(); at.IsZero() || at.After(x.now) {
			return nil
		}
	}
	return x.fail("X8: a clock stays due, and the timer goes off for ever")
}

// clocksOfAnAttempt are those of wakeAt.
const clocksOfAnAttempt = 7

func (x *mainRandom) close() error {
	if x.closed {
		return nil
	}
	x.closed = true
	return x.send(event{kind: evClosed}, "closed")
}

// settle lets what is under way come to its end: the pick is answered, the
// stream ends, and time passes. The leg may never say that it is over.
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
		at := x.m.wakeAt()
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
	if x.held && !x.taken && x.collects == 0 || x.m.handover.held() && (x.m.far.well || !x.m.plan.kind.Holds()) {
		return x.fail("X5: nobody takes what prefill holds")
	}
	return nil
}

func runMainRandom(seed uint64) error {
	r := rand.New(rand.NewPCG(seed, 0))
	rules := testRules()
	rules.holdFirst = pickOf(r, true, true, false)
	rules.hold, rules.fallback = r.IntN(4) > 0, r.IntN(2) == 0
	x := &mainRandom{r: r, m: mainOf(rules, way{}), now: testStart}
	x.m.way = pickOf(r, way{}, way{}, way{gateway: true}, way{gateway: true, plain: true})
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

// prefillRandom is a toy of prefillStream.
type prefillRandom struct {
	r      *rand.Rand
	l      *prefillLeg
	closed bool
	deaf   bool
	told   legState
	owes   bool // the owner waits for well or failed: the leg started and was not aborted
	story  []string
}

func (x *prefillRandom) send(ev event, t *ticket, name string) error {
	was := x.l.phase
	effects := x.l.step(testStart, &ev, t)
	var ops []string
	for i := range effects {
		ops = append(ops, effects[i].op.String()+" "+effects[i].report.state.String())
	}
	x.story = append(x.story, fmt.Sprintf("%-26s %s → %s: %s", name, was, x.l.phase, strings.Join(ops, ", ")))
	for i := range effects {
		if what := x.check(&effects[i]); what != "" {
			return fmt.Errorf("%s\n%s", what, strings.Join(x.story, "\n"))
		}
	}
	return nil
}

func (x *prefillRandom) check(e *effect) string {
	switch e.op {
	case opContinue: // after an ImmediateResponse the stream drops it: see prefillLeg.pass
		if x.closed {
			return "X4: an answer after the end"
		}
	case opRoute, opImmediate:
		if x.closed || x.deaf {
			return "X2, X4: " + e.op.String() + " after the end"
		}
		if x.deaf = e.op == opImmediate; e.op == opRoute && x.told != legStarted {
			return "X3: routed, but not started"
		}
	case opReport:
		if e.report.state <= x.told || x.told == legWell && e.report.state == legFailed {
			return "a report goes back from " + x.told.String()
		}
		if e.report.state == legEnded && x.owes {
			return "the end is told without a verdict"
		}
		x.told = e.report.state
		x.owes = x.told == legStarted
	}
	return ""
}

func (x *prefillRandom) message() error {
	kind := pickOf(x.r, evRequestHeaders, evRequestBody, evRequestTrailers, evResponseHeaders, evResponseBody, evResponseTrailers)
	if x.r.IntN(5) > 0 {
		switch x.l.phase {
		case prefillAwaitHeaders:
			kind = evRequestHeaders
		case prefillAwaitBody:
			kind = evRequestBody
		case prefillRouted:
			kind = evResponseHeaders
		case prefillAnswering:
			kind = evResponseBody
		}
	}
	if x.deaf && kind < evResponseHeaders && x.r.IntN(2) == 0 {
		return nil
	}
	ev := event{kind: kind, endOfStream: x.r.IntN(2) == 0}
	var t *ticket
	switch kind {
	case evRequestHeaders:
		ev.endOfStream, ev.fullDuplex = x.r.IntN(20) == 0, x.r.IntN(2) == 0
		ev.headers = &wire.Headers{Path: pickOf(x.r, "/v1/completions", "/v1/completions", "/x")}
		t = &ticket{endpoint: "10.0.0.7:80", leg: prefill.Leg{Deadline: testStart.Add(time.Minute)}, fail: pickOf(x.r, nil, nil, nil, &failLegLate)}
	case evRequestBody:
		ev.body = append(x.l.rules.buffers.Borrow(200), pickOf(x.r, `{"model":"m","prompt":"hi"}`, `{"model":"m","prompt":"hi"}`, `{`)...)
	case evResponseHeaders:
		ev.endOfStream = x.r.IntN(4) == 0
		ev.headers = &wire.Headers{Status: pickOf(x.r, "200", "200", "200", "302", "404", "429", "500"), LocalReply: pickOf(x.r, "", "", "", "UF", "UT")}
	case evResponseBody:
		ev.body = append(x.l.rules.buffers.Borrow(100), pickOf(x.r, `{"choices":[{"finish_reason":"length"}]}`, `{"choices":[{"finish_reason":"abort"}]}`, `{`)...)
	}
	return x.send(ev, t, fmt.Sprintf("message %d %+v", kind, ev.headers))
}

func runPrefillRandom(seed uint64) error {
	x := &prefillRandom{r: rand.New(rand.NewPCG(seed, 1)), l: &prefillLeg{rules: testRules()}}
	for range 2 + x.r.IntN(12) {
		var err error
		if x.r.IntN(12) == 0 {
			x.owes = false // its owner has judged it
			err = x.send(event{kind: evAbort, leg: legReport{state: legFailed, reason: blame.Overdue}}, nil, "abort")
		} else {
			err = x.message()
		}
		if err != nil {
			return err
		}
	}
	x.closed = true
	if err := x.send(event{kind: evClosed}, nil, "closed"); err != nil {
		return err
	}
	if x.told != legNone && x.told != legEnded {
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
