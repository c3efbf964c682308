package extproc

import (
	"cmp"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/overlap"
	"github.com/seed-60ae5743/baton/internal/pin"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/tokens"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// scratch is the memory of one decision, reused.
type scratch struct {
	tokens  tokens.Scratch
	guess   tokens.Scratch
	overlap overlap.Answer
	beyond  overlap.Answer // of a prompt that is known in part
	explain [2]load.Explanation
	bound   picker.Constraints
	record  decision.Record
	rng     *rand.Rand
}

func newScratch() *scratch { return &scratch{rng: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))} }

// choice is one pick with what it was made of.
type choice struct {
	role     worker.Role
	params   picker.Params
	decision picker.Decision
	explain  *load.Explanation // nil: nobody was asked for
	made     bool
	limit    int64                  // of uncached tokens; 0: none
	others   []worker.Rank          // to try after the picked one, best first
	missing  string                 // what is shown for noTaint
	without  string                 // why somebody was not among those to pick from
	stranded []worker.Rank          // out since nobody decodes in their domain
	full     *picker.SaturatedError // why nobody was picked, where it was this
	named    pin.Trust              // not Normal: the request names the worker
}

// mode is the router mode as people read it.
func (c *choice) mode() string {
	if c.named != pin.Normal {
		return c.named.String()
	}
	return c.params.Mode.String()
}

// verdict is a whole decision.
type verdict struct {
	prompt  tokens.Prompt
	rest    tokens.Prompt // where prompt is known in part: all of it, estimated
	blocks  int
	size    int
	prefill choice
	decode  choice
	split   split
	// stranded are the prefill ranks in whose domain nobody may be picked for decode.
	stranded []worker.Rank
	took     time.Duration
	fail     *failure
}

// newBlocks is how many KV blocks the prompt takes where nothing of it is.
func (v *verdict) newBlocks() int { return (v.prompt.ISLTokens + v.size - 1) / v.size }

// freshByEnvoy is the reason of a fresh pick that Envoy asks for on its own word,
// as where decode breaks off before its headers have gone to the client.
const freshByEnvoy = "envoy"

// decide answers a stream's opPick with evPicked or evRefused: at once where
// the tokens are known or estimated, else when an engine has counted them. With
// instead only one worker will do, and instead is answered where there is none.
func (srv *Server) decide(s *mainStream, instead *failure) {
	w, f := wishOf(s.m.way, s.m.hdr.Named, s.m.scan, s.m.body)
	if f != nil {
		s.refuse(f)
		return
	}
	w.subset = s.subset
	if s.m.way.plain { // two legs go to exactly who was picked
		w.endpoints = srv.cfg.Gateway.Endpoints
	}
	var q *question
	if s.m.passing.on {
		q, f = srv.passingQuestion(w, s.m.hdr.Path, s.m.scan, s.m.body)
	} else {
		q, f = srv.questionOf(s.m.scan, s.m.body, w, instead)
	}
	if f != nil {
		s.refuse(cmp.Or(instead, f))
		return
	}
	var ours bool
	if q.before, ours = srv.avoid.of(&s.m); !ours && instead == nil {
		srv.cfg.Telemetry.FreshPick(freshByEnvoy)
	}
	q.admitted = s.m.attempt > 1
	sc := srv.scratch.Get().(*scratch)
	if s.m.passing.on {
		srv.settle(s, q, q.passedPrompt(), sc)
		return
	}
	if p, ok := srv.cfg.Tokens.Fast(q.query, &sc.tokens); ok {
		srv.settle(s, q, p, sc)
		return
	}
	began := srv.engines.run(func() {
		defer func() {
			if r := recover(); r != nil {
				srv.panicked("tokens", r)
				s.refuse(&failInternal)
			}
		}()
		p, err := srv.cfg.Tokens.Engine(s.grpc.Context(), q.query, srv.tokenizers(q))
		if err != nil {
			p = srv.cfg.Tokens.Estimate(q.query, &sc.tokens, tokens.ReasonOf(err))
		}
		srv.settle(s, q, p, sc)
	})
	if !began {
		s.refuse(&failNotReady)
	}
}

// settle picks and books, and tells the stream. It may run beside the stream's
// events: of the stream it reads only what the request's end has fixed.
func (srv *Server) settle(s *mainStream, q *question, p tokens.Prompt, sc *scratch) {
	defer srv.scratch.Put(sc)
	var v verdict
	prefillBooking, decodeBooking := new(load.Reservation), new(load.Reservation)
	defer func() {
		if r := recover(); r != nil {
			prefillBooking.Cancel(time.Now())
			decodeBooking.Cancel(time.Now())
			srv.panicked("decision", r)
			s.refuse(&failInternal)
		}
	}()
	if q.wish.query {
		q = srv.judgeInTime(&v, q, p, sc, nil, nil)
		srv.answer(s, q, &v, srv.recordOf(&sc.record, s, q, &v))
		return
	}
	q = srv.judgeInTime(&v, q, p, sc, prefillBooking, decodeBooking)
	srv.observe(&v, q)
	switch {
	case v.fail != nil && q.instead != nil:
		s.refuse(q.instead)
		return
	case v.fail != nil:
		s.post(&event{kind: evRefused, failure: v.fail, booked: &booked{note: srv.cfg.Journal.Keep(srv.recordOf(&sc.record, s, q, &v))}})
		return
	}
	srv.remember(&v, q, sc)
	b := &booked{prefill: prefillBooking, decode: decodeBooking, prompt: promptOf(q, &v), answer: q.asked()}
	pl, err := srv.plan(s, q, &v, sc.rng)
	if err != nil {
		decodeBooking.Cancel(time.Now())
		prefillBooking.Cancel(time.Now())
		srv.log.Error("a leg token could not be sealed", "err", err)
		s.refuse(&failInternal)
		return
	}
	srv.tell(s, srv.recordOf(&sc.record, s, q, &v), pl, b)
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

// tokenizers lists the workers that may be asked to count tokens.
func (srv *Server) tokenizers(q *question) []worker.Endpoint {
	var out []worker.Endpoint
	for _, ws := range [][]*worker.Worker{q.pool.Prefill, q.pool.Decode, q.pool.Aggregated} {
		for _, w := range ws {
			if allowed(q.wish.subset, w) && srv.cfg.Health.Allows(worker.Rank{ID: w.ID}) { // the first rank's port is asked
				out = append(out, w.Endpoint)
			}
		}
	}
	return out
}

// judge makes and books the picks: prefill first, so that its load is there
// when decode is picked (docs/behaviour.md#booked-once). With nil reservations it only
// previews.
func (srv *Server) judge(v *verdict, q *question, p tokens.Prompt, sc *scratch, prefillBooking, decodeBooking *load.Reservation) {
	start := time.Now()
	defer func() { v.took = time.Since(start) }()
	v.prompt, v.size = p, q.query.BlockSize
	v.blocks = len(p.Hashes) * max(p.BlocksPerHash, 1)
	if p.Partial {
		v.rest = srv.cfg.Tokens.Estimate(q.query, &sc.guess, p.Reason)
		v.blocks = max(v.blocks, p.ISLTokens/max(v.size, 1))
	}
	switch {
	case q.decodeOnly:
		params := picker.DecodeOverride(q.override.Apply(srv.cfg.Decode))
		if err := srv.choose(&v.decode, worker.Decode, params, v, q, sc, decodeBooking); err != nil {
			v.fail = q.nobody(worker.Decode, &failNoDecode, err)
		}
		return
	case !q.disagg:
		if err := srv.choose(&v.decode, worker.Aggregated, q.override.Apply(srv.cfg.Aggregated), v, q, sc, decodeBooking); err != nil {
			v.fail = q.nobody(worker.Aggregated, &failNoAggregated, err)
		}
		switch {
		case q.fellBack != "":
			v.split = split{reason: splitFallback, cause: q.fellBack}
		case q.alone != "":
			v.split = split{reason: q.alone}
		}
		return
	}
	if srv.alone(v, q, sc, decodeBooking) {
		return
	}
	srv.pair(v, q, sc, prefillBooking, decodeBooking)
}

// choose picks one leg's rank and books it.
func (srv *Server) choose(c *choice, role worker.Role, params picker.Params, v *verdict, q *question, sc *scratch, into *load.Reservation) error {
	params.BlockSize = v.size
	*c = choice{limit: c.limit, role: role, params: params}
	r := srv.offer(c, v, q, sc)
	if at := q.placeOf(role); at != nil {
		c.named = q.wish.trust
		narrow(&r, at, &c.params)
	} else if w := srv.kept(q, role); w != nil {
		narrow(&r, &pin.Place{Worker: w, DPRank: q.before.keep.DPRank}, &c.params)
	}
	var some bool
	if r.Within, some = within(q.snap.Snapshot, q.wish.subset, r.Ranks); !some {
		c.explain = nil
		return errOutside
	}
	if c.without = "is none that the gateway allows"; c.named == pin.Normal && role == worker.Prefill && q.places.Decode != nil {
		q.reach(&r, q.places.Decode.Worker)
		if q.wish.subset == nil {
			c.without = "the request's own choice leaves it out"
		}
	}
	pick := func() (err error) {
		if into == nil {
			c.decision, err = srv.cfg.Book.Preview(&r)
		} else {
			c.decision, err = srv.cfg.Book.PickAndReserve(&r, into)
		}
		return err
	}
	exclude := r.Exclude
	if mates := q.portMates(); len(mates) > 0 {
		r.Exclude = slices.Concat(exclude, mates)
	}
	err := pick()
	if err != nil && len(r.Exclude) > len(exclude) {
		r.Exclude = exclude // better another rank of a worker that has failed before than none
		err = pick()
	}
	if errors.Is(err, picker.ErrNoCandidate) && len(q.before.ranks) > 0 {
		r.Exclude = c.stranded // better one that has failed before than none
		err = pick()
	}
	err = q.nameTaint(err)
	c.made, c.missing = err == nil, q.missing
	if c.made && c.named != pin.Normal {
		c.decision.Reason = picker.Named
	}
	errors.As(err, &c.full)
	if c.made && role != worker.Prefill && q.wish.endpoints > 1 && c.named == pin.Normal && into != nil {
		srv.others(c, r, q)
	}
	return err
}

// portMates are the other ranks of workers that have failed the request, where each has a
// port of its own: they may be dead with it, and the probe that tells takes its time.
func (q *question) portMates() (mates []worker.Rank) {
	for _, r := range q.before.ranks {
		if w := q.snap.Worker(r.ID); w != nil && w.Ports() > 1 {
			mates = appendRanks(mates, w)
		}
	}
	return mates
}

func blocksOf(p *tokens.Prompt) overlap.Prompt {
	return overlap.Prompt{Hashes: p.Hashes, BlocksPerHash: p.BlocksPerHash, Estimated: p.Estimated}
}

// offer is what one leg's rank is picked from.
func (srv *Server) offer(c *choice, v *verdict, q *question, sc *scratch) load.Request {
	role := c.role
	c.explain = &sc.explain[0]
	r := load.Request{
		Key: q.pool.Key, Ranks: srv.ranks(q, v, role), Params: &c.params, Now: time.Now(),
		Pick:   picker.Request{Role: role, ISLTokens: v.prompt.ISLTokens, RequestBlocks: v.blocks, Estimated: v.prompt.Estimated},
		Filter: srv.cfg.Health, Exclude: q.before.ranks, MaxUncachedTokens: c.limit,
		Constraints: q.bound(&sc.bound, role, v.prefill.decision.Rank.ID),
	}
	if role == worker.Prefill {
		if !q.admitted {
			r.MaxQueuedISLTokens = srv.cfg.MaxQueuedISLTokens
		}
		if c.stranded = v.stranded; len(c.stranded) > 0 {
			r.Exclude = slices.Concat(q.before.ranks, c.stranded)
		}
	} else {
		c.explain, r.Pick.NewBlocks = &sc.explain[1], v.newBlocks()
		asked := q.asked()
		r.Growth = srv.growth(&asked, v.size)
	}
	r.Explain = c.explain
	// A decode pick whose prompt is prefilled elsewhere asks who holds it only where that
	// tells what has to be fetched.
	r.Pick.FetchesLacking = role == worker.Decode && v.prefill.made && q.snap.Worker(v.prefill.decision.Rank.ID).Engine.FetchesLacking()
	if role == worker.Decode && !r.Pick.FetchesLacking {
		return r
	}
	srv.overlaps.Of(q.snap.Snapshot, r.Ranks, blocksOf(&v.prompt), &sc.overlap)
	if v.prompt.Partial {
		srv.overlaps.Of(q.snap.Snapshot, r.Ranks, blocksOf(&v.rest), &sc.beyond)
		sc.overlap.Beyond(len(v.prompt.Hashes), &sc.beyond, c.params.EstimatedOverlapWeight, v.blocks)
	}
	r.Overlaps, r.Estimated = sc.overlap.Blocks, sc.overlap.Guessed
	r.Predicted, r.Host, r.Disk = sc.overlap.Predicted, sc.overlap.Host, sc.overlap.Disk
	r.Pick.SharedBlocks = int(sc.overlap.Shared)
	return r
}
