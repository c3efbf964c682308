package extproc

import (
	"strconv"
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/extproc/wire"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/prefill/handoff"
)

type prefillPhase uint8

const (
	prefillAwaitHeaders prefillPhase = iota
	prefillAwaitBody
	prefillRouted
	prefillAnswering
	prefillRefused
	prefillOver
)

var prefillPhaseNames = [...]string{"awaitHeaders", "awaitBody", "routed", "answering", "refused", "over"}

func (p prefillPhase) String() string { return prefillPhaseNames[p] }

// ticket is what the runner knows of a leg when its headers arrive: the opened
// token, where its worker is, and whether the attempt still wants it.
type ticket struct {
	leg      prefill.Leg
	fail     *failure // the token is missing, wrong, late, or its worker is gone
	endpoint string
	mooncake bool // its engine meets decode so
	// The rank has to be named at the endpoint. SGLang's follows from the room.
	namesRank bool
}

// prefillLeg is the machine of one prefill leg; see the phase table in the
// package documentation. It is not safe for concurrent use: the stream that
// owns it takes one event at a time.
type prefillLeg struct {
	rules *rules
	phase prefillPhase

	fullDuplex bool
	path       openai.Path
	ticket     ticket
	trailers   bool
	pieces     gather // of the body, until it is whole
	body       []byte
	answer     []byte
	long       bool // the answer is over answerLimit
	status     int

	told   legState // the last state reported
	closed bool

	out []effect // reused between steps
}

// newPrefillLeg returns the machine of a leg that nothing has come of.
func newPrefillLeg(r *rules) prefillLeg { return prefillLeg{rules: r} }

// step takes one event and returns what is to be done, in order. The slice is
// valid until the next call. t is read with evRequestHeaders only.
func (l *prefillLeg) step(now time.Time, ev *event, t *ticket) []effect {
	l.out = l.out[:0]
	switch ev.kind {
	case evClosed:
		l.onClosed(ev)
	case evAbort:
		l.onAbort()
	case evTimer, evDrain:
	default:
		l.onMessage(now, ev, t)
	}
	return l.out
}

func (l *prefillLeg) onMessage(now time.Time, ev *event, t *ticket) {
	switch l.phase {
	case prefillAwaitHeaders:
		if ev.kind == evRequestHeaders {
			l.onRequestHeaders(now, ev, t)
			return
		}
	case prefillAwaitBody:
		switch ev.kind {
		case evRequestBody:
			l.onRequestBody(now, ev)
			return
		case evRequestTrailers:
			l.trailers = true
			l.onRequestEnd(now)
			return
		}
	case prefillRouted:
		if ev.kind == evResponseHeaders {
			l.onResponseHeaders(ev)
			return
		}
	case prefillAnswering:
		switch ev.kind {
		case evResponseBody:
			l.onResponseBody(ev)
			return
		case evResponseTrailers:
			l.emit(effect{op: opContinue, of: wire.ResponseTrailers})
			l.onAnswerEnd()
			return
		}
	case prefillRefused, prefillOver:
		l.pass(ev)
		return
	}
	if ev.kind == evRequestBody && ev.endOfStream && l.phase > prefillAwaitBody {
		return // a repeated end of a large body (envoy #46237)
	}
	l.refuse(&failProtocol)
}

// awaits reports whether a message of Envoy's is the one that comes next.
func (l *prefillLeg) awaits(k eventKind) bool {
	switch l.phase {
	case prefillAwaitHeaders:
		return k == evRequestHeaders
	case prefillAwaitBody:
		return k == evRequestBody
	default:
		return false
	}
}

// gathered is how much has come of a request's body that is not whole.
func (l *prefillLeg) gathered() int { return l.pieces.size }

// answerStatus is the status of the worker's answer; 0: none.
func (l *prefillLeg) answerStatus() int { return l.status }

// pass lets what still comes of an answer go by: the worker's connection is
// drained, not cut.
func (l *prefillLeg) pass(ev *event) {
	switch ev.kind {
	case evResponseBody:
		l.emit(effect{op: opContinue, of: wire.ResponseBody, body: ev.body, endOfStream: ev.endOfStream})
	case evResponseTrailers:
		l.emit(effect{op: opContinue, of: wire.ResponseTrailers})
	}
}

func (l *prefillLeg) onRequestHeaders(now time.Time, ev *event, t *ticket) {
	l.fullDuplex = ev.fullDuplex
	l.ticket = *t
	path, known := openai.ParsePath(ev.headers.Path)
	switch {
	case t.fail != nil:
		l.refuse(t.fail)
		return
	case !known || ev.endOfStream:
		l.refuse(&failLegRefused)
		return
	case !t.leg.Deadline.After(now):
		l.refuse(&failLegLate)
		return
	}
	l.path = path
	l.pieces.announced = ev.headers.Length.Within(l.rules.maxBodyBytes)
	l.tell(legReport{state: legStarted})
	l.phase = prefillAwaitBody
	if !l.fullDuplex {
		l.emit(effect{op: opContinue, of: wire.RequestHeaders})
	}
}

func (l *prefillLeg) onRequestBody(now time.Time, ev *event) {
	if ev.endOfStream && l.pieces.size == 0 {
		l.body = ev.body
	} else {
		l.pieces.add(l.rules.buffers, ev.body)
	}
	if ev.endOfStream {
		l.onRequestEnd(now)
	}
}

// editRoom is more than the edits ever add.
const editRoom = 64

// onRequestEnd asks for one token and no stream (docs/behaviour.md#one-token). The
// bootstrap fields are in the body or the headers already: the mirror copied them.
func (l *prefillLeg) onRequestEnd(now time.Time) {
	if l.body == nil {
		l.body = l.pieces.take(l.rules.buffers)
	}
	r := l.rules.scans.Borrow()
	defer l.rules.scans.Return(r)
	if err := openai.ScanInjected(l.path, l.body, r); err != nil {
		l.refuse(badBody(err))
		return
	}
	var edits []openai.Edit
	if l.ticket.mooncake {
		edits = handoff.MooncakePrefill(nil, r, l.ticket.leg.Room)
	} else {
		edits = handoff.SGLangPrefill(l.body, r)
	}
	body := openai.AppendEdited(l.rules.buffers.Borrow(len(l.body)+editRoom), l.body, r, edits...)
	l.rules.buffers.Return(l.body)
	l.body = nil
	l.phase = prefillRouted
	set := []wire.Header{
		{Name: prefill.HeaderPrefillEndpoint, Value: l.ticket.endpoint},
		{Name: "content-length", Value: strconv.Itoa(len(body))},
		{Name: "x-envoy-upstream-rq-timeout-ms", Value: strconv.FormatInt(max(l.timeout(now).Milliseconds(), 1), 10)},
	}
	// Decode's rank and address are not prefill's business.
	remove := []string{prefill.HeaderDestination, prefill.HeaderPrefillCluster, prefill.HeaderLeg}
	if l.ticket.namesRank {
		set = append(set, wire.Header{Name: handoff.SGLangDPRankHeader, Value: strconv.FormatUint(uint64(l.ticket.leg.Prefill.DPRank), 10)})
	} else {
		remove = append(remove, handoff.SGLangDPRankHeader)
	}
	l.emit(effect{op: opRoute, of: wire.RequestBody, body: body, trailers: l.trailers, set: set, remove: remove})
}

// timeout lets Envoy end a leg that nobody waits for any more.
func (l *prefillLeg) timeout(now time.Time) time.Duration {
	return min(l.ticket.leg.Deadline.Sub(now), l.rules.prefillTimeout) + l.rules.orphanGrace
}

func (l *prefillLeg) onResponseHeaders(ev *event) {
	l.status, _ = strconv.Atoi(ev.headers.Status)
	l.phase = prefillAnswering
	l.emit(effect{op: opContinue, of: wire.ResponseHeaders})
	if flags := ev.headers.LocalReply; flags != "" {
		l.tell(legReport{state: legFailed, reason: localSight(flags), status: l.status})
	} else if s := sightOfStatus(l.status); s == blame.Busy || s == blame.Errored && l.status >= 500 {
		l.tell(legReport{state: legFailed, reason: s, status: l.status, retryAfter: ev.headers.RetryAfter})
	}
	if ev.endOfStream {
		l.onAnswerEnd()
	}
}

// answerLimit is how much of a prefill answer is read. It holds one token;
// more can only be log probabilities, whose finish reason is then not read.
const answerLimit = 1 << 20

func (l *prefillLeg) onResponseBody(ev *event) {
	l.long = l.long || len(l.answer)+len(ev.body) > answerLimit
	if l.long {
		l.answer = nil
	} else {
		l.answer = append(l.answer, ev.body...)
	}
	l.emit(effect{op: opContinue, of: wire.ResponseBody, body: ev.body, endOfStream: ev.endOfStream})
	if ev.endOfStream {
		l.onAnswerEnd()
	}
}

// onAnswerEnd judges the whole answer. Only a complete 2xx answer with a
// finish reason other than abort or error is well.
func (l *prefillLeg) onAnswerEnd() {
	l.phase = prefillOver
	if l.told >= legWell {
		return
	}
	r := legReport{state: legWell, status: l.status}
	s := l.judge()
	if s != blame.Served {
		r.state, r.reason = legFailed, s
	}
	if r.reason == blame.Rejected {
		r.answer = l.answer
	}
	u, ok := openai.FindUsage(l.answer)
	if ok {
		r.cached, r.counted = u.Cached, u.HasCached
	}
	l.answer = nil
	l.tell(r)
}

func (l *prefillLeg) judge() blame.Sight {
	if s := sightOfStatus(l.status); s != blame.Served {
		return s
	}
	if l.long {
		return blame.Served // complete; its finish reason was not read
	}
	if len(l.answer) == 0 {
		return blame.Empty
	}
	a, err := openai.ScanAnswer(l.answer)
	switch {
	case err != nil:
		return blame.Unreadable
	case a.HasError || a.FinishReason.Failed():
		return blame.Failing
	default:
		return blame.Served
	}
}

// onAbort ends the leg: Envoy resets the worker's request, and the engine
// frees what it holds.
func (l *prefillLeg) onAbort() {
	if l.closed || l.phase >= prefillRefused {
		return
	}
	l.told = max(l.told, legFailed)
	l.phase = prefillOver
	l.emit(effect{op: opImmediate, imm: immediateOf(&failLegAborted, false)})
}

// refuse answers the mirror, which drops the answer. No worker is reached.
func (l *prefillLeg) refuse(f *failure) {
	l.phase = prefillRefused
	l.emit(effect{op: opFinish, outcome: outcomeRefused, fail: f})
	l.emit(effect{op: opImmediate, imm: immediateOf(f, false)})
	if l.told == legStarted {
		l.tell(legReport{state: legFailed, reason: blame.NotSent})
	}
}

func (l *prefillLeg) onClosed(ev *event) {
	if l.closed {
		return
	}
	l.closed = true
	l.pieces.drop(l.rules.buffers)
	if l.told == legStarted {
		r := legReport{state: legFailed, reason: blame.Ended, status: l.status}
		switch {
		case l.phase == prefillAwaitBody:
			r.reason = blame.NotSent // no worker has seen it
		case ev.ending:
			r.reason = blame.Aborted // no worker's fault
		case l.phase == prefillAnswering:
			r.reason = blame.BrokeOff
		}
		l.tell(r)
	}
	if l.told >= legStarted {
		l.tell(legReport{state: legEnded})
	}
}

func (l *prefillLeg) tell(r legReport) {
	if r.state <= l.told {
		return
	}
	l.told = r.state
	l.emit(effect{op: opReport, report: r})
}

func (l *prefillLeg) emit(e effect) {
	if l.out == nil {
		l.out = make([]effect, 0, 4)
	}
	l.out = append(l.out, e)
}
