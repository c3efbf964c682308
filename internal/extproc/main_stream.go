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
	"github.com/seed-60ae5743/baton/internal/journal"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/route"
	"github.com/seed-60ae5743/baton/internal/subset"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/pkg/tokens"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// mainStream runs one main leg. It has the machine, the gRPC stream, the bookings and the
// prefill leg of the attempt. It outlives its gRPC stream while the prefill leg runs.
type mainStream struct {
	stream
	filter filter
	m      leg.Main

	// Owned by the goroutine that handles an event.
	decodeBooking  *load.Reservation
	prefillBooking *load.Reservation
	note           journal.Handle
	recorded       uint64 // number of the decision at the recorder; 0: none, or its end is recorded
	began          time.Time
	endedAt        time.Time // when the gRPC stream ended, if an answer was on its way then; else zero
	span           trace.Span
	decodeSpan     trace.Span
	legSpan        legSpan // of a prefill leg that the plugin sends
	nonce          uint64
	bears          bool        // the attempt is noted in unrouted
	subset         *subset.Set // endpoints that the data plane allows; nil: all
	servedBy       string      // endpoint that has served, as the data plane names it
	told           string      // the same, but only from the protocol's metadata
	strange        []string    // headers of the answer that its worker may not set
	failed         failedHead
	pass           func()      // lets the answer go on after its first events; nil: no stream waits
	looked         atomic.Bool // a stream of this process reads the first events
	prompt         telemetry.PromptTokens
	belief         belief
	claim          tokens.Claim // of the prompt's tokens
	compared       *comparison  // of what its two workers count; nil: of nothing
	asked          route.Answer
	wellAt         time.Time // when prefill was well
	heldBlocks     int64     // KV blocks of decode's rank when the answer began, its own included
	others         []route.Destination
	again          *route.Again
	counts         tokenCounts // as engines tell them
	tokenAt        time.Time   // when this stream read the first events; zero: it did not
	sent           sent
	shape          shape        // zero: not known, or none
	tries          bool         // the request is let through to try its shape, which is held back
	body, own      budget.Share // of bodies in flight: the request's, and those of the plugin's own legs
	letIn          bool         // the request's body had room in an earlier attempt
	waits          atomic.Int64 // the request's part in waiting.bytes

	mu     sync.Mutex
	leg    *prefillStream // guarded by mu: the mirrored leg that has come to this process
	closed bool           // guarded by mu: a prefill leg that comes is refused
	picked [2]worker.Rank // guarded by mu: for prefill and for decode; ID 0: none
	begun  bool           // guarded by mu: the plugin's own prefill leg has reached Envoy

	carrier carrier // guarded by mu: the replica at which the leg runs; zero: here, or not known

	stopSync context.CancelCauseFunc // guarded by mu: ends the plugin's own prefill leg

	// Owned by the decision until it is posted, then by the goroutine that handles an event.
	startLimit, prefillLimit, decodeLimit limited
	still                                 still

	losing atomic.Int32 // how many workers the request has lost, if the one that was sent it is lost; 0: none was

	owes atomic.Bool // whether the machine says that held KV may have to be collected
}

// booked is what a decision gives to its stream beside the plan.
type booked struct {
	prefill, decode *load.Reservation
	note            journal.Handle
	span            trace.Span // of the decode leg
	prompt          telemetry.PromptTokens
	belief          belief
	claim           tokens.Claim // of the prompt's tokens
	compared        *comparison
	answer          route.Answer
	others          []route.Destination // other endpoints that decode's address names
	recorded        uint64
	again           *route.Again // to pick decode again if it leaves while prefill runs; nil: it is not picked again
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
		if ev.Kind == leg.EventPicked { // the decision was made after the panic
			ev.booked.prefill.ReleaseIfHeld(time.Now())
			ev.booked.decode.ReleaseIfHeld(time.Now())
			s.srv.attempts.remove(ev.Plan.Nonce)
		}
		return
	}
	if !s.failed.awaits(s, ev) && !s.failed.followedBy(s, ev) {
		s.step(ev)
	}
}

// step has the machine take an event, and performs what follows.
func (s *mainStream) step(ev *notice) {
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
	if !s.m.Waits() {
		s.srv.waiting.leave(s)
	}
	s.let()
	s.arm(s.m.WakeAt(), s.fire, ev.Kind == leg.EventTimer)
	s.owes.Store(s.m.Owes())
}

// prepare adds to the event what the machine needs beside it, and stores what the event
// brings for the stream itself.
func (s *mainStream) prepare(ev *notice) {
	hearCounts(s, ev)
	s.compared.hear(ev, &s.counts)
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
		if s.m.Awaits(leg.EventRequestHeaders) { // a filter before this one has answered: this is the stream's first message
			s.fullDuplex, s.answerDuplex, s.began = ev.FullDuplex, ev.AnswerDuplex, time.Now()
		}
		ev.Answerer = s.answererOf(ev)
		s.strange = s.filter.strangeIn(ev.Headers)
		s.beforeHead(ev)
	case leg.EventTimer, leg.EventMute:
		now := time.Now()
		ev.Repeat = s.m.WouldRepeat(now, &ev.Event) && s.srv.patience.Repeat(s.decodeLimit.subject.Pool, now)
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
		if p := s.m.Plan(); ev.Seen == blame.Stalled && p != nil {
			s.still.cut(time.Now(), p.GapWithin)
		}
	case leg.EventRuns:
		if p := s.m.Plan(); p != nil && p.GapWithin > 0 && s.still.sees(ev.Bytes, time.Now(), &s.srv.still) > p.GapWithin {
			s.post(just(leg.Event{Kind: leg.EventStalled, Bytes: ev.Bytes}))
		}
	}
}

// beforeHead is prepare for decode's response headers.
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

// give stores in the stream what the decision has booked and noted.
func (b *booked) give(s *mainStream, nonce uint64) {
	s.recorded = b.recorded
	s.prefillBooking, s.decodeBooking = b.prefill, b.decode
	s.note, s.decodeSpan, s.nonce = b.note, b.span, nonce
	s.prompt, s.claim, s.compared, s.asked = b.prompt, b.claim, b.compared, b.answer
	s.others, s.again, s.belief = b.others, b.again, b.belief
	if s.m.Concluded() { // the attempt ended while its tokens were counted
		s.srv.cfg.Journal.End(s.note, decision.ClientLeft, "before the decision", 0, time.Now())
		recordEnd(s, time.Now(), blame.Left)
		telemetry.End(s.decodeSpan, time.Now(), "too late")
	}
}

// tell stores in the stream the record of a request for which nothing was booked. If b is
// nil, there is no record yet.
func (b *booked) tell(s *mainStream) {
	if b != nil {
		s.note = b.note
	}
}

// comeByName notes the attempt's name in unrouted, so that an entry of the access log
// without the attempt's number finds the attempt. Only hand-offs through the plugin need
// this, so without a legClient nothing is noted.
func (s *mainStream) comeByName(now time.Time) {
	if s.srv.legClient == nil || s.bears || s.m.Over() {
		return
	}
	s.bears = true
	s.srv.unrouted.come(s, nameOfAttempt(s.m.Request()), now)
}

// leaveName removes the attempt's name from unrouted. If decode has answered, the attempt
// was routed, so its entry in the access log has the attempt's number.
func (s *mainStream) leaveName(now time.Time) {
	if s.bears {
		s.bears = false
		s.srv.unrouted.leave(nameOfAttempt(s.m.Request()), !s.m.Answer().HeadCame(), now)
	}
}

// nameOfAttempt returns the name that Envoy's access log gives to the attempt if it was not
// routed.
func nameOfAttempt(q *leg.Request) attemptName {
	return nameOf(q.Headers.RequestID, q.Attempt)
}

func (s *mainStream) fire() { s.post(just(leg.Event{Kind: leg.EventTimer})) }

func (s *mainStream) begin(ev *notice) {
	s.began = time.Now()
	s.srv.tellUnheeded(ev.Headers.Unheeded)
	s.subset = s.srv.subsetOf(ev, s.filter.Gateway())
	ev.Received = s.srv.receipt(s.grpc.Context(), ev.Headers, !s.filter.Gateway(), s.began)
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
		s.send(wire.Extend(e.Wait))
	case leg.OpPrefill:
		s.askPrefill(e, s.ended())
	case leg.OpCollect:
		s.collect(e)
	case leg.OpPick:
		if e.Fail != nil {
			s.began = now // for the record of the one worker
		}
		s.decide(e.Fail)
	case leg.OpModels, leg.OpHealth:
		s.sendImmediate(ownAnswer(s.srv, e))
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
		s.still.over(&s.srv.patience)
		s.legSpan.end()
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
	s.losing.Store(int32(s.m.Plan().Lost) + 1)
	if !s.sendRoute(e) {
		s.losing.Store(0)
		s.post(just(leg.Event{Kind: leg.EventStale}))
	}
}

func (s *mainStream) relay(now time.Time, e *leg.Effect) {
	if e.Holds {
		s.srv.cfg.Telemetry.PrefillWaited(e.Wait)
	}
	if !s.m.Plan().Disaggregated {
		s.decodeBooking.PrefillDone(math.MaxInt64, now) // the answer has begun, so the prompt is computed
	}
	if s.m.ServesSoFar() {
		s.heldBlocks, _ = s.srv.cfg.Book.DecodingBlocks(s.m.Plan().Decode, now)
		if !s.m.Plan().Disaggregated {
			s.srv.Paces.prompt(s, worker.Aggregated, computing(s.m.Plan()), s.decodeBooking, now)
		}
		s.decodeLimit.learn(&s.srv.patience, now)
		s.srv.cfg.Health.Began(s.m.Plan().Decode, now)
		if r := computing(s.m.Plan()); r.ID != 0 {
			if w := s.srv.view.Load().Worker(r.ID); w != nil {
				s.claim.Computed(r, w.Endpoint)
			}
		}
	}
	s.send(s.failed.relay(s.conform(e.Set), s.strange, gapOf(e.Gap)))
	s.srv.cfg.Journal.Mark(s.note, decision.ResponseHeaders, now)
}

// attach makes l the prefill leg of this attempt. It returns false if the attempt wants no
// leg any more, or has one already: a leg token is good for one leg.
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

// abort ends the prefill leg. A leg that comes later is refused.
func (s *mainStream) abort() {
	s.mu.Lock()
	s.closed = true
	l, stop, at := s.leg, s.stopSync, s.carrier
	s.mu.Unlock()
	if l != nil {
		l.post(just(leg.Event{Kind: leg.EventAbort}))
	}
	if at.addr != "" {
		s.srv.peers.abort(at.addr, s.m.Plan().Token, func() {
			s.post(just(leg.Event{Kind: leg.EventLeg, Leg: leg.Report{State: leg.Ended, Reason: blame.Aborted}}))
		})
	}
	if stop != nil {
		stop(errLegAborted)
	}
}

// ranks returns the ranks picked for prefill and for decode. ID 0 means none.
func (s *mainStream) ranks() [2]worker.Rank {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.picked
}

// abandon gives back what the attempt holds, after a panic of its machine.
func (s *mainStream) abandon() {
	s.decodeBooking.ReleaseIfHeld(time.Now())
	s.prefillBooking.ReleaseIfHeld(time.Now())
	s.srv.attempts.remove(s.nonce)
	s.leaveName(time.Now())
	shaped(s, time.Now(), &leg.Effect{})
	s.srv.waiting.leave(s)
	s.body.Set(s.srv.bodies, 0)
	s.own.Set(s.srv.bodies, 0)
	s.abort()
	if s.timer != nil {
		s.timer.Stop()
	}
}
