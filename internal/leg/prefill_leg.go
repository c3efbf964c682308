package leg

import (
	"bytes"
	"strconv"
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/engine/handoff"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/pkg/prefill"
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

// Ticket is what the runner knows of a leg when the leg's headers arrive: the opened
// token, the worker's endpoint, and whether the attempt still wants the leg.
type Ticket struct {
	Leg      prefill.Leg
	Fail     *Failure // the token is missing, wrong or late, or its worker is gone; nil: the leg may go on
	Endpoint string
	// HandOff is the engine's, in which both legs begin at once; nil if Fail is set.
	HandOff *handoff.Together
	// NamesRank says that a header has to name the rank at the endpoint.
	NamesRank bool
}

// Prefill is the machine of one prefill leg; see the phase table in the package
// documentation. It is not safe for concurrent use: its stream gives it one event at a
// time.
type Prefill struct {
	rules *Rules
	phase prefillPhase

	fullDuplex bool
	path       openai.Path
	ticket     Ticket
	trailers   bool
	pieces     gather // of the body, until it is whole
	body       []byte
	answer     []byte
	long       bool   // the answer is not read: it is over answerLimit, or has an encoding
	kept       []byte // the request, to compare the worker's words with; nil: it is longer than mostKept
	late       string // said, with words that came after the failure was reported
	status     int
	location   string // of a redirect
	again      string // Retry-After

	told   State // the last state that was reported
	closed bool

	out []Effect // reused between steps
}

// NewPrefill returns the machine of a new leg.
func NewPrefill(r *Rules) Prefill { return Prefill{rules: r} }

// Step takes one event and returns the effects to perform, in order. The slice is valid
// until the next call. t is read with EventRequestHeaders only.
func (l *Prefill) Step(now time.Time, ev *Event, t *Ticket) []Effect {
	l.out = l.out[:0]
	switch ev.Kind {
	case EventClosed:
		l.onClosed(ev)
	case EventAbort:
		l.onAbort()
	case EventTimer, EventDrain:
	default:
		l.onMessage(now, ev, t)
	}
	return l.out
}

func (l *Prefill) onMessage(now time.Time, ev *Event, t *Ticket) {
	in := func(p prefillPhase, k EventKind) bool { return l.phase == p && ev.Kind == k }
	switch {
	case l.phase >= prefillRefused:
		l.pass(ev)
	case in(prefillAwaitHeaders, EventRequestHeaders):
		l.onRequestHeaders(now, ev, t)
	case in(prefillAwaitBody, EventRequestBody):
		l.onRequestBody(now, ev)
	case in(prefillAwaitBody, EventRequestTrailers):
		l.trailers = true
		l.onRequestEnd(now)
	case in(prefillRouted, EventResponseHeaders):
		l.onResponseHeaders(ev)
	case in(prefillAnswering, EventResponseBody):
		l.onResponseBody(ev)
	case in(prefillAnswering, EventResponseTrailers):
		l.emit(Effect{Op: OpContinue, Of: wire.ResponseTrailers})
		l.onAnswerEnd()
	case ev.Kind == EventRequestBody && ev.EndOfStream && l.phase > prefillAwaitBody: // a repeated end of a large body (envoy #46237)
	default:
		l.refuse(&FailProtocol)
	}
}

// Awaits reports whether the machine waits for a message of this kind.
func (l *Prefill) Awaits(k EventKind) bool {
	return l.phase == prefillAwaitHeaders && k == EventRequestHeaders || l.phase == prefillAwaitBody && k == EventRequestBody
}

// Gathered returns how many bytes have come of a request's body that is not whole.
func (l *Prefill) Gathered() int { return l.pieces.size }

// AnswerStatus returns the status of the worker's answer, or 0 if none has come.
func (l *Prefill) AnswerStatus() int { return l.status }

// pass lets the rest of an answer go on, so that the worker's connection is drained and
// not cut.
func (l *Prefill) pass(ev *Event) {
	switch ev.Kind {
	case EventResponseBody:
		l.emit(Effect{Op: OpContinue, Of: wire.ResponseBody, Body: ev.Body, EndOfStream: ev.EndOfStream})
	case EventResponseTrailers:
		l.emit(Effect{Op: OpContinue, Of: wire.ResponseTrailers})
	}
}

func (l *Prefill) onRequestHeaders(now time.Time, ev *Event, t *Ticket) {
	l.fullDuplex = ev.FullDuplex
	l.ticket = *t
	path, known := openai.ParsePath(ev.Headers.Path)
	switch {
	case t.Fail != nil:
		l.refuse(t.Fail)
		return
	case !known || ev.EndOfStream:
		l.refuse(&FailLegRefused)
		return
	case !t.Leg.Deadline.After(now):
		l.refuse(&FailLegLate)
		return
	}
	l.path = path
	l.pieces.announced = ev.Headers.Length.Within(l.rules.MaxBodyBytes)
	l.tell(Report{State: Started})
	l.phase = prefillAwaitBody
	if !l.fullDuplex {
		l.emit(Effect{Op: OpContinue, Of: wire.RequestHeaders})
	}
}

func (l *Prefill) onRequestBody(now time.Time, ev *Event) {
	if ev.EndOfStream && l.pieces.size == 0 {
		l.body = ev.Body
	} else {
		l.pieces.add(l.rules.Buffers, ev.Body)
	}
	if ev.EndOfStream {
		l.onRequestEnd(now)
	}
}

// editRoom is more bytes than the edits ever add.
const editRoom = 64

// onRequestEnd changes the request to one token and no stream
// (docs/behaviour.md#one-token). The bootstrap fields are in the body or the headers
// already: Envoy's mirror copied them.
func (l *Prefill) onRequestEnd(now time.Time) {
	if l.body == nil {
		l.body = l.pieces.take(l.rules.Buffers)
	}
	r := l.rules.Scans.Borrow()
	defer l.rules.Scans.Return(r)
	if err := openai.ScanInjected(l.path, l.body, r); err != nil {
		l.refuse(BadBody(err))
		return
	}
	edits := l.ticket.HandOff.Prefill(l.body, r, l.ticket.Leg.Room)
	if len(l.body) <= mostKept {
		l.kept = bytes.Clone(l.body)
	}
	body := openai.AppendEdited(l.rules.Buffers.Borrow(len(l.body)+editRoom), l.body, r, edits...)
	l.rules.Buffers.Return(l.body)
	l.body = nil
	l.phase = prefillRouted
	set := []wire.Header{
		{Name: prefill.HeaderPrefillEndpoint, Value: l.ticket.Endpoint},
		{Name: "content-length", Value: strconv.Itoa(len(body))},
		{Name: "x-envoy-upstream-rq-timeout-ms", Value: strconv.FormatInt(max(l.timeout(now).Milliseconds(), 1), 10)},
	}
	// Prefill does not need decode's rank and address.
	remove := []string{prefill.HeaderDestination, prefill.HeaderPrefillCluster, prefill.HeaderLeg}
	if l.ticket.NamesRank {
		set = append(set, wire.Header{Name: handoff.RankHeader, Value: strconv.FormatUint(uint64(l.ticket.Leg.Prefill.DPRank), 10)})
	} else {
		remove = append(remove, handoff.RankHeader)
	}
	l.emit(Effect{Op: OpRoute, Of: wire.RequestBody, Body: body, Trailers: l.trailers, Set: set, Remove: remove})
}

// timeout returns after what time Envoy is to end the leg: no request waits for it by
// then.
func (l *Prefill) timeout(now time.Time) time.Duration {
	return min(l.ticket.Leg.Deadline.Sub(now), l.rules.PrefillTimeout) + l.rules.OrphanGrace
}

func (l *Prefill) onResponseHeaders(ev *Event) {
	l.status, _ = strconv.Atoi(ev.Headers.Status)
	l.location, l.again = ev.Headers.Location, ev.Headers.RetryAfter
	l.long = ev.Headers.Encoded
	l.phase = prefillAnswering
	l.emit(Effect{Op: OpContinue, Of: wire.ResponseHeaders})
	if flags := ev.Headers.LocalReply; flags != "" {
		l.kept = nil // the words are Envoy's
		l.tell(Report{State: Failed, Reason: localSight(flags), Status: l.status, Said: said(l.status, l.path.String(), byEnvoy(flags))})
	} else if !ev.Headers.SaysWhy() || ev.EndOfStream { // else the words follow at once
		l.tellBusy()
	}
	if ev.EndOfStream {
		l.onAnswerEnd()
	}
}

// tellBusy tells of a status that ends the leg before its answer has come whole.
func (l *Prefill) tellBusy() {
	if s := SightOfStatus(l.status); s == blame.Busy || s == blame.Errored && l.status >= 500 {
		l.tell(Report{State: Failed, Reason: s, Status: l.status, RetryAfter: l.again, Said: said(l.status, l.path.String(), "")})
	}
}

// answerLimit is how much of a prefill answer is read, in bytes. The answer has one
// token. Only log probabilities can make it longer, and then neither its finish reason nor
// its usage is read.
const answerLimit = 1 << 20

func (l *Prefill) onResponseBody(ev *Event) {
	l.long = l.long || len(l.answer)+len(ev.Body) > answerLimit
	if l.long {
		l.answer = nil
	} else {
		l.answer = append(l.answer, ev.Body...)
	}
	l.emit(Effect{Op: OpContinue, Of: wire.ResponseBody, Body: ev.Body, EndOfStream: ev.EndOfStream})
	if ev.EndOfStream {
		l.onAnswerEnd()
	}
}

// onAnswerEnd judges the whole answer. Only a complete 2xx answer is well, and only if
// its finish reason is neither abort nor error. Whether its usage proves that the prompt was
// computed is judged by the attempt, which knows the prompt ([Expected]).
func (l *Prefill) onAnswerEnd() {
	l.phase = prefillOver
	if l.told >= Well {
		if words := openai.Words(l.answer, l.kept); words != "" {
			l.late = said(l.status, l.path.String(), words)
		}
		return
	}
	r := Report{State: Well, Status: l.status}
	s, a := l.judge()
	if s != blame.Served {
		r.State, r.Reason, r.Said = Failed, s, said(l.status, l.path.String(), openai.Words(l.answer, l.kept))
	}
	if r.Reason == blame.Rejected || r.Reason == blame.Redirected {
		r.Answer, r.Location = l.answer, l.location
	}
	r.RetryAfter = l.again
	r.tell(&a, l.long)
	l.answer = nil
	l.tell(r)
}

// judge returns what the whole answer says by itself, and what was read of it.
func (l *Prefill) judge() (blame.Sight, openai.Answer) {
	if s := SightOfStatus(l.status); s != blame.Served {
		return s, openai.Answer{}
	}
	return readBeside(l.answer, l.long)
}

// readBeside returns what the whole 2xx answer of a prefill leg beside decode says by
// itself, and what was read of it. The flag unread says that it was not kept.
func readBeside(answer []byte, unread bool) (blame.Sight, openai.Answer) {
	if unread {
		return blame.Served, openai.Answer{}
	}
	if len(answer) == 0 {
		return blame.Empty, openai.Answer{}
	}
	a, err := openai.ScanAnswer(answer)
	switch {
	case err != nil:
		return blame.Unreadable, a
	case a.HasError || a.FinishReason.Failed():
		return blame.Failing, a
	default:
		return blame.Served, a
	}
}

// onAbort ends the leg: Envoy resets the worker's request, and the engine frees what it
// holds for that request.
func (l *Prefill) onAbort() {
	if l.closed || l.phase >= prefillRefused {
		return
	}
	l.told = max(l.told, Failed)
	l.phase = prefillOver
	l.emit(Effect{Op: OpImmediate, Imm: ImmediateOf(&failLegAborted, "", false)})
}

// refuse answers Envoy's mirror, which drops the answer. The request reaches no worker.
func (l *Prefill) refuse(f *Failure) {
	l.phase = prefillRefused
	l.emit(Effect{Op: OpFinish, Outcome: Refused, Fail: f})
	l.emit(Effect{Op: OpImmediate, Imm: ImmediateOf(f, "", false)})
	if l.told == Started {
		l.tell(Report{State: Failed, Reason: blame.NotSent})
	}
}

func (l *Prefill) onClosed(ev *Event) {
	if l.closed {
		return
	}
	l.closed = true
	l.pieces.drop(l.rules.Buffers)
	if l.told == Started && l.phase == prefillAnswering {
		l.tellBusy()
	}
	if l.told == Started {
		r := Report{State: Failed, Reason: blame.Ended, Status: l.status}
		switch {
		case l.phase == prefillAwaitBody:
			r.Reason = blame.NotSent // no worker has seen the request
		case ev.Ending:
			r.Reason = blame.Aborted // the process is about to end: no worker is at fault
		case l.phase == prefillAnswering:
			r.Reason = blame.BrokeOff
		}
		l.tell(r)
	}
	if l.told >= Started {
		l.tell(Report{State: Ended, Said: l.late})
	}
}

func (l *Prefill) tell(r Report) {
	if r.State <= l.told {
		return
	}
	l.told = r.State
	l.emit(Effect{Op: OpReport, Report: r})
}

func (l *Prefill) emit(e Effect) {
	if l.out == nil {
		l.out = make([]Effect, 0, 4)
	}
	l.out = append(l.out, e)
}
