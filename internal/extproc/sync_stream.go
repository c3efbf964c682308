package extproc

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// syncStream admits one leg that this plugin or a replica has sent itself. It checks the seal
// and tells Envoy where the leg goes. The rest is between Envoy and the sender.
type syncStream struct {
	stream
	seen bool
}

func (s *syncStream) handle(ev *notice) {
	defer func() {
		if r := recover(); r != nil {
			s.recovered("sync", r, noWorker)
		}
	}()
	switch {
	case s.broken:
	case ev.Kind == leg.EventClosed:
		s.deaf = true
	case ev.Kind == leg.EventRequestHeaders && !s.seen:
		s.seen = true
		s.admit(ev)
	default: // Envoy was told to send nothing else
		s.refuse(&leg.FailProtocol, "protocol")
	}
}

// noWorker marks an answer of syncStream's. Without the mark the sender of the leg would
// treat the answer as the worker's.
var noWorker = wire.Header{Name: prefill.HeaderLocalReply, Value: "-"}

func (s *syncStream) admit(ev *notice) {
	srv := s.srv
	sealed, err := srv.sealer.Open(ev.Headers.Leg)
	if err != nil || sealed.Kind != prefill.SyncLeg && sealed.Kind != prefill.CollectLeg {
		s.refuse(&leg.FailLegRefused, "token")
		return
	}
	w := srv.view.Load().Worker(sealed.Prefill.ID)
	switch {
	case w == nil || w.EndpointOf(sealed.Prefill.DPRank).IsZero():
		s.refuse(&leg.FailLegGone, "gone")
		return
	case !sealed.Deadline.After(time.Now()):
		s.refuse(&leg.FailLegLate, "late")
		return
	}
	if sealed.Kind == prefill.SyncLeg && !s.wanted(sealed) || sealed.Kind == prefill.CollectLeg && !s.collects(sealed) {
		s.refuse(&leg.FailLegLate, "late")
		return
	}
	srv.peers.meet(sealed.Owner)
	srv.cfg.Telemetry.Leg("admitted", "")
	s.send(wire.Mutate([]wire.Header{
		{Name: prefill.HeaderPrefillEndpoint, Value: w.EndpointOf(sealed.Prefill.DPRank).String()},
		{Name: "x-envoy-upstream-rq-timeout-ms", Value: strconv.FormatInt(max(time.Until(sealed.Deadline).Milliseconds(), 1), 10)},
	}, []string{prefill.HeaderLeg, prefill.HeaderDestination, prefill.HeaderPrefillCluster}))
	s.finishStream() // Envoy 1.36 would keep the stream to the answer's end, and end the leg if the plugin died
}

// wanted returns false if the attempt wants no leg any more, or has one already. That is not
// checked for another replica's attempt.
func (s *syncStream) wanted(sealed prefill.Leg) bool {
	if sealed.Owner != s.srv.owner {
		return true
	}
	owner := s.srv.attempts.find(sealed.Nonce)
	return owner != nil && owner.far.admit()
}

// collects returns false if this collecting leg of this process has come before: a token is
// good for one leg. That is not checked for another replica's leg.
func (s *syncStream) collects(sealed prefill.Leg) bool {
	return sealed.Owner != s.srv.owner || s.srv.collected.first(collecting{sealed.Nonce, sealed.Prefill.ID}, time.Now())
}

func (s *syncStream) refuse(f *leg.Failure, label string) {
	s.srv.cfg.Telemetry.Leg("refused", label)
	s.srv.cfg.Telemetry.Failure(f.Code)
	im := leg.ImmediateOf(f, "", false)
	im.Headers = append(im.Headers, noWorker)
	s.sendImmediate(im)
}

// askPrefill sends the prefill leg, and posts that it has begun and what its answer is. A leg
// has begun once Envoy has taken the whole request: from then on it is a worker that is slow.
// Nothing is sent if the stream has ended: nobody waits for the leg.
func (s *mainStream) askPrefill(e *leg.Effect, ended bool) {
	ctx, stop := context.WithCancelCause(s.srv.legs)
	ctx, cancel := context.WithTimeout(ctx, e.Wait)
	q := s.m.Request()
	path, set, body, limit := q.Path.String(), carried(e.Set, q.Headers.All), e.Body, legAnswerLimit
	if e.Unread {
		limit = legAnswerRead
	}
	s.far.body.Set(s.srv.bodies, int64(len(body)))
	var span legSpan
	if s.srv.cfg.Tracer.Enabled() {
		p := s.m.Plan()
		span = legSpan{span: s.srv.cfg.Tracer.Start(s.asked.span.SpanContext(), telemetry.SpanPrefillLeg, time.Now()), prefill: p.Prefill, endpoint: p.PrefillAddr}
	}
	s.far.send(stop, span)
	end := func(a *leg.OwnAnswer) { s.post(just(leg.Event{Kind: leg.EventPrefilled, Answer: a})) }
	if ended { // the stream's reader says so later: until then the attempt would take this for a failure of the leg
		s.post(just(leg.Event{Kind: leg.EventClosed}))
	}
	begun := func() {
		s.srv.cfg.Telemetry.Leg(leg.Started.String(), "")
		s.post(just(leg.Event{Kind: leg.EventLeg, Leg: leg.Report{State: leg.Started}}))
	}
	began := !ended && s.srv.senders.run(func() {
		defer stop(nil)
		defer cancel()
		defer s.survive("prefill_sender", func() { end(&leg.OwnAnswer{Err: errPanicked}) })
		a := s.srv.legClient.send(ctx, path, set, newLegBody(body, begun), limit)
		if a.Spent {
			s.srv.rules.Buffers.Return(body)
		}
		end(a)
	})
	if !began {
		cancel()
		stop(nil)
		end(&leg.OwnAnswer{Err: errClosed})
	}
}

// Errors with which the plugin's own legs end without an answer.
var (
	errClosed   = errors.New("the server is closed")
	errPanicked = errors.New("what sends it has panicked")
)

// survive must be deferred in a task of the stream. After a panic it calls post, which has
// to tell the stream, so that this request ends and no other does.
func (s *mainStream) survive(where string, post func()) {
	if r := recover(); r != nil {
		s.srv.panicked(where, r)
		post()
	}
}

// collect lets a decode worker fetch the KV that prefill holds
// (docs/behaviour.md#collected). It asks the booked worker first. If that worker has left, is
// set aside or cannot be reached, and the request has not named it, collect asks others:
// collectTries workers at most, the booked one included.
func (s *mainStream) collect(e *leg.Effect) {
	p, again, path, body, until := *s.m.Plan(), s.decided.again, e.Path.String(), e.Body, e.Until
	took := func(w *worker.Worker, dp worker.DPRank) bool {
		ctx, cancel := context.WithTimeout(s.srv.legs, collectTimeout)
		defer cancel()
		deadline, _ := ctx.Deadline()
		token, err := s.srv.sealer.Seal(prefill.Leg{
			Kind: prefill.CollectLeg, Owner: s.srv.owner, Nonce: p.Nonce, Deadline: deadline,
			Prefill: worker.Rank{ID: w.ID, DPRank: dp},
		})
		if err != nil {
			return false
		}
		set := s.m.LegHeaders(dp, w.RanksPerPort(), token, w.EndpointOf(dp).String())
		src := newLegBody(body, nil)
		src.until = until
		return s.srv.legClient.send(ctx, path, carried(set, s.m.Request().Headers.All), src, legAnswerLimit).Taken()
	}
	const failed = "collect_failed"
	began := s.srv.legClient != nil && s.srv.senders.run(func() {
		defer s.post(just(leg.Event{Kind: leg.EventCollected}))
		defer s.survive("collect_sender", func() { s.srv.cfg.Telemetry.Leg(failed, "") })
		outcome := failed
		w, dp := s.srv.view.Load().Worker(p.Decode.ID), p.Decode.DPRank
		for tried := []worker.ID{p.Decode.ID}; len(tried) <= collectTries; {
			if w != nil && s.asked.subset.Allows(w.EndpointOf(dp).AddrPort()) && (p.DecodeNamed || !s.srv.cfg.Health.Aside(worker.Rank{ID: w.ID, DPRank: dp})) && took(w, dp) {
				outcome = "collected"
				break
			}
			if p.DecodeNamed {
				break
			}
			w, dp = s.srv.router.Collector(again, s.srv.view.Load(), tried)
			if w == nil {
				break
			}
			tried = append(tried, w.ID)
		}
		s.srv.cfg.Telemetry.Leg(outcome, "")
	})
	if !began {
		s.srv.cfg.Telemetry.Leg(failed, "")
		s.post(just(leg.Event{Kind: leg.EventCollected}))
	}
}

const (
	collectTries   = 3
	collectTimeout = 25 * time.Second // vLLM keeps what it holds for 30 s
)

// keepDecode picks another decode worker if the booked one has left, or was set aside, while
// prefill ran: the hand-off is good for any. It returns nil if the booked one stays. If
// decode will not get the request at all, nothing is picked, so that the cursor of a
// round-robin pool does not move.
func (s *mainStream) keepDecode(a *leg.OwnAnswer) *leg.Seat {
	p, srv := s.m.Plan(), s.srv
	if p == nil || p.DecodeNamed || !s.m.GoesOn(a) || s.decided.again == nil {
		return nil
	}
	now := time.Now()
	d, why := srv.router.DecodeAgain(s.decided.again, p.Prefill, p.Decode, now)
	if !d.Made() {
		return nil
	}
	s.decided.replace(&d, now)
	why = "in place of " + p.Decode.String() + ", which " + why + " while prefill ran"
	at := d.Address()
	srv.cfg.Journal.Update(s.decided.note, func(r *decision.Record) {
		c := &r.Decode
		c.Rank, c.Endpoint, c.Reason, c.Cost, c.Replaced = d.Rank, at, d.Reason.String(), d.Cost, why
	})
	srv.cfg.Telemetry.FreshPick("decode_left")
	return &leg.Seat{Rank: d.Rank, Addr: at, DPSize: d.Worker.RanksPerPort(), Alone: d.Alone}
}
