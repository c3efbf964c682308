package extproc

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/budget"
	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/internal/extproc/wire"
	"github.com/seed-60ae5743/baton/internal/journal"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/route"
	"github.com/seed-60ae5743/baton/internal/subset"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// mainStream runs one main leg: its machine, its gRPC stream, what it has
// booked and the prefill leg that belongs to it. It outlives its gRPC stream
// while the prefill leg runs.
type mainStream struct {
	stream
	filter filter
	m      leg.Main

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
	strange        []string    // headers of the answer that its worker may not set
	pass           func()      // lets decode's first events go on
	looked         atomic.Bool // a stream here reads them
	prompt         telemetry.PromptTokens
	asked          route.Answer
	others         []route.Destination
	again          *route.Again
	counts         tokenCounts // what engines say
	tokenAt        time.Time   // when the first token was seen, where that is not the head's time
	sent           sent
	body, own      budget.Share // of bodies in flight: the request's, and those of legs of our own
	letIn          bool         // the request's had room in an earlier attempt

	mu     sync.Mutex
	leg    *prefillStream // guarded by mu: the leg that has come
	closed bool           // guarded by mu: no leg is wanted any more
	picked [2]worker.Rank // guarded by mu: for prefill and for decode; of worker 0: none
	begun  bool           // guarded by mu: a leg of our own has reached Envoy

	carrier carrier // guarded by mu: the replica at which the leg runs; zero: here, or not known

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
	prompt          telemetry.PromptTokens
	answer          route.Answer
	others          []route.Destination // who else may serve, of several that decode's address names
	again           *route.Again        // to pick decode again, should it go while prefill runs; nil: not
}

func (s *mainStream) post(ev *notice) { s.act.post(ev) }

func (s *mainStream) handle(ev *notice) {
	defer func() {
		if r := recover(); r != nil {
			s.recovered("main", r)
			s.abandon()
		}
	}()
	if s.broken {
		if ev.Kind == leg.EventPicked { // booked after the panic
			ev.booked.prefill.ReleaseIfHeld(time.Now())
			ev.booked.decode.ReleaseIfHeld(time.Now())
			s.srv.attempts.remove(ev.Plan.Nonce)
		}
		return
	}
	s.prepare(ev)
	now := time.Now()
	for i, effects := 0, s.m.Step(now, &ev.Event); i < len(effects); i++ {
		s.perform(now, &effects[i])
	}
	for _, x := range s.m.Sightings() {
		s.srv.cfg.Telemetry.Seen(x.Leg.Label(), string(x.Sight))
	}
	if ev.Kind == leg.EventRequestHeaders {
		s.comeByName(now)
	}
	s.let()
	s.arm(s.m.WakeAt(), s.fire, ev.Kind == leg.EventTimer)
	s.owes.Store(s.m.Owes())
}

// prepare adds to an event what the machine has to know of the world, and takes what
// is the stream's own.
func (s *mainStream) prepare(ev *notice) {
	s.counts.hear(ev)
	s.hold(ev)
	switch ev.Kind {
	case leg.EventClosed:
		s.deaf = true
		if s.m.Answering() {
			s.endedAt = time.Now()
		}
	case leg.EventRequestHeaders:
		if s.m.Awaits(leg.EventRequestHeaders) {
			s.fullDuplex, s.answerDuplex = ev.FullDuplex, ev.AnswerDuplex
			s.begin(ev)
		}
	case leg.EventResponseHeaders:
		if s.m.Awaits(leg.EventRequestHeaders) { // a filter before ours has answered: this is the stream's first word
			s.fullDuplex, s.answerDuplex, s.began = ev.FullDuplex, ev.AnswerDuplex, time.Now()
		}
		ev.Answerer = s.answererOf(ev)
		s.strange = s.filter.strangeIn(ev.Headers)
		s.beforeHead(ev)
	case leg.EventFound:
		s.pass = ev.pass
		if decode, ok := s.m.DecodeMate(); ok {
			ev.Odd = odd(s.srv.cfg.Health, decode, ev.Status)
		}
	case leg.EventLeg:
		if prefill, ok := s.m.PrefillMate(); ok && ev.Leg.Reason == blame.Rejected {
			ev.Leg.Odd = odd(s.srv.cfg.Health, prefill, ev.Leg.Status)
		}
	case leg.EventPicked:
		if s.m.InPlaceOf() != nil && !s.m.Concluded() {
			s.turnPage(time.Now())
		}
		ev.booked.give(s, ev.Plan.Nonce)
	case leg.EventPrefilled:
		if prefill, ok := s.m.PrefillMate(); ok && ev.Answer.LocalReply == "" {
			ev.Answer.Odd = odd(s.srv.cfg.Health, prefill, ev.Answer.Status)
		}
		ev.Moved = s.keepDecode(ev.Answer)
	case leg.EventRefused, leg.EventAnswered:
		ev.booked.tell(s)
	case leg.EventLogged:
		s.sent = ev.sent
	}
}

// beforeHead is prepare for decode's head.
func (s *mainStream) beforeHead(ev *notice) {
	if !s.m.Awaits(leg.EventResponseHeaders) {
		return
	}
	if s.m.Plan().Looks && !s.looked.Load() {
		s.srv.unread(ev.Headers)
	}
	if decode, ok := s.m.DecodeMate(); ok && ev.Headers.LocalReply == "" {
		ev.Odd = odd(s.srv.cfg.Health, decode, leg.StatusOf(ev.Headers.Status))
	}
}

// give hands the stream what was decided for it.
func (b *booked) give(s *mainStream, nonce uint64) {
	s.prefillBooking, s.decodeBooking = b.prefill, b.decode
	s.note, s.decodeSpan, s.nonce = b.note, b.span, nonce
	s.prompt, s.asked = b.prompt, b.answer
	s.others, s.again = b.others, b.again
	if s.m.Concluded() { // the attempt ended while its tokens were counted
		s.srv.cfg.Journal.End(s.note, decision.ClientLeft, "before the decision", 0, time.Now())
		telemetry.End(s.decodeSpan, time.Now(), "too late")
	}
}

// tell says under which note a request is known that nothing was booked for; nil: under none.
func (b *booked) tell(s *mainStream) {
	if b != nil {
		s.note = b.note
	}
}

// comeByName notes the attempt's name, by which an access log may mean it or
// another one. Where no hand-off goes through us nothing depends on it.
func (s *mainStream) comeByName(now time.Time) {
	if s.srv.legClient == nil || s.bears || s.m.Over() {
		return
	}
	s.bears = true
	s.srv.unrouted.come(s, s.name(), now)
}

// leaveName forgets the name. An attempt that decode has answered was routed, and
// its log says so.
func (s *mainStream) leaveName(now time.Time) {
	if s.bears {
		s.bears = false
		s.srv.unrouted.leave(s.name(), !s.m.Answer().HeadCame(), now)
	}
}

// name is the attempt as Envoy's access log may name it.
func (s *mainStream) name() attemptName {
	q := s.m.Request()
	return nameOf(q.Headers.RequestID, q.Attempt)
}

func (s *mainStream) fire() { s.post(just(leg.Event{Kind: leg.EventTimer})) }

func (s *mainStream) begin(ev *notice) {
	s.began = time.Now()
	s.subset = s.srv.subsetOf(ev, s.filter.Gateway())
	ev.Received = s.srv.receipt(s.grpc.Context(), ev.Headers, s.began)
	if ev.Headers.RequestID == "" {
		ev.Headers.RequestID, ev.Unnamed = uuid.NewString(), true
	}
	if s.srv.cfg.Tracer.Enabled() {
		parent := telemetry.Extract(ev.Headers.Traceparent, ev.Headers.Tracestate)
		s.span = s.srv.cfg.Tracer.Start(parent, telemetry.SpanRequest, s.began)
	}
}

func (s *mainStream) perform(now time.Time, e *leg.Effect) {
	switch e.Op {
	case leg.OpContinue:
		s.sendContinue(e)
	case leg.OpRoute:
		s.route(now, e)
	case leg.OpRouteHeaders:
		s.send(s.srv.replies.RouteHeaders(&wire.Route{Set: e.Set, Remove: e.Remove}))
	case leg.OpRelay:
		s.relay(now, e)
	case leg.OpImmediate:
		s.sendImmediate(e.Imm)
	case leg.OpExtend:
		if e.Holds {
			s.heldAt = now
		}
		s.send(wire.Extend(e.Wait))
	case leg.OpPrefill:
		s.askPrefill(e)
	case leg.OpCollect:
		s.collect(e)
	case leg.OpPick:
		if e.Fail != nil {
			s.began = now // of the record that one worker gets
		}
		s.decide(e.Fail)
	case leg.OpModels:
		s.sendImmediate(s.srv.models(e.Model, e.Retry))
	case leg.OpAbortLeg:
		s.abort()
	case leg.OpCharge, leg.OpSuspect, leg.OpPairFailed, leg.OpPairServed:
		s.judge(now, e)
	case leg.OpServed:
		s.served(now, e.Rank)
	case leg.OpReleaseDecode:
		s.decodeBooking.Release(now)
	case leg.OpReleasePrefill:
		s.prefillBooking.Release(now)
		s.detach()
	case leg.OpMark:
		s.mark(now, e.Report)
	case leg.OpFinish:
		s.finish(now, e)
	case leg.OpLeave:
		s.deaf = true
		s.finishStream()
	case leg.OpFound:
		s.srv.cfg.Telemetry.FirstEvents(e.Found.String())
		s.tokenAt = now
	case leg.OpPass:
		if s.pass != nil {
			s.pass()
		}
	case leg.OpForget:
		s.srv.attempts.remove(s.nonce)
		if s.m.Over() {
			s.leaveName(now)
		}
		s.detach()
	}
}

func (s *mainStream) route(now time.Time, e *leg.Effect) {
	if !s.m.PrefillAwaited() {
		s.decodeLimit.from = now
	}
	if s.m.Unsure() {
		s.srv.unrouted.handOff(s, s.name())
	}
	s.sendRoute(e)
}

func (s *mainStream) relay(now time.Time, e *leg.Effect) {
	if !s.heldAt.IsZero() {
		s.srv.cfg.Telemetry.PrefillWaited(now.Sub(s.heldAt))
	}
	if !s.m.Plan().Disaggregated {
		s.decodeBooking.PrefillDone(math.MaxInt64, now) // the answer has begun: its prompt is done
	}
	if s.m.ServesSoFar() {
		s.decodeLimit.learn(&s.srv.patience, now)
		s.srv.cfg.Health.Began(s.m.Plan().Decode)
	}
	s.send(wire.Relay(s.conform(e.Set), s.strange))
	s.srv.cfg.Journal.Mark(s.note, decision.ResponseHeaders, now)
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
	l, stop, at := s.leg, s.stopSync, s.carrier
	s.mu.Unlock()
	if l != nil {
		l.post(just(leg.Event{Kind: leg.EventAbort}))
	}
	if at.addr != "" {
		s.srv.peers.abort(at.addr, s.m.Plan().Token)
	}
	if stop != nil {
		stop(errLegAborted)
	}
}

// workers are the prefill and the decode worker, 0 for none.
func (s *mainStream) ranks() [2]worker.Rank {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.picked
}

// abandon gives back what a panicked machine held.
func (s *mainStream) abandon() {
	s.decodeBooking.ReleaseIfHeld(time.Now())
	s.prefillBooking.ReleaseIfHeld(time.Now())
	s.srv.attempts.remove(s.nonce)
	s.leaveName(time.Now())
	s.body.Set(s.srv.bodies, 0)
	s.own.Set(s.srv.bodies, 0)
	s.abort()
	if s.timer != nil {
		s.timer.Stop()
	}
}
