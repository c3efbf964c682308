package extproc

import (
	"cmp"
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/pin"
	"github.com/seed-60ae5743/baton/internal/route"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
	"github.com/seed-60ae5743/baton/pkg/tokens"
)

// This file asks internal/route for decisions. It turns what a stream knows into a
// [route.Request], and gives the decision to the stream as the machine's plan (plan.go).

// freshByEnvoy is the reason of a fresh attempt that Envoy begins by itself, for example
// because decode broke off before its headers had gone to the client.
const freshByEnvoy = "envoy"

// asking is a stream while its request is decided.
type asking struct {
	*mainStream
	question *route.Question
	scratch  *route.Scratch
	before   leg.Lesson   // of earlier attempts
	instead  *leg.Failure // of a pair in whose place one worker is to serve; the answer if none can
	bytes    int64        // of the request's body, which the attempt may have given up while its tokens are counted
}

// decide performs leg.OpPick: it posts leg.EventPicked, leg.EventRefused, or
// leg.EventAnswered if the request only asks who would serve it. It posts at once if the
// tokens are known or estimated, otherwise when an engine has counted them. If instead is
// not nil, one worker has to serve the request; if none can, instead is the refusal.
func (s *mainStream) decide(instead *leg.Failure) {
	srv := s.srv
	before, ours := srv.avoid.of(s.m.Request())
	if !ours {
		lost, by := srv.attempts.lostBefore(s.m.Request())
		before.Lost = max(before.Lost, lost)
		before.AlsoAvoid(by)
	}
	a := asking{mainStream: s, before: before.Lesson, instead: instead, bytes: int64(len(s.m.Request().Body))}
	var refused *route.Refusal
	a.question, refused = srv.router.Ask(a.request(&before))
	held := s.asked.heldBack(a.question, srv.shapes, time.Now())
	if before.Lost >= blame.MostLost {
		held = &leg.FailDecodesLost
	}
	if held != nil {
		a.refuse(held)
		return
	}
	if refused != nil {
		if !a.waits(refused, time.Now()) {
			a.refuse(cmp.Or(instead, srv.failureOf(refused)))
		}
		return
	}
	if !ours && instead == nil {
		srv.cfg.Telemetry.FreshPick(freshByEnvoy)
	}
	a.scratch = srv.router.Borrow()
	p, known := a.question.Prompt()
	if !known {
		a.question.Reads(srv.cfg.Tokens.Read(a.question.Query()))
		p, known = srv.cfg.Tokens.Fast(a.question.Query(), &a.scratch.Tokens)
	}
	if known {
		a.settle(p)
		return
	}
	a.count()
}

// count asks an engine for the tokens, and then decides. If the engine fails, the tokens are
// estimated.
func (a asking) count() {
	srv := a.srv
	began := srv.engines.run(func() {
		defer a.survive("tokens", func() { a.refuse(&leg.FailInternal) })
		p, err := srv.cfg.Tokens.Engine(a.grpc.Context(), a.question.Query(), srv.router.Tokenizers(a.question))
		if err != nil {
			p = srv.cfg.Tokens.Estimate(a.question.Query(), &a.scratch.Tokens, tokens.ReasonOf(err))
		}
		a.settle(p)
	})
	if !began {
		a.refuse(&leg.FailNotReady)
	}
}

// request returns the request as the router needs it.
func (a *asking) request(before *avoided) route.Request {
	q := a.m.Request()
	r := route.Request{
		Now: time.Now(), Scan: q.Scan, Body: q.Body,
		Trust: a.filter.trust, HeadersOnly: a.filter.headersOnly,
		Subset: a.asked.subset, OneLeg: a.filter.Plain(), Sends: a.filter.Sends, Sidecar: a.filter.Plain() && a.srv.cfg.Sidecar,
		Target: q.Target(),
		Failed: before.Avoid, Keep: before.Keep, Admitted: q.Attempt > 1,
	}
	if q.Passes() {
		r.Passing = q.Headers.Path
	}
	if a.filter.trust != pin.Normal {
		for _, h := range q.Headers.Named {
			r.Named = append(r.Named, pin.Header(h))
		}
	}
	if a.filter.Plain() { // other filters send to exactly the picked endpoint
		r.Endpoints = a.srv.cfg.Gateway.Endpoints
	}
	if a.instead != nil {
		r.InPlaceOf = a.instead.Code
	}
	return r
}

// settle decides, and posts the decision to the stream. It may run while the stream handles
// events, so it reads only those fields of the stream that no longer change once the whole
// request has come.
func (a *asking) settle(p tokens.Prompt) {
	srv := a.srv
	defer srv.router.Return(a.scratch)
	var d route.Decision
	defer a.survive("decision", func() {
		d.Cancel(time.Now())
		a.refuse(&leg.FailInternal)
	})
	began := time.Now()
	d, refused := srv.router.Decide(a.question, p, a.scratch, began)
	d.Record.DecisionIn = time.Since(began)
	a.describe(d.Record)
	if a.question.Asks() {
		a.answer(&d, refused)
		return
	}
	if refused != nil && a.waits(refused, began) {
		return
	}
	recorded := a.observe(&d, refused)
	switch {
	case refused != nil && a.instead != nil:
		a.refuse(a.instead)
		return
	case refused != nil:
		a.post(&notice{Event: leg.Event{Kind: leg.EventRefused, Failure: srv.failureOf(refused)}, booked: &booked{note: srv.cfg.Journal.Keep(d.Record)}})
		return
	}
	b := &booked{prefill: d.Prefill.Booking, decode: d.Decode.Booking, prompt: promptOf(&d), belief: believe(&d, a.question), claim: d.Prompt.Claim, answer: d.Answer, others: d.Others, recorded: recorded}
	b.compared = srv.pairs.compare(&d, a.question.Query(), srv.cfg.Tokens)
	if d.Apart && d.Kind.PrefillFirst() {
		b.again = d.Again
	}
	if a.filter.Plain() && b.again != nil {
		srv.said.handedByGateway()
	}
	srv.lately.Booked(d.Answer.Key)
	if d.Apart && (a.filter.Sends || d.Kind.PrefillFirst()) && srv.legClient.full() {
		d.Cancel(time.Now())
		a.refuse(&leg.FailLegsFull)
		return
	}
	pl, limits, err := a.plan(&d)
	if err != nil {
		d.Cancel(time.Now())
		srv.log.Error("a leg token could not be sealed, and the request gets internal_error: a fault of Baton's; please report it", logkey.Err, err)
		a.refuse(&leg.FailInternal)
		return
	}
	b.limits = limits
	a.tell(d.Record, pl, b)
	a.decided.pick(pl.Prefill, pl.Decode)
	a.picks(pl, b)
}

// picks tells the attempt what was picked, and what has happened meanwhile.
func (a *asking) picks(pl *leg.Plan, b *booked) {
	srv := a.srv
	srv.attempts.add(pl.Nonce, a.mainStream)
	a.post(&notice{Event: leg.Event{Kind: leg.EventPicked, Plan: pl}, booked: b})
	if srv.tellers.brokeSince(a.grpc.Context(), a.m.Request().Start) { // as after a standstill: nobody told this attempt
		a.post(just(leg.Event{Kind: leg.EventLogBroken}))
	}
	if pl.Disaggregated && srv.view.Load().Worker(pl.Prefill.ID) == nil {
		a.post(just(leg.Event{Kind: leg.EventGone, Rank: pl.Prefill, Left: true})) // the worker left after the pick
	}
}

// waits has the request wait if a worker may be there soon, and returns whether it does.
func (a *asking) waits(r *route.Refusal, now time.Time) bool {
	srv := a.srv
	if !r.Returning || a.instead != nil || now.Sub(a.m.WaitsSince(now)) >= srv.cfg.MaxWait || srv.door.reached(stageDraining) ||
		!a.asked.wait(&srv.waiting, a.bytes, srv.bodies.Limit()/waitingShare) {
		return false
	}
	a.post(just(leg.Event{Kind: leg.EventRefused, Failure: srv.failureOf(r), Wait: true}))
	return true
}

func (a *asking) refuse(f *leg.Failure) { a.post(just(leg.Event{Kind: leg.EventRefused, Failure: f})) }

// promptOf returns how many tokens the prompt of a decision has, and how many of them the
// workers hold.
func promptOf(d *route.Decision) telemetry.PromptTokens {
	c := &d.Decode
	if d.Apart {
		c = &d.Prefill
	}
	isl := int64(d.Prompt.ISLTokens)
	held := func(blocks uint32) int64 { return min(int64(blocks)*int64(d.BlockSize), isl) }
	return telemetry.PromptTokens{
		Model: d.Key.Model, Role: c.Role.String(), Prompt: isl,
		Available: held(c.MostOverlap), Predicted: held(c.OverlapBlocks),
	}
}
