package leg

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/internal/engine/sglang"
	"github.com/seed-60ae5743/baton/internal/engine/trtllm"
	"github.com/seed-60ae5743/baton/internal/engine/vllm"
	"github.com/seed-60ae5743/baton/internal/engine/vllmmooncake"
	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// The scenario files drive a machine as its stream does. Verbs of testdata/main:
//
//	new [attempt=N] [full-duplex] [no-hold] [first=hold|off] [fallback] [gateway] [plain] [replicas] [sends] [lease=D]
//	request-headers [method=POST] [path=…] [eos] [length=N] [encoded] [timeout=MS] [start=D]   D: so long ago
//	     [answers] [answers-duplex]      the filter sends the bodies of answers, or streams them
//	     [strange=NAME]                  a header that only routers may set
//	     [accept-encoding=NAME]
//	request-body [more]          the input is the body
//	request-trailers
//	picked [aggregated] [in-headers] [overdue=D] [answer=D] [dp=N] [explain] [prefill-named] [decode-named]
//	     [kind=vllm|trtllm|mooncake|sidecar] [decode-alone] [sent]
//	     [lone]                          no other worker could be tried
//	     [suspects=ID:CHARGE,…]          of earlier attempts
//	     [lost=N]                        workers that the request has lost
//	     [look]                          another stream reads decode's first events
//	refused code=not_ready
//	     [isl=N] [exact] [told=N]        tokens of the prompt; what an earlier attempt was told by worker 8
//	leg STATE [reason=R] [status=N] [answer=TEXT] [odd] [retry-after=TEXT] [location=TEXT] [prompt=N [output=N]]
//	found seen=SIGHT [odd]       what the other stream has read
//	response-headers status=N [local=FLAGS] [eos] [odd] [events] [encoded] [answered=ID/RANK or unknown]
//	                             the input is what has come of an error's body
//	response-body [more] [ends]  the input is the body; ends: and an empty line
//	response-trailers
//	gone [worker=ID] [aside] | drain | logged [seen=SIGHT] [unreached] | log-broken | runs
//	closed
//	after D                      time passes; the timer fires if it is due
//
//	prefilled [status=N] [cut] [long] [unread] [canceled] [local=FLAGS]   the end of a prefill leg of our own; the input is its answer
//	     [made=D]                        the worker made it so long ago
//	collected                    a collecting leg has ended
//	stale                        the hand-off was too old to be sent
//
// Verbs of testdata/prefill: new, admit [refused=CODE] [deadline=D] [path=…] [eos],
// request-body, request-trailers, response-headers [length=N] [retry-after=TEXT],
// response-body, response-trailers, abort, closed [ending].
//
// The output is the phase and the effects in order. `make golden` writes it anew.

func dur(t *testing.T, s string) time.Duration {
	d, err := time.ParseDuration(s)
	require.NoError(t, err)
	return d
}

func reportArgs(t *testing.T, d *datadriven.TestData) Report {
	r := Report{Reason: blame.Sight(str(d, "reason", "")), Status: num(t, d, "status", 0), Odd: d.HasArg("odd"), RetryAfter: str(d, "retry-after", ""), Location: str(d, "location", "")}
	if a := str(d, "answer", ""); a != "" {
		r.Answer = []byte(a)
	}
	if prompt := num(t, d, "prompt", -1); prompt >= 0 {
		r.Told = Told{Reading: ReadUsage, Prompt: int64(prompt), Output: int64(num(t, d, "output", 1)), Choices: 1}
	}
	for s, name := range stateNames {
		if d.HasArg(name) {
			r.State = State(s)
		}
	}
	return r
}

func failureByCode(t *testing.T, code string) *Failure {
	f := FailureOf(code)
	require.Equal(t, code, f.Code)
	return f
}

type mainDriver struct {
	m   *Main
	now time.Time
}

func TestMainLegScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/main", func(t *testing.T, path string) {
		var dr mainDriver
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return dr.run(t, d) })
	})
}

func (dr *mainDriver) run(t *testing.T, d *datadriven.TestData) string {
	ev := Event{Kind: EventTimer}
	switch d.Cmd {
	case "new":
		r := testRules()
		r.Hold, r.Fallback = !d.HasArg("no-hold"), d.HasArg("fallback")
		r.ReasonHeader, r.Replicas = "x-dropped", d.HasArg("replicas")
		r.CachedHeader = d.HasArg("cached")
		r.HoldFirst = str(d, "first", "hold") == "hold"
		r.Lease = dur(t, str(d, "lease", "0s"))
		w := Way{Sends: d.HasArg("sends")}
		switch {
		case d.HasArg("plain"):
			w.Speaks = PlainGateway
		case d.HasArg("gateway"):
			w.Speaks = Gateway
		}
		dr.m, dr.now = mainOf(r, w), testStart
		dr.m.req.fullDuplex = d.HasArg("full-duplex")
		dr.m.req.Attempt = num(t, d, "attempt", 1)
		return "phase: " + dr.m.phase.String() + "\n"
	case "request-headers":
		ev = Event{Kind: EventRequestHeaders, EndOfStream: d.HasArg("eos"), FullDuplex: dr.m.req.fullDuplex}
		ev.AnswerDuplex = d.HasArg("answers-duplex")
		ev.AnswerBodies = ev.AnswerDuplex || d.HasArg("answers")
		ev.Headers = &wire.Headers{
			Method: str(d, "method", "POST"), Path: str(d, "path", "/v1/completions"),
			Length: wire.LengthOf(str(d, "length", "")), Timeout: str(d, "timeout", ""),
			Encoded:      d.HasArg("encoded"),
			AttemptCount: strconv.Itoa(dr.m.req.Attempt), AcceptEncoding: str(d, "accept-encoding", ""),
		}
		if name := str(d, "strange", ""); name != "" {
			ev.Headers.Strange = []string{name}
		}
		if ago := str(d, "start", ""); ago != "" {
			ev.Received = dr.now.Add(-dur(t, ago))
			ev.Headers.Start = millis(ev.Received)
		}
	case "request-body":
		ev = Event{Kind: EventRequestBody, Body: []byte(strings.TrimSuffix(d.Input, "\n")), EndOfStream: !d.HasArg("more")}
	case "request-trailers":
		ev = Event{Kind: EventRequestTrailers}
	case "picked":
		ev = Event{Kind: EventPicked, Plan: testPlan(t, d)}
	case "refused":
		ev = Event{Kind: EventRefused, Failure: failureByCode(t, str(d, "code", "")), Wait: d.HasArg("wait")}
	case "leg":
		ev = Event{Kind: EventLeg, Leg: reportArgs(t, d)}
	case "prefilled":
		ev = Event{Kind: EventPrefilled, Answer: answerArgs(t, d)}
		if ago := str(d, "made", ""); ago != "" {
			ev.Answer.Made = dr.now.Add(-dur(t, ago))
		}
	case "stale":
		ev = Event{Kind: EventStale}
	case "collected":
		ev = Event{Kind: EventCollected}
	case "response-headers":
		ev = Event{Kind: EventResponseHeaders, EndOfStream: d.HasArg("eos"), Headers: &wire.Headers{Status: str(d, "status", "200"), LocalReply: str(d, "local", ""), Encoded: d.HasArg("encoded")}}
		ev.Odd, ev.Error = d.HasArg("odd"), []byte(d.Input)
		ev.Headers.Length.N = int64(len(d.Input))
		if d.HasArg("events") {
			ev.Headers.ContentType = "text/event-stream; charset=utf-8"
		}
		ev.Answerer = answererArg(t, str(d, "answered", ""))
	case "response-body":
		ev = Event{Kind: EventResponseBody, Body: []byte(strings.TrimSuffix(d.Input, "\n")), EndOfStream: !d.HasArg("more")}
		if d.HasArg("ends") {
			ev.Body = append(ev.Body, "\n\n"...)
		}
	case "response-trailers":
		ev = Event{Kind: EventResponseTrailers}
	case "found":
		ev = Event{Kind: EventFound, Seen: blame.Sight(str(d, "seen", "")), Odd: d.HasArg("odd")}
	case "gone":
		ev = Event{Kind: EventGone, Rank: worker.Rank{ID: worker.ID(num(t, d, "worker", 7))}, Whole: true, Left: !d.HasArg("aside")}
	case "drain":
		ev = Event{Kind: EventDrain}
	case "logged":
		ev = Event{Kind: EventLogged, Seen: blame.Sight(str(d, "seen", string(blame.Served))), Reached: !d.HasArg("unreached")}
		ev.Status = num(t, d, "status", 0)
	case "stalled":
		ev = Event{Kind: EventStalled, Bytes: uint64(num(t, d, "bytes", 0))}
	case "log-broken":
		ev = Event{Kind: EventLogBroken}
	case "runs":
		ev = Event{Kind: EventRuns}
	case "closed":
		ev = Event{Kind: EventClosed}
	case "after":
		return dr.after(dur(t, d.CmdArgs[0].Key), d.HasArg("still"), d.HasArg("busy"))
	default:
		d.Fatalf(t, "unknown verb %q", d.Cmd)
	}
	effects := dr.m.Step(dr.now, &ev)
	return "phase: " + dr.m.phase.String() + "\n" + textOf(effects)
}

// after lets time pass: each timer goes off at its time, but if the process stands still all of
// them do so at the end. In a busy pool no work is done twice.
func (dr *mainDriver) after(d time.Duration, still, busy bool) string {
	until, said := dr.now.Add(d), "no timer is due\n"
	for range 100 {
		at := dr.m.WakeAt()
		if at.IsZero() || at.After(until) {
			break
		}
		dr.now = at
		if still {
			dr.now = until
		}
		ev := Event{Kind: EventTimer}
		ev.Repeat = dr.m.WouldRepeat(dr.now, &ev) && !busy
		effects := textOf(dr.m.Step(dr.now, &ev))
		switch {
		case said == "no timer is due\n", said == "effects: none\n":
			said = effects
		case effects != "effects: none\n":
			said += effects
		}
	}
	dr.now = until
	return "phase: " + dr.m.phase.String() + "\n" + said
}

func answererArg(t *testing.T, s string) *Answerer {
	switch s {
	case "":
		return nil
	case "unknown":
		return &Answerer{}
	}
	id, dp, _ := strings.Cut(s, "/")
	n, err := worker.ParseID(id)
	require.NoError(t, err)
	rank, err := strconv.ParseUint(dp, 10, 32)
	require.NoError(t, err)
	return &Answerer{Rank: worker.Rank{ID: n, DPRank: worker.DPRank(rank)}, Known: true}
}

func testPlan(t *testing.T, d *datadriven.TestData) *Plan {
	p := &Plan{
		Nonce: 77, Decode: worker.Rank{ID: 3, DPRank: 1}, DecodeAddr: "10.0.0.3:30000",
		DecodeDPSize: uint32(num(t, d, "dp", 1)), OverdueAfter: dur(t, str(d, "overdue", "5s")),
		StartWithin: time.Second, AnswerWithin: dur(t, str(d, "answer", "0s")), GapWithin: dur(t, str(d, "gap", "0s")),
		Spare: Spare{Prefill: !d.HasArg("lone"), Decode: !d.HasArg("lone")}, Lost: num(t, d, "lost", 0),
		Expected: Expected{Tokens: int64(num(t, d, "isl", 0)), Exact: d.HasArg("exact"), Told: int64(num(t, d, "told", 0)), By: worker.Rank{ID: 8}},
	}
	for _, x := range strings.FieldsFunc(str(d, "suspects", ""), func(r rune) bool { return r == ',' }) {
		id, charge, _ := strings.Cut(x, ":")
		n, err := strconv.Atoi(id)
		require.NoError(t, err, d.Pos)
		for c := blame.None; c <= blame.Slow; c++ {
			if strings.ReplaceAll(c.String(), " ", "-") == charge {
				p.Suspects, _ = p.Suspects.And(blame.Suspect[worker.Rank]{Worker: worker.Rank{ID: worker.ID(n)}, Charge: c})
			}
		}
	}
	if d.HasArg("look") {
		p.AnswerToken, p.Looks = "sealed too", true
	}
	if d.HasArg("explain") {
		p.Explain = "{}"
	}
	p.NamesResponse = d.HasArg("names")
	if !d.HasArg("aggregated") {
		p.Disaggregated, p.Prefill = true, worker.Rank{ID: 7}
		p.Bootstrap, p.Room = worker.Bootstrap{Host: "10.0.0.7", Port: 8998}, 42
		p.Token, p.PrefillAddr = "sealed", "10.0.0.7:30000"
		p.InHeaders = d.HasArg("in-headers")
		p.PrefillNamed, p.DecodeNamed = d.HasArg("prefill-named"), d.HasArg("decode-named")
		p.DecodeAlone, p.HandoffID = d.HasArg("decode-alone"), 1<<42+5
		switch str(d, "kind", "") {
		case "vllm":
			p.Kind = vllm.HandOff
		case "trtllm":
			p.Kind = trtllm.HandOff
		case "sidecar":
			p.Kind, p.Token = engines.Sidecar, ""
		case "mooncake":
			p.Kind, p.Model = vllmmooncake.HandOff, "m"
			p.Bootstrap = worker.Bootstrap{Host: "10.0.0.7", Port: 8998, EngineIDs: []string{"e"}}
		default:
			p.Kind = sglang.HandOff
		}
		p.SentBeside = d.HasArg("sent")
	}
	return p
}

func answerArgs(t *testing.T, d *datadriven.TestData) *OwnAnswer {
	a := &OwnAnswer{
		Status: num(t, d, "status", 200), LocalReply: str(d, "local", ""), Canceled: d.HasArg("canceled"),
		Body: []byte(strings.TrimSuffix(d.Input, "\n")), Why: str(d, "why", ""), Unread: d.HasArg("unread"),
	}
	switch {
	case d.HasArg("cut"), a.Why != "":
		a.Err = io.ErrUnexpectedEOF
	case d.HasArg("long"):
		a.Err = ErrLong
	}
	return a
}

// textOf prints effects in the form of the scenario files.
func textOf(effects []Effect) string {
	if len(effects) == 0 {
		return "effects: none\n"
	}
	var b strings.Builder
	for i := range effects {
		e := &effects[i]
		b.WriteString(e.Op.String())
		switch e.Op {
		case OpContinue:
			fmt.Fprintf(&b, " %s", [...]string{"", "request headers", "request body", "request trailers", "response headers", "response body", "response trailers"}[e.Of])
			if e.Body != nil {
				fmt.Fprintf(&b, " %q end=%t", e.Body, e.EndOfStream)
			}
		case OpRoute, OpRouteHeaders, OpRelay, OpPrefill, OpCollect:
			if e.Gap > 0 {
				fmt.Fprintf(&b, "\n  gap %s", e.Gap)
			}
			if !e.Until.IsZero() {
				fmt.Fprintf(&b, " until %s", e.Until.Sub(testStart))
			}
			if e.Trailers {
				b.WriteString(" with trailers")
			}
			for _, s := range e.Set {
				fmt.Fprintf(&b, "\n  set %s: %s", s.Name, s.Value)
			}
			for _, s := range e.Remove {
				fmt.Fprintf(&b, "\n  remove %s", s)
			}
			if e.Body != nil {
				fmt.Fprintf(&b, "\n  body %s", e.Body)
			}
		case OpImmediate:
			fmt.Fprintf(&b, " %d", e.Imm.Status)
			for _, s := range e.Imm.Headers {
				fmt.Fprintf(&b, " %s=%s", s.Name, s.Value)
			}
			fmt.Fprintf(&b, "\n  %s", e.Imm.Body)
		case OpPick:
			if e.Fail != nil {
				fmt.Fprintf(&b, " one worker instead of %s", e.Fail.Code)
			}
		case OpExtend:
			fmt.Fprintf(&b, " %s", e.Wait)
		case OpFound:
			fmt.Fprintf(&b, " %s", e.Found)
		}
		switch e.Op {
		case OpPrefill:
			fmt.Fprintf(&b, "\n  within %s", e.Wait)
		case OpReport, OpMark, OpAbortLeg:
			fmt.Fprintf(&b, " %s", e.Report.State)
			if e.Report.Reason != "" {
				fmt.Fprintf(&b, " reason=%s", e.Report.Reason)
			}
			if e.Report.Status != 0 {
				fmt.Fprintf(&b, " status=%d", e.Report.Status)
			}
			if e.Report.Said != "" {
				fmt.Fprintf(&b, " (%s)", e.Report.Said)
			}
			if e.Report.Proof != "" && e.Report.Proof != NoUsage {
				fmt.Fprintf(&b, " proof=%s", e.Report.Proof)
			}
		case OpServed:
			fmt.Fprintf(&b, " by %s", e.Rank)
		case OpPairFailed, OpPairServed:
			fmt.Fprintf(&b, " %s, %s", e.Rank, e.Other)
		case OpSuspect:
			fmt.Fprintf(&b, " %s", e.Rank)
		case OpCharge:
			fmt.Fprintf(&b, " %s: %s", e.Rank, e.Charge)
			if e.Proven {
				b.WriteString(", proven")
			}
		case OpFinish:
			fmt.Fprintf(&b, " %s", e.Outcome)
			if e.Fail != nil {
				fmt.Fprintf(&b, " %s", e.Fail.Code)
				if e.Fail.Said != "" {
					fmt.Fprintf(&b, " (%s)", e.Fail.Said)
				}
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

type prefillDriver struct {
	l    *Prefill
	now  time.Time
	fdup bool
}

func TestPrefillLegScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/prefill", func(t *testing.T, path string) {
		var dr prefillDriver
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return dr.run(t, d) })
	})
}

func (dr *prefillDriver) run(t *testing.T, d *datadriven.TestData) string {
	var ev Event
	var tk *Ticket
	switch d.Cmd {
	case "new":
		dr.l, dr.now, dr.fdup = &Prefill{rules: testRules()}, testStart, d.HasArg("full-duplex")
		return "phase: " + dr.l.phase.String() + "\n"
	case "admit":
		ev = Event{Kind: EventRequestHeaders, FullDuplex: dr.fdup, EndOfStream: d.HasArg("eos"), Headers: &wire.Headers{Path: str(d, "path", "/v1/completions")}}
		tk = &Ticket{HandOff: sglang.HandOff.Together, Endpoint: "10.0.0.7:30000", Leg: prefill.Leg{Deadline: dr.now.Add(dur(t, str(d, "deadline", "1m")))}}
		if code := str(d, "refused", ""); code != "" {
			tk.Fail = failureByCode(t, code)
		}
	case "request-body":
		ev = Event{Kind: EventRequestBody, Body: []byte(strings.TrimSuffix(d.Input, "\n")), EndOfStream: !d.HasArg("more")}
		if d.HasArg("long") {
			ev.Body = []byte(`{"model":"m","prompt":"` + strings.Repeat("a ", mostKept/2) + `"}`)
			effects := dr.l.Step(dr.now, &ev, tk)
			return fmt.Sprintf("phase: %s\n%s\n", dr.l.phase, effects[0].Op)
		}
	case "request-trailers":
		ev = Event{Kind: EventRequestTrailers}
	case "response-headers":
		ev = Event{Kind: EventResponseHeaders, EndOfStream: d.HasArg("eos"), Headers: &wire.Headers{Status: str(d, "status", "200"), LocalReply: str(d, "local", ""), Encoded: d.HasArg("encoded")}}
		ev.Headers.Length, ev.Headers.RetryAfter = wire.LengthOf(str(d, "length", "")), str(d, "retry-after", "")
	case "response-body":
		ev = Event{Kind: EventResponseBody, Body: []byte(strings.TrimSuffix(d.Input, "\n")), EndOfStream: !d.HasArg("more")}
	case "response-trailers":
		ev = Event{Kind: EventResponseTrailers}
	case "abort":
		ev = Event{Kind: EventAbort, Leg: Report{State: Failed, Reason: blame.Overdue}}
	case "closed":
		ev = Event{Kind: EventClosed, Ending: d.HasArg("ending")}
	default:
		d.Fatalf(t, "unknown verb %q", d.Cmd)
	}
	effects := dr.l.Step(dr.now, &ev, tk)
	return "phase: " + dr.l.phase.String() + "\n" + textOf(effects)
}

// TestAPrefillAnswerTooLongToReadIsNoFault: log probabilities of a long prompt can make
// an answer too long to read. The end of such an answer alone says that prefill is well.
func TestAPrefillAnswerTooLongToReadIsNoFault(t *testing.T) {
	l := &Prefill{rules: testRules()}
	tk := &Ticket{HandOff: sglang.HandOff.Together, Endpoint: "10.0.0.7:30000", Leg: prefill.Leg{Deadline: testStart.Add(time.Minute)}}
	l.Step(testStart, &Event{Kind: EventRequestHeaders, Headers: &wire.Headers{Path: "/generate"}}, tk)
	l.Step(testStart, &Event{Kind: EventRequestBody, Body: []byte(`{"text":"hello"}`), EndOfStream: true}, nil)
	l.Step(testStart, &Event{Kind: EventResponseHeaders, Headers: &wire.Headers{Status: "200"}}, nil)
	for i := range 5 {
		effects := l.Step(testStart, &Event{Kind: EventResponseBody, Body: make([]byte, 300_000), EndOfStream: i == 4}, nil)
		require.Equal(t, OpContinue, effects[0].Op)
	}
	require.Equal(t, Well, l.told)
}
