package extproc

import (
	"context"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/journal"
	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/subset"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// mainStream runs one main leg: its machine, its gRPC stream, what it has
// booked and the prefill leg that belongs to it. It outlives its gRPC stream
// while the prefill leg runs.
type mainStream struct {
	wire
	m mainLeg

	// Owned by whoever handles an event.
	decodeBooking  *load.Reservation
	prefillBooking *load.Reservation
	note           journal.Handle
	began          time.Time
	heldAt         time.Time
	endedAt        time.Time // when the gRPC stream ended: the answer's end, if it was not left
	span           trace.Span
	decodeSpan     trace.Span
	nonce          uint64
	bears          bool        // unrouted knows its name
	subset         *subset.Set // whom the data plane allows
	servedBy       string      // who has served, in the data plane's words
	told           string      // the same, by the protocol's metadata alone

	mu     sync.Mutex
	leg    *prefillStream // guarded by mu: the leg that has come
	closed bool           // guarded by mu: no leg is wanted any more
	picked [2]worker.ID   // guarded by mu: the prefill and the decode worker, 0 for none
	begun  bool           // guarded by mu: a leg of our own has reached Envoy

	carrier string // guarded by mu: the replica at which the leg runs; empty: here, or not known

	stopSync context.CancelCauseFunc // guarded by mu: ends a leg of our own

	// Owned by the decision until it is told, then by whoever handles an event.
	prefillLimit, decodeLimit limited

	owes atomic.Bool // what the machine said of it last
}

// booked is what a decision hands to its stream besides the plan.
type booked struct {
	prefill, decode *load.Reservation
	note            journal.Handle
	span            trace.Span // of the decode leg
}

func (s *mainStream) post(ev *event) { s.act.post(ev) }

func (s *mainStream) handle(ev *event) {
	defer func() {
		if r := recover(); r != nil {
			s.recovered("main", r)
			s.abandon()
		}
	}()
	if s.broken {
		if ev.kind == evPicked { // booked after the panic
			ev.booked.prefill.ReleaseIfHeld(time.Now())
			ev.booked.decode.ReleaseIfHeld(time.Now())
			s.srv.attempts.remove(ev.plan.nonce)
		}
		return
	}
	s.prepare(ev)
	now := time.Now()
	for i, effects := 0, s.m.step(now, ev); i < len(effects); i++ {
		s.perform(now, &effects[i])
	}
	if ev.kind == evRequestHeaders {
		s.comeByName(now)
	}
	s.arm(s.m.wakeAt(), s.fire)
	s.owes.Store(s.m.owes())
}

// prepare adds to an event what the machine has to know of the world, and takes what
// is the stream's own.
func (s *mainStream) prepare(ev *event) {
	switch ev.kind {
	case evClosed:
		s.deaf = true
		if s.m.phase == mainStreaming {
			s.endedAt = time.Now()
		}
	case evRequestHeaders:
		if s.m.phase == mainAwaitHeaders {
			s.fullDuplex, s.answerDuplex = ev.fullDuplex, ev.answerDuplex
			s.begin(ev)
		}
	case evResponseHeaders:
		if s.m.phase == mainAwaitHeaders { // a filter before ours has answered: this is the stream's first word
			s.fullDuplex, s.answerDuplex, s.began = ev.fullDuplex, ev.answerDuplex, time.Now()
		}
		ev.answerer = s.answererOf(ev)
		if s.m.phase == mainRouted && ev.headers.localReply == "" && s.m.plan.spare.decode {
			code, _ := strconv.Atoi(ev.headers.status)
			ev.odd = s.odd(s.m.plan.decode.ID, code)
		}
	case evLeg:
		if ev.leg.reason == blame.Rejected && s.m.waitsForPrefill() && s.m.plan.spare.prefill {
			ev.leg.odd = s.odd(s.m.plan.prefill.ID, ev.leg.status)
		}
	case evPicked:
		if s.m.instead != nil && !s.m.finished {
			s.turnPage(time.Now())
		}
		s.prefillBooking, s.decodeBooking = ev.booked.prefill, ev.booked.decode
		s.note, s.decodeSpan, s.nonce = ev.booked.note, ev.booked.span, ev.plan.nonce
		if s.m.finished { // the attempt ended while its tokens were counted
			s.srv.cfg.Journal.End(s.note, journal.ClientLeft, "before the decision", 0, time.Now())
			telemetry.End(s.decodeSpan, time.Now(), "too late")
		}
	case evPrefilled:
		if ev.answer.localReply == "" && s.m.waitsForPrefill() && s.m.plan.spare.prefill {
			ev.answer.odd = s.odd(s.m.plan.prefill.ID, ev.answer.status)
		}
		s.keepDecode(ev.answer)
	case evRefused, evAnswered:
		if ev.booked != nil {
			s.note = ev.booked.note
		}
	}
}

// comeByName notes the attempt's name, by which an access log may mean it or
// another one. Where no hand-off goes through us nothing depends on it.
func (s *mainStream) comeByName(now time.Time) {
	if s.srv.legClient == nil || s.bears || s.m.phase == mainDone {
		return
	}
	s.bears = true
	s.srv.unrouted.come(s, s.m.name(), now)
}

// leaveName forgets the name. An attempt that decode has answered was routed, and
// its log says so.
func (s *mainStream) leaveName(now time.Time) {
	if s.bears {
		s.bears = false
		s.srv.unrouted.leave(s.m.name(), s.m.status == "", now)
	}
}

func (s *mainStream) fire() { s.post(&event{kind: evTimer}) }

func (s *mainStream) begin(ev *event) {
	s.began = time.Now()
	s.subset = s.srv.subsetOf(ev, s.m.way.gateway)
	if ev.headers.requestID == "" {
		ev.headers.requestID, s.m.named = uuid.NewString(), true
	}
	if s.srv.cfg.Tracer.Enabled() {
		parent := telemetry.Extract(ev.headers.traceparent, ev.headers.tracestate)
		s.span = s.srv.cfg.Tracer.Start(parent, telemetry.SpanRequest, s.began)
	}
}

func (s *mainStream) perform(now time.Time, e *effect) {
	switch e.op {
	case opContinue:
		s.sendContinue(e)
	case opRoute:
		if s.m.leg != legDispatched && s.m.leg != legStarted {
			s.decodeLimit.from = now
		}
		if s.m.unsure() {
			s.srv.unrouted.handOff(s, s.m.name())
		}
		s.sendRoute(e)
	case opRouteHeaders:
		s.send(headersAnswer(fieldAnswerRequestHeaders, e.set, e.remove, s.srv.metadataOf(e.set)))
	case opRelay:
		s.relay(now, e)
	case opImmediate:
		s.sendImmediate(e.imm)
	case opExtend:
		if s.m.phase == mainHolding {
			s.heldAt = now
		}
		s.sendProto(extendOf(e.wait))
	case opPrefill:
		s.askPrefill(e)
	case opCollect:
		s.collect(e)
	case opPick:
		if e.fail != nil {
			s.began = now // of the record that one worker gets
		}
		s.srv.decide(s, e.fail)
	case opModels:
		s.sendImmediate(s.srv.models(s.m.mayRetry(&failNotReady)))
	case opAbortLeg:
		s.abort()
	case opCharge, opSuspect, opPairFailed, opPairServed:
		s.judge(now, e)
	case opServed:
		s.served(now, e.rank)
	case opReleaseDecode:
		s.decodeBooking.Release(now)
	case opReleasePrefill:
		s.prefillBooking.Release(now)
		s.detach()
	case opMark:
		s.mark(now, e.report)
	case opFinish:
		s.finish(now, e)
	case opLeave:
		s.deaf = true
		s.finishStream()
	case opForget:
		s.srv.attempts.remove(s.nonce)
		if s.m.phase == mainDone {
			s.leaveName(now)
		}
		s.detach()
	}
}

func (s *mainStream) relay(now time.Time, e *effect) {
	if !s.heldAt.IsZero() {
		s.srv.cfg.Telemetry.PrefillWaited(now.Sub(s.heldAt))
	}
	if !s.m.plan.disaggregated {
		s.decodeBooking.PrefillDone(math.MaxInt64, now) // the answer has begun: its prompt is done
	}
	if strings.HasPrefix(s.m.status, "2") {
		s.srv.learn(&s.decodeLimit, now)
	}
	s.send(headersAnswer(fieldAnswerResponseHeaders, s.conform(e.set), nil, nil))
	s.srv.cfg.Journal.Mark(s.note, journal.ResponseHeaders, now)
}

// attach makes l the prefill leg of this attempt. It reports false when the
// attempt is over, or has a leg already: a leg token is good for one leg.
func (s *mainStream) attach(l *prefillStream) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.leg != nil {
		return false
	}
	s.leg = l
	return true
}

func (s *mainStream) detach() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
}

// abort ends the prefill leg. One that is not here yet will find the attempt
// closed.
func (s *mainStream) abort() {
	s.mu.Lock()
	s.closed = true
	l, stop := s.leg, s.stopSync
	s.mu.Unlock()
	if l != nil {
		l.post(&event{kind: evAbort})
	}
	if stop != nil {
		stop(errLegAborted)
	}
}

// workers are the prefill and the decode worker, 0 for none.
func (s *mainStream) workers() [2]worker.ID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.picked
}

func (s *mainStream) mark(now time.Time, r legReport) {
	j := s.srv.cfg.Journal
	switch r.state {
	case legStarted:
		j.Mark(s.note, journal.PrefillStarted, now)
	case legWell:
		j.Mark(s.note, journal.PrefillWell, now)
		s.srv.cfg.Telemetry.WorkerAttempt(s.prefillLimit.subject.Worker, worker.Prefill, r.state.String())
		s.srv.learn(&s.prefillLimit, now)
		s.decodeLimit.from = now
	case legFailed:
		j.LegEnd(s.note, journal.LegFailed, string(r.reason), now)
		s.srv.cfg.Telemetry.Leg("owner_failed", string(r.reason))
		s.srv.cfg.Telemetry.WorkerAttempt(s.prefillLimit.subject.Worker, worker.Prefill, r.state.String())
	case legEnded:
		j.Mark(s.note, journal.PrefillEnded, now)
	}
}

var journalOutcome = map[outcome]journal.Outcome{
	blame.OK: journal.OK, blame.Retried: journal.Retried, outcomeRefused: journal.Refused, blame.OfWorker: journal.Rejected,
	blame.Failed: journal.Failed, blame.Cut: journal.Cut, blame.Left: journal.ClientLeft, outcomeAnswered: journal.Explained,
	blame.Unknown: journal.Unfinished,
}

// turnPage closes the record of a pair whose prefill has failed: one worker serves
// the request from here on, and has a record of its own.
func (s *mainStream) turnPage(now time.Time) {
	code := s.m.instead.code
	s.srv.cfg.Telemetry.AttemptEnded(string(blame.Retried))
	s.srv.cfg.Telemetry.FreshPick(code)
	s.srv.cfg.Journal.End(s.note, journal.Retried, code, 0, now)
	telemetry.End(s.decodeSpan, now, code)
}

// finish records how the attempt ended, once.
func (s *mainStream) finish(now time.Time, e *effect) {
	t := s.srv.cfg.Telemetry
	if !s.endedAt.IsZero() {
		now = s.endedAt // the access log comes later
	}
	code, status, detail := string(e.outcome), 0, ""
	if e.fail != nil {
		code, status, detail = e.fail.code, e.fail.status, e.fail.code
	}
	t.AttemptEnded(string(e.outcome))
	s.countWorker(e.outcome)
	switch e.outcome {
	case blame.Retried:
		if e.fail == nil {
			break // on Envoy's own word; the attempt that follows is counted
		}
		t.FreshPick(code)
		s.srv.avoid.add(&s.m, now)
	case outcomeRefused, blame.OfWorker, blame.Failed, blame.Cut:
		t.Failure(code)
		t.RequestEnded(string(e.outcome), code)
	default:
		t.RequestEnded(string(e.outcome), code)
	}
	if s.note.IsZero() {
		s.note = s.srv.noteRefusal(s, e)
	}
	s.srv.cfg.Journal.End(s.note, journalOutcome[e.outcome], detail, status, now)
	s.logFinish(e, detail)
	telemetry.End(s.decodeSpan, now, detail)
	telemetry.End(s.span, now, detail)
}

// logFinish writes the attempt's one line, at debug level.
func (s *mainStream) logFinish(e *effect, detail string) {
	log := s.srv.log
	ctx := s.grpc.Context()
	if !log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	attrs := []slog.Attr{
		slog.String(telemetry.KeyRequestID, s.m.hdr.requestID), slog.Int(telemetry.KeyAttempt, s.m.attempt),
		slog.String("outcome", string(e.outcome)), slog.String(telemetry.KeyReason, detail),
		slog.Duration("took", time.Since(s.began)),
	}
	if p := s.m.plan; p != nil {
		attrs = append(attrs, slog.String("decode", p.decode.String()))
		if p.disaggregated {
			attrs = append(attrs, slog.String("prefill", p.prefill.String()), slog.String(telemetry.KeyLeg, s.m.leg.String()))
		}
	}
	log.LogAttrs(ctx, slog.LevelDebug, "attempt ended", attrs...)
}

// abandon gives back what a panicked machine held.
func (s *mainStream) abandon() {
	s.decodeBooking.ReleaseIfHeld(time.Now())
	s.prefillBooking.ReleaseIfHeld(time.Now())
	s.srv.attempts.remove(s.nonce)
	s.leaveName(time.Now())
	s.abort()
	if s.timer != nil {
		s.timer.Stop()
	}
}
