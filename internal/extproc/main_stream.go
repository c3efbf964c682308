package extproc

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// mainStream runs one main leg. It has the machine, the gRPC stream, and four parts, each of which
// alone writes its fields; it passes events to them and reads what they hold. It outlives its gRPC
// stream while the prefill leg runs.
type mainStream struct {
	stream
	filter filter
	m      leg.Main

	asked    asked    // the request
	decided  decided  // who serves it
	far      farLeg   // the prefill leg
	answered answered // the answer

	owes atomic.Bool // whether the machine says that held KV may have to be collected
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
			ev.booked.giveBack(time.Now())
			s.srv.attempts.remove(ev.Plan.Nonce)
		}
		return
	}
	if !s.answered.failed.awaits(s, ev) && !s.answered.failed.followedBy(s, ev) {
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
		s.asked.comeByName(s, now)
	}
	if !s.m.Waits() {
		s.asked.goOn(&s.srv.waiting)
	}
	s.let()
	s.arm(s.m.WakeAt(), s.fire, ev.Kind == leg.EventTimer)
	s.owes.Store(s.m.Owes())
}

// prepare adds to the event what the machine needs beside it, and stores what the event
// brings for the stream itself.
func (s *mainStream) prepare(ev *notice) {
	hearCounts(s, ev)
	s.decided.compared.hear(ev, &s.answered.counts)
	s.hold(ev)
	switch ev.Kind {
	case leg.EventClosed:
		s.deaf = true
		if s.m.Answering() {
			s.answered.ended(time.Now())
		}
	case leg.EventRequestHeaders:
		if s.m.Awaits(leg.EventRequestHeaders) {
			s.fullDuplex, s.answerDuplex = ev.FullDuplex, ev.AnswerDuplex
			s.asked.begin(s, ev)
		}
	case leg.EventResponseHeaders:
		s.beforeHead(ev)
	case leg.EventTimer, leg.EventMute:
		now := time.Now()
		ev.Repeat = s.m.WouldRepeat(now, &ev.Event) && s.srv.patience.Repeat(s.decided.limits.decode.subject.Pool, now)
	case leg.EventFound:
		s.answered.found(ev.pass)
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
		s.decided.take(ev.booked, ev.Plan.Nonce)
		if s.m.Concluded() { // the attempt ended while its tokens were counted
			s.decided.tooLate(s, time.Now())
		}
	case leg.EventPrefilled:
		if prefill, ok := s.m.PrefillMate(); ok && ev.Answer.LocalReply == "" {
			ev.Answer.Odd = odd(s.srv.cfg.Health, prefill, ev.Answer.Status)
		}
		ev.Moved = s.keepDecode(ev.Answer)
	case leg.EventRefused, leg.EventAnswered:
		s.decided.tell(ev.booked)
	case leg.EventLogged:
		s.answered.logged(ev.sent)
		if p := s.m.Plan(); ev.Seen == blame.Stalled && p != nil {
			s.answered.still.cut(time.Now(), p.GapWithin)
		}
	case leg.EventRuns:
		if p := s.m.Plan(); p != nil && p.GapWithin > 0 && s.answered.still.sees(ev.Bytes, time.Now(), &s.srv.still) > p.GapWithin {
			s.post(just(leg.Event{Kind: leg.EventStalled, Bytes: ev.Bytes}))
		}
	}
}

// beforeHead is prepare for response headers.
func (s *mainStream) beforeHead(ev *notice) {
	if s.m.Awaits(leg.EventRequestHeaders) { // a filter before this one has answered: this is the stream's first message
		s.fullDuplex, s.answerDuplex = ev.FullDuplex, ev.AnswerDuplex
		s.asked.beginAt(time.Now())
	}
	ev.Answerer = s.answererOf(ev)
	s.answered.head(s.filter.strangeIn(ev.Headers))
	if !s.m.Awaits(leg.EventResponseHeaders) {
		return
	}
	if s.m.Plan().Looks && !s.answered.looked.Load() && !s.srv.rules.Replicas { // else another replica may have the stream
		s.srv.said.unreadHead(ev.Headers)
	}
	if decode, ok := s.m.DecodeMate(); ok && ev.Headers.LocalReply == "" {
		ev.Odd = odd(s.srv.cfg.Health, decode, leg.StatusOf(ev.Headers.Status))
	}
}

func (s *mainStream) fire() { s.post(just(leg.Event{Kind: leg.EventTimer})) }

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
			s.asked.beginAt(now) // for the record of the one worker
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
		s.decided.decode.Release(now)
	case leg.OpReleasePrefill:
		s.decided.prefill.Release(now)
		s.far.detach()
	case leg.OpMark:
		s.mark(now, e.Report)
	case leg.OpFinish:
		s.finish(now, e)
	case leg.OpLeave:
		s.deaf = true
		s.finishStream()
	case leg.OpFound:
		s.srv.cfg.Telemetry.FirstEvents(e.Found.String())
		s.answered.firstEvents(now)
	case leg.OpPass:
		s.answered.goOn()
	case leg.OpForget:
		s.answered.still.over(&s.srv.patience, s.decided.limits.gap)
		s.far.span.end()
		s.srv.attempts.remove(s.decided.nonce)
		if s.m.Over() {
			s.asked.leaveName(s, now)
		}
		s.far.detach()
	}
}

func (s *mainStream) route(now time.Time, e *leg.Effect) {
	if !s.m.PrefillAwaited() {
		s.decided.limits.decode.begin(now)
	}
	s.decided.losing.Store(int32(s.m.Plan().Lost) + 1)
	if !s.sendRoute(e) {
		s.decided.losing.Store(0)
		s.post(just(leg.Event{Kind: leg.EventStale}))
	}
}

func (s *mainStream) relay(now time.Time, e *leg.Effect) {
	if e.Holds {
		s.srv.cfg.Telemetry.PrefillWaited(e.Wait)
	}
	if !s.m.Plan().Disaggregated {
		s.decided.decode.PrefillDone(math.MaxInt64, now) // the answer has begun, so the prompt is computed
	}
	if s.m.ServesSoFar() {
		held, _ := s.srv.cfg.Book.DecodingBlocks(s.m.Plan().Decode, now)
		s.answered.began(held)
		if !s.m.Plan().Disaggregated {
			s.srv.Paces.prompt(s, worker.Aggregated, computing(s.m.Plan()), s.decided.decode, now)
		}
		s.decided.limits.decode.learn(&s.srv.patience, now)
		s.srv.cfg.Health.Began(s.m.Plan().Decode, now)
		if r := computing(s.m.Plan()); r.ID != 0 {
			if w := s.srv.view.Load().Worker(r.ID); w != nil {
				s.decided.claim.Computed(r, w.Endpoint)
			}
		}
	}
	s.send(s.answered.failed.relay(s.conform(e.Set), s.answered.strange, gapOf(e.Gap)))
	s.srv.cfg.Journal.Mark(s.decided.note, decision.ResponseHeaders, now)
}

// abort ends the prefill leg. A leg that comes later is refused.
func (s *mainStream) abort() {
	if at := s.far.abort(); at.addr != "" {
		s.srv.peers.abort(at.addr, s.m.Plan().Token, func() {
			s.post(just(leg.Event{Kind: leg.EventLeg, Leg: leg.Report{State: leg.Ended, Reason: blame.Aborted}}))
		})
	}
}

// abandon gives back what the attempt holds, after a panic of its machine.
func (s *mainStream) abandon() {
	s.decided.giveBack(time.Now())
	s.srv.attempts.remove(s.decided.nonce)
	s.asked.leaveName(s, time.Now())
	shaped(s, time.Now(), &leg.Effect{})
	s.asked.goOn(&s.srv.waiting)
	s.asked.body.Set(s.srv.bodies, 0)
	s.far.body.Set(s.srv.bodies, 0)
	s.abort()
	if s.timer != nil {
		s.timer.Stop()
	}
}
