package extproc

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
	"github.com/seed-60ae5743/baton/internal/extproc/wire"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/prefill/handoff"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// The scenario files drive a machine as its stream does. Verbs of testdata/main:
//
//	new [attempt=N] [full-duplex] [no-hold] [first=hold|watch|off] [fallback] [gateway] [plain] [replicas]
//	request-headers [method=POST] [path=…] [eos] [length=N] [timeout=MS] [start=SECONDS-AGO]
//	     [answers] [answers-duplex] [strange=NAME]   the filter sends answers' bodies; a header only routers set
//	request-body [more]          the input is the body
//	request-trailers
//	picked [aggregated] [in-headers] [overdue=D] [answer=D] [dp=N] [explain] [prefill-named] [decode-named]
//	     [lone] [suspects=ID:CHARGE,…]   lone: nobody else could be tried; of earlier attempts
//	     [look]                          a stream of its own reads decode's first events
//	refused code=not_ready
//	leg STATE [reason=R] [status=N] [answer=TEXT] [odd] [retry-after=TEXT]
//	found seen=SIGHT [odd]       what that stream has read
//	response-headers status=N [local=FLAGS] [eos] [odd] [events] [answered=ID/RANK or unknown]
//	response-body [more]         the input is the body
//	response-trailers
//	gone [worker=ID] [aside] | drain | logged [seen=SIGHT] [unreached]
//	closed
//	after D                      time passes; the timer fires if it is due
//
//	prefilled [status=N] [cut] [long] [canceled] [local=FLAGS]   what came of a leg of our own; the body is its answer
//	collected                    a collecting leg has ended
//
// Verbs of testdata/prefill: new, admit [refused] [late], request-body,
// request-trailers, response-headers, response-body, response-trailers, abort,
// closed.
//
// The output is the phase and the effects in order. `make golden` rewrites it.

func dur(t *testing.T, s string) time.Duration {
	d, err := time.ParseDuration(s)
	require.NoError(t, err)
	return d
}

func reportArgs(t *testing.T, d *datadriven.TestData) legReport {
	r := legReport{reason: blame.Sight(str(d, "reason", "")), status: num(t, d, "status", 0), odd: d.HasArg("odd"), retryAfter: str(d, "retry-after", "")}
	if a := str(d, "answer", ""); a != "" {
		r.answer = []byte(a)
	}
	for s, name := range legStateNames {
		if d.HasArg(name) {
			r.state = legState(s)
		}
	}
	return r
}

func failureByCode(t *testing.T, code string) *failure {
	for _, f := range failures() {
		if f.code == code {
			return &f
		}
	}
	require.Fail(t, "unknown failure code", code)
	return nil
}

type mainDriver struct {
	m   *mainLeg
	now time.Time
}

func TestMainLegScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/main", func(t *testing.T, path string) {
		var dr mainDriver
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return dr.run(t, d) })
	})
}

func (dr *mainDriver) run(t *testing.T, d *datadriven.TestData) string {
	ev := event{kind: evTimer}
	switch d.Cmd {
	case "new":
		r := testRules()
		r.hold, r.fallback = !d.HasArg("no-hold"), d.HasArg("fallback")
		r.reasonHeader, r.replicas = "x-dropped", d.HasArg("replicas")
		r.holdFirst = str(d, "first", "hold") == "hold"
		dr.m, dr.now = mainOf(r, way{gateway: d.HasArg("gateway") || d.HasArg("plain"), plain: d.HasArg("plain")}), testStart
		dr.m.req.fullDuplex = d.HasArg("full-duplex")
		dr.m.req.attempt = num(t, d, "attempt", 1)
		return "phase: " + dr.m.phase.String() + "\n"
	case "request-headers":
		ev = event{kind: evRequestHeaders, endOfStream: d.HasArg("eos"), fullDuplex: dr.m.req.fullDuplex}
		ev.answerDuplex = d.HasArg("answers-duplex")
		ev.answerBodies = ev.answerDuplex || d.HasArg("answers")
		ev.headers = &wire.Headers{
			Method: str(d, "method", "POST"), Path: str(d, "path", "/v1/completions"),
			Length: wire.LengthOf(str(d, "length", "")), Timeout: str(d, "timeout", ""),
			AttemptCount: strconv.Itoa(dr.m.req.attempt),
		}
		if name := str(d, "strange", ""); name != "" {
			ev.headers.Strange = []string{name}
		}
		if ago := str(d, "start", ""); ago != "" {
			ev.received = dr.now.Add(-dur(t, ago))
			ev.headers.Start = millis(ev.received)
		}
	case "request-body":
		ev = event{kind: evRequestBody, body: []byte(strings.TrimSuffix(d.Input, "\n")), endOfStream: !d.HasArg("more")}
	case "request-trailers":
		ev = event{kind: evRequestTrailers}
	case "picked":
		ev = event{kind: evPicked, plan: testPlan(t, d)}
	case "refused":
		ev = event{kind: evRefused, failure: failureByCode(t, str(d, "code", ""))}
	case "leg":
		ev = event{kind: evLeg, leg: reportArgs(t, d)}
	case "prefilled":
		ev = event{kind: evPrefilled, answer: answerArgs(t, d)}
	case "collected":
		ev = event{kind: evCollected}
	case "response-headers":
		ev = event{kind: evResponseHeaders, endOfStream: d.HasArg("eos"), headers: &wire.Headers{Status: str(d, "status", "200"), LocalReply: str(d, "local", "")}}
		ev.odd = d.HasArg("odd")
		if d.HasArg("events") {
			ev.headers.ContentType = "text/event-stream; charset=utf-8"
		}
		ev.answerer = answererArg(t, str(d, "answered", ""))
	case "response-body":
		ev = event{kind: evResponseBody, body: []byte(strings.TrimSuffix(d.Input, "\n")), endOfStream: !d.HasArg("more")}
	case "response-trailers":
		ev = event{kind: evResponseTrailers}
	case "found":
		ev = event{kind: evFound, seen: blame.Sight(str(d, "seen", "")), odd: d.HasArg("odd")}
	case "gone":
		ev = event{kind: evGone, rank: worker.Rank{ID: worker.ID(num(t, d, "worker", 7))}, whole: true, left: !d.HasArg("aside")}
	case "drain":
		ev = event{kind: evDrain}
	case "logged":
		ev = event{kind: evLogged, seen: blame.Sight(str(d, "seen", string(blame.Served))), reached: !d.HasArg("unreached")}
		ev.status = num(t, d, "status", 0)
	case "closed":
		ev = event{kind: evClosed}
	case "after":
		dr.now = dr.now.Add(dur(t, d.CmdArgs[0].Key))
		if at := dr.m.wakeAt(); at.IsZero() || at.After(dr.now) {
			return "phase: " + dr.m.phase.String() + "\nno timer is due\n"
		}
	default:
		d.Fatalf(t, "unknown verb %q", d.Cmd)
	}
	effects := dr.m.step(dr.now, &ev)
	return "phase: " + dr.m.phase.String() + "\n" + textOf(effects)
}

func answererArg(t *testing.T, s string) *answerer {
	switch s {
	case "":
		return nil
	case "unknown":
		return &answerer{}
	}
	id, dp, _ := strings.Cut(s, "/")
	n, err := worker.ParseID(id)
	require.NoError(t, err)
	rank, err := strconv.ParseUint(dp, 10, 32)
	require.NoError(t, err)
	return &answerer{rank: worker.Rank{ID: n, DPRank: worker.DPRank(rank)}, known: true}
}

func testPlan(t *testing.T, d *datadriven.TestData) *plan {
	p := &plan{
		nonce: 77, decode: worker.Rank{ID: 3, DPRank: 1}, decodeAddr: "10.0.0.3:30000",
		decodeDPSize: uint32(num(t, d, "dp", 1)), overdueAfter: dur(t, str(d, "overdue", "5s")),
		startWithin: time.Second, answerWithin: dur(t, str(d, "answer", "0s")),
		spare: spare{Prefill: !d.HasArg("lone"), Decode: !d.HasArg("lone")},
	}
	for _, x := range strings.FieldsFunc(str(d, "suspects", ""), func(r rune) bool { return r == ',' }) {
		id, charge, _ := strings.Cut(x, ":")
		n, err := strconv.Atoi(id)
		require.NoError(t, err, d.Pos)
		for c := blame.None; c <= blame.Slow; c++ {
			if strings.ReplaceAll(c.String(), " ", "-") == charge {
				p.suspects, _ = p.suspects.And(blame.Suspect[worker.Rank]{Worker: worker.Rank{ID: worker.ID(n)}, Charge: c})
			}
		}
	}
	if d.HasArg("look") {
		p.answerToken, p.looks = "sealed too", true
	}
	if d.HasArg("explain") {
		p.explain = "{}"
	}
	if !d.HasArg("aggregated") {
		p.disaggregated, p.prefill = true, worker.Rank{ID: 7}
		p.bootstrapHost, p.bootstrapPort, p.room, p.token, p.prefillAddr = "10.0.0.7", 8998, 42, "sealed", "10.0.0.7:30000"
		p.inHeaders = d.HasArg("in-headers")
		p.prefillNamed, p.decodeNamed = d.HasArg("prefill-named"), d.HasArg("decode-named")
		p.decodeAlone, p.handoffID = d.HasArg("decode-alone"), 1<<42+5
		switch str(d, "kind", "") {
		case "vllm":
			p.kind = handoff.NIXLPull
		case "trtllm":
			p.kind = handoff.ContextFirst
		case "mooncake":
			p.kind, p.model = handoff.Mooncake, "m"
			p.bootstrap = worker.Bootstrap{Host: "10.0.0.7", Port: 8998, EngineIDs: []string{"e"}}
		default:
			p.kind = handoff.Rendezvous
		}
	}
	return p
}

func answerArgs(t *testing.T, d *datadriven.TestData) *legAnswer {
	a := &legAnswer{
		status: num(t, d, "status", 200), localReply: str(d, "local", ""), canceled: d.HasArg("canceled"),
		body: []byte(strings.TrimSuffix(d.Input, "\n")),
	}
	switch {
	case d.HasArg("cut"):
		a.err = io.ErrUnexpectedEOF
	case d.HasArg("long"):
		a.err = errLongAnswer
	}
	return a
}

// textOf prints effects as scenario files read them.
func textOf(effects []effect) string {
	if len(effects) == 0 {
		return "effects: none\n"
	}
	var b strings.Builder
	for i := range effects {
		e := &effects[i]
		b.WriteString(e.op.String())
		switch e.op {
		case opContinue:
			fmt.Fprintf(&b, " %s", [...]string{"", "request headers", "request body", "request trailers", "response headers", "response body", "response trailers"}[e.of])
			if e.body != nil {
				fmt.Fprintf(&b, " %q end=%t", e.body, e.endOfStream)
			}
		case opRoute, opRouteHeaders, opRelay, opPrefill, opCollect:
			if e.trailers {
				b.WriteString(" with trailers")
			}
			for _, s := range e.set {
				fmt.Fprintf(&b, "\n  set %s: %s", s.Name, s.Value)
			}
			for _, s := range e.remove {
				fmt.Fprintf(&b, "\n  remove %s", s)
			}
			if e.body != nil {
				fmt.Fprintf(&b, "\n  body %s", e.body)
			}
		case opImmediate:
			fmt.Fprintf(&b, " %d", e.imm.Status)
			for _, s := range e.imm.Headers {
				fmt.Fprintf(&b, " %s=%s", s.Name, s.Value)
			}
			fmt.Fprintf(&b, "\n  %s", e.imm.Body)
		case opPick:
			if e.fail != nil {
				fmt.Fprintf(&b, " one worker instead of %s", e.fail.code)
			}
		case opExtend:
			fmt.Fprintf(&b, " %s", e.wait)
		case opFound:
			fmt.Fprintf(&b, " %s", e.found)
		}
		switch e.op {
		case opPrefill:
			fmt.Fprintf(&b, "\n  within %s", e.wait)
		case opReport, opMark, opAbortLeg:
			fmt.Fprintf(&b, " %s", e.report.state)
			if e.report.reason != "" {
				fmt.Fprintf(&b, " reason=%s", e.report.reason)
			}
			if e.report.status != 0 {
				fmt.Fprintf(&b, " status=%d", e.report.status)
			}
		case opServed:
			fmt.Fprintf(&b, " by %s", e.rank)
		case opPairFailed, opPairServed:
			fmt.Fprintf(&b, " %s, %s", e.rank, e.other)
		case opSuspect:
			fmt.Fprintf(&b, " %s", e.rank)
		case opCharge:
			fmt.Fprintf(&b, " %s: %s", e.rank, e.charge)
			if e.proven {
				b.WriteString(", proven")
			}
		case opFinish:
			fmt.Fprintf(&b, " %s", e.outcome)
			if e.fail != nil {
				fmt.Fprintf(&b, " %s", e.fail.code)
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

type prefillDriver struct {
	l    *prefillLeg
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
	var ev event
	var tk *ticket
	switch d.Cmd {
	case "new":
		dr.l, dr.now, dr.fdup = &prefillLeg{rules: testRules()}, testStart, d.HasArg("full-duplex")
		return "phase: " + dr.l.phase.String() + "\n"
	case "admit":
		ev = event{kind: evRequestHeaders, fullDuplex: dr.fdup, endOfStream: d.HasArg("eos"), headers: &wire.Headers{Path: str(d, "path", "/v1/completions")}}
		tk = &ticket{endpoint: "10.0.0.7:30000", leg: prefill.Leg{Deadline: dr.now.Add(dur(t, str(d, "deadline", "1m")))}}
		if code := str(d, "refused", ""); code != "" {
			tk.fail = failureByCode(t, code)
		}
	case "request-body":
		ev = event{kind: evRequestBody, body: []byte(strings.TrimSuffix(d.Input, "\n")), endOfStream: !d.HasArg("more")}
	case "request-trailers":
		ev = event{kind: evRequestTrailers}
	case "response-headers":
		ev = event{kind: evResponseHeaders, endOfStream: d.HasArg("eos"), headers: &wire.Headers{Status: str(d, "status", "200"), LocalReply: str(d, "local", "")}}
	case "response-body":
		ev = event{kind: evResponseBody, body: []byte(strings.TrimSuffix(d.Input, "\n")), endOfStream: !d.HasArg("more")}
	case "response-trailers":
		ev = event{kind: evResponseTrailers}
	case "abort":
		ev = event{kind: evAbort, leg: legReport{state: legFailed, reason: blame.Overdue}}
	case "closed":
		ev = event{kind: evClosed, ending: d.HasArg("ending")}
	default:
		d.Fatalf(t, "unknown verb %q", d.Cmd)
	}
	effects := dr.l.step(dr.now, &ev, tk)
	return "phase: " + dr.l.phase.String() + "\n" + textOf(effects)
}

// TestAPrefillAnswerTooLongToReadIsNoFault: log probabilities of a long prompt
// make it one; its end alone says that prefill is well.
func TestAPrefillAnswerTooLongToReadIsNoFault(t *testing.T) {
	l := &prefillLeg{rules: testRules()}
	tk := &ticket{endpoint: "10.0.0.7:30000", leg: prefill.Leg{Deadline: testStart.Add(time.Minute)}}
	l.step(testStart, &event{kind: evRequestHeaders, headers: &wire.Headers{Path: "/generate"}}, tk)
	l.step(testStart, &event{kind: evRequestBody, body: []byte(`{"text":"hello"}`), endOfStream: true}, nil)
	l.step(testStart, &event{kind: evResponseHeaders, headers: &wire.Headers{Status: "200"}}, nil)
	for i := range 5 {
		effects := l.step(testStart, &event{kind: evResponseBody, body: make([]byte, 300_000), endOfStream: i == 4}, nil)
		require.Equal(t, opContinue, effects[0].op)
	}
	require.Equal(t, legWell, l.told)
}
