package extproc

import (
	"cmp"
	"time"

	"github.com/seed-60ae5743/baton/internal/pin"
	"github.com/seed-60ae5743/baton/internal/route"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/pkg/tokens"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// This file asks internal/route for decisions: what a stream knows becomes a request, and
// a decision the machine's plan.

// freshByEnvoy is the reason of a fresh pick that Envoy asks for on its own word,
// as where decode breaks off before its headers have gone to the client.
const freshByEnvoy = "envoy"

// asking is what is kept of a stream while its request is decided.
type asking struct {
	question *route.Question
	scratch  *route.Scratch
	suspects suspects // of earlier attempts
	instead  *failure // answered where one worker was to serve in its place, and none can
}

// decide answers opPick with evPicked or evRefused: at once where
// the tokens are known or estimated, else when an engine has counted them. With
// instead only one worker will do, and instead is answered where there is none.
func (s *mainStream) decide(instead *failure) {
	srv := s.srv
	before, ours := srv.avoid.of(&s.m)
	q, refused := srv.router.Ask(s.request(&before, instead))
	if refused != nil {
		s.refuse(cmp.Or(instead, srv.failureOf(refused)))
		return
	}
	if !ours && instead == nil {
		srv.cfg.Telemetry.FreshPick(freshByEnvoy)
	}
	a := asking{q, srv.router.Borrow(), before.suspects, instead}
	p, known := q.Prompt()
	if !known {
		p, known = srv.cfg.Tokens.Fast(q.Query(), &a.scratch.Tokens)
	}
	if known {
		s.settle(&a, p)
		return
	}
	s.count(a)
}

// count has an engine count the tokens, and then decides.
func (s *mainStream) count(a asking) {
	srv := s.srv
	began := srv.engines.run(func() {
		defer s.survive("tokens", func() { s.refuse(&failInternal) })
		p, err := srv.cfg.Tokens.Engine(s.grpc.Context(), a.question.Query(), srv.router.Tokenizers(a.question))
		if err != nil {
			p = srv.cfg.Tokens.Estimate(a.question.Query(), &a.scratch.Tokens, tokens.ReasonOf(err))
		}
		s.settle(&a, p)
	})
	if !began {
		s.refuse(&failNotReady)
	}
}

// request is what the stream asks for.
func (s *mainStream) request(before *avoided, instead *failure) route.Request {
	way := &s.m.way
	r := route.Request{
		Now: time.Now(), Scan: s.m.scan, Body: s.m.body,
		Trust: way.trust, HeadersOnly: way.headersOnly,
		Subset: s.subset, OneLeg: way.plain,
		Failed: before.ranks, Keep: before.keep, Admitted: s.m.attempt > 1,
	}
	if s.m.passing.on {
		r.Passing = s.m.hdr.Path
	}
	if way.trust != pin.Normal {
		for _, h := range s.m.hdr.Named {
			r.Named = append(r.Named, pin.Header(h))
		}
	}
	if way.plain { // two legs go to exactly who was picked
		r.Endpoints = s.srv.cfg.Gateway.Endpoints
	}
	if instead != nil {
		r.InPlaceOf = instead.code
	}
	return r
}

// settle decides, and tells the stream. It may run beside the stream's
// events: of the stream it reads only what the request's end has fixed.
func (s *mainStream) settle(a *asking, p tokens.Prompt) {
	srv := s.srv
	defer srv.router.Return(a.scratch)
	var d route.Decision
	defer s.survive("decision", func() {
		d.Cancel(time.Now())
		s.refuse(&failInternal)
	})
	began := time.Now()
	d, refused := srv.router.Decide(a.question, p, a.scratch, began)
	d.Record.DecisionIn = time.Since(began)
	s.describe(d.Record)
	if a.question.Asks() {
		s.answerQuestion(&d, refused)
		return
	}
	srv.observe(&d)
	switch {
	case refused != nil && a.instead != nil:
		s.refuse(a.instead)
		return
	case refused != nil:
		s.post(&event{kind: evRefused, failure: srv.failureOf(refused), booked: &booked{note: srv.cfg.Journal.Keep(d.Record)}})
		return
	}
	b := &booked{prefill: d.Prefill.Booking, decode: d.Decode.Booking, prompt: promptOf(&d), answer: d.Answer}
	pl, err := s.plan(a, &d)
	if err != nil {
		d.Cancel(time.Now())
		srv.log.Error("a leg token could not be sealed", "err", err)
		s.refuse(&failInternal)
		return
	}
	s.tell(d.Record, pl, b)
	s.mu.Lock()
	s.picked = [2]worker.Rank{pl.prefill, pl.decode}
	s.mu.Unlock()
	srv.attempts.add(pl.nonce, s)
	s.post(&event{kind: evPicked, plan: pl, booked: b})
	if pl.disaggregated && srv.view.Load().Worker(pl.prefill.ID) == nil {
		s.post(&event{kind: evGone, rank: pl.prefill, left: true}) // it left between the pick and now
	}
}

func (s *mainStream) refuse(f *failure) { s.post(&event{kind: evRefused, failure: f}) }

// promptOf is what a decision knows of its prompt.
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
