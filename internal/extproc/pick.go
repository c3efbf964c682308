package extproc

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/prefill/handoff"
	"github.com/seed-60ae5743/baton/pkg/tokens"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// scratch is the memory of one decision, reused.
type scratch struct {
	tokens   tokens.Scratch
	guess    tokens.Scratch
	known    kvindex.Overlap
	routed   kvindex.Overlap
	overlaps []uint32
	guesses  []bool
	cands    [2][]picker.Candidate
	rows     []picker.Row
	rng      *rand.Rand
}

func newScratch() *scratch { return &scratch{rng: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))} }

// question is one request to be decided: what is known of it before its tokens
// are.
type question struct {
	snap   *activation.World
	pool   *worker.Pool
	disagg bool
	query  tokens.Query
	avoid  []worker.Rank
}

// choice is one pick with what it was made of.
type choice struct {
	role     worker.Role
	req      picker.Request
	params   picker.Params
	decision picker.Decision
	cands    []picker.Candidate
	overlap  uint32
	made     bool
}

// verdict is a whole decision.
type verdict struct {
	prompt  tokens.Prompt
	blocks  int
	size    int
	prefill choice
	decode  choice
	took    time.Duration
	fail    *failure
}

// decide answers a stream's opPick with evPicked or evRefused: at once where
// the tokens are known or estimated, else when an engine has counted them.
func (srv *Server) decide(s *mainStream) {
	q, f := srv.question(s.m.scan, s.m.body)
	if f != nil {
		s.refuse(f)
		return
	}
	q.avoid = srv.avoid.of(&s.m)
	sc := srv.scratch.Get().(*scratch)
	if p, ok := srv.cfg.Tokens.Fast(q.query, &sc.tokens); ok {
		srv.settle(s, q, p, sc)
		return
	}
	srv.engines.Add(1)
	go func() {
		defer srv.engines.Done()
		defer func() {
			if r := recover(); r != nil {
				srv.panicked("tokens", r)
				s.refuse(&failInternal)
			}
		}()
		p, err := srv.cfg.Tokens.Engine(s.grpc.Context(), q.query, srv.tokenizers(q.pool))
		if err != nil {
			p = srv.cfg.Tokens.Estimate(q.query, &sc.tokens, tokens.ReasonOf(err))
		}
		srv.settle(s, q, p, sc)
	}()
}

// settle picks and books, and tells the stream. It may run beside the stream's
// events: of the stream it reads only what the request's end has fixed.
func (srv *Server) settle(s *mainStream, q *question, p tokens.Prompt, sc *scratch) {
	defer srv.scratch.Put(sc)
	var v verdict
	prefillBooking, decodeBooking := new(load.Reservation), new(load.Reservation)
	defer func() {
		if r := recover(); r != nil {
			prefillBooking.ReleaseIfHeld()
			decodeBooking.ReleaseIfHeld()
			srv.panicked("decision", r)
			s.refuse(&failInternal)
		}
	}()
	srv.judge(&v, q, p, sc, prefillBooking, decodeBooking)
	srv.observe(&v, q)
	if v.fail != nil {
		s.post(&event{kind: evRefused, failure: v.fail, booked: &booked{note: srv.record(s, q, &v, sc)}})
		return
	}
	srv.remember(&v, q, sc)
	b := &booked{prefill: prefillBooking, decode: decodeBooking}
	pl, err := srv.plan(s, q, &v, sc, b)
	if err != nil {
		prefillBooking.ReleaseIfHeld()
		decodeBooking.ReleaseIfHeld()
		srv.log.Error("a leg token could not be sealed", "err", err)
		s.refuse(&failInternal)
		return
	}
	b.note = srv.record(s, q, &v, sc)
	s.mu.Lock()
	s.picked = pl.prefill.ID
	s.mu.Unlock()
	srv.attempts.add(pl.nonce, s)
	s.post(&event{kind: evPicked, plan: pl, booked: b})
	if pl.disaggregated && srv.view.Load().Worker(pl.prefill.ID) == nil {
		s.post(&event{kind: evGone}) // it left between the pick and now
	}
}

func (s *mainStream) refuse(f *failure) { s.post(&event{kind: evRefused, failure: f}) }

// question finds the pool of a request and what has to be picked in it.
func (srv *Server) question(r *openai.Request, body []byte) (*question, *failure) {
	q := &question{snap: srv.cfg.Board.Load()}
	if !q.snap.Ready() {
		return nil, &failNotReady
	}
	key := worker.Key{Model: string(r.Model), Namespace: srv.cfg.Namespace}
	if key.Model == "" { // /generate names no model: right where there is one
		if key = srv.onlyModel(q.snap); key.Model == "" {
			return nil, badBody(&openai.Error{Kind: openai.MissingField, Field: "model"})
		}
	}
	if q.pool = q.snap.Pool(key); q.pool == nil {
		if q.snap.Departed(key, time.Now()) {
			return nil, &failNoWorker
		}
		return nil, &failUnknownModel
	}
	var f *failure
	if q.disagg, f = outlook(q.snap.Standing(key).State, srv.cfg.EnforceDisagg, q.pool); f != nil {
		return nil, f
	}
	lead := q.pool.Aggregated
	if q.disagg {
		lead = q.pool.Prefill
	}
	q.query = tokens.Query{Key: key, Request: r, Body: body, BlockSize: int(lead[0].BlockSize)}
	return q, nil
}

// outlook says whether a request is to be served with prefill and decode
// apart, or why it cannot be served at all: the checks of rows C1, C2, B5 and
// C24 that need no pick.
func outlook(s prefill.State, enforced bool, pool *worker.Pool) (disagg bool, f *failure) {
	disagg = s == prefill.PrefillReady
	switch {
	case s == prefill.PrefillPending:
		return false, &failPending
	case disagg && len(pool.PrefillRanks) == 0:
		return false, &failNoPrefill // all are draining: not a reason to do without
	case disagg && len(pool.DecodeRanks) == 0:
		return false, &failNoDecode
	case !disagg && enforced:
		return false, &failEnforced
	case !disagg && len(pool.AggregatedRanks) == 0:
		return false, &failNoAggregated
	}
	return disagg, nil
}

// tokenizers lists the workers that may be asked to count tokens.
func (srv *Server) tokenizers(p *worker.Pool) []worker.Endpoint {
	var out []worker.Endpoint
	for _, ws := range [][]*worker.Worker{p.Prefill, p.Decode, p.Aggregated} {
		for _, w := range ws {
			if srv.cfg.Health.Allows(worker.Rank{ID: w.ID}) {
				out = append(out, w.Endpoint)
			}
		}
	}
	return out
}

// judge makes and books the picks: prefill first, so that its load is there
// when decode is picked (C16). With nil reservations it only previews.
func (srv *Server) judge(v *verdict, q *question, p tokens.Prompt, sc *scratch, prefillBooking, decodeBooking *load.Reservation) {
	start := time.Now()
	defer func() { v.took = time.Since(start) }()
	v.prompt, v.size = p, q.query.BlockSize
	v.blocks = len(p.Hashes) * max(p.BlocksPerHash, 1)
	if !q.disagg {
		if err := srv.choose(&v.decode, worker.Aggregated, srv.cfg.Aggregated, v, q, sc, decodeBooking); err != nil {
			v.fail = &failNoAggregated
			return
		}
		return
	}
	if err := srv.choose(&v.prefill, worker.Prefill, srv.cfg.Prefill, v, q, sc, prefillBooking); err != nil {
		v.fail = &failNoPrefill
		return
	}
	if err := srv.choose(&v.decode, worker.Decode, picker.DecodeOverride(srv.cfg.Decode), v, q, sc, decodeBooking); err != nil {
		if prefillBooking != nil {
			prefillBooking.Release()
		}
		v.fail = &failNoDecode
	}
}

// choose picks one leg's rank and books it.
func (srv *Server) choose(c *choice, role worker.Role, params picker.Params, v *verdict, q *question, sc *scratch, into *load.Reservation) error {
	ranks := q.pool.Ranks(role)
	params.BlockSize = v.size
	c.role, c.params = role, params
	c.req = picker.Request{Role: role, ISLTokens: v.prompt.ISLTokens, RequestBlocks: v.blocks, Estimated: v.prompt.Estimated}
	buffer := &sc.cands[0]
	if role != worker.Prefill {
		buffer = &sc.cands[1]
		c.req.NewBlocks = (v.prompt.ISLTokens + v.size - 1) / v.size
	}
	r := load.Request{
		Key: q.pool.Key, Ranks: ranks, Pick: c.req, Params: &c.params,
		Filter: srv.cfg.Health, Exclude: q.avoid, Candidates: buffer,
	}
	if role != worker.Decode { // a disaggregated decode pick ignores overlap (C15)
		r.Overlaps, r.Estimated = srv.overlaps(ranks, v.prompt, q, sc)
	}
	pick := func() (err error) {
		if into == nil {
			c.decision, err = srv.cfg.Book.Preview(&r)
		} else {
			c.decision, err = srv.cfg.Book.PickAndReserve(&r, into)
		}
		return err
	}
	err := pick()
	if errors.Is(err, picker.ErrNoCandidate) && len(q.avoid) > 0 {
		r.Exclude = nil // better one that has failed before than none
		err = pick()
	}
	if err != nil {
		return err
	}
	c.made = true
	c.cands = *buffer
	c.overlap = c.cands[c.decision.Index].OverlapBlocks
	return nil
}

// overlaps asks the index how much of the prompt each rank holds: the one fed
// by the workers' events for exact tokens, else what was routed before, which
// is also all there is of workers that publish no events.
func (srv *Server) overlaps(ranks []worker.Rank, p tokens.Prompt, q *question, sc *scratch) ([]uint32, []bool) {
	if len(p.Hashes) == 0 {
		return nil, nil
	}
	if !p.Estimated {
		srv.cfg.Index.Overlap(p.Hashes, &sc.known)
	}
	srv.cfg.Routed.Overlap(p.Hashes, &sc.routed, time.Now())
	sc.overlaps, sc.guesses = sc.overlaps[:0], sc.guesses[:0]
	slots := srv.cfg.Slots
	var w *worker.Worker
	for _, r := range ranks {
		if w == nil || w.ID != r.ID {
			w = q.snap.Worker(r.ID)
		}
		guess := p.Estimated || !srv.told(w, r)
		var n uint32
		if slot, ok := slots.Slot(r); ok {
			if guess {
				n = sc.routed.At(slot) * uint32(max(p.BlocksPerHash, 1))
			} else {
				n = sc.known.At(slot)
			}
		}
		sc.overlaps, sc.guesses = append(sc.overlaps, n), append(sc.guesses, guess)
	}
	return sc.overlaps, sc.guesses
}

// told reports whether events tell what the rank holds.
func (srv *Server) told(w *worker.Worker, r worker.Rank) bool {
	return !w.KVEvents.IsZero() || srv.cfg.Tells != nil && srv.cfg.Tells(r)
}

// remember notes what was routed where, for prompts and workers of which no
// events tell.
func (srv *Server) remember(v *verdict, q *question, sc *scratch) {
	p := &v.prompt
	if len(p.Hashes) == 0 {
		return
	}
	rank, now := v.decode.decision.Rank, time.Now()
	if q.disagg {
		rank = v.prefill.decision.Rank
	}
	if p.Estimated || !srv.told(q.snap.Worker(rank.ID), rank) {
		srv.cfg.Routed.Record(rank, p.Hashes, now)
	}
	if p.Source == tokens.FromEngine {
		// So that a later turn whose tokens come too late still finds its worker.
		guess := srv.cfg.Tokens.Estimate(q.query, &sc.guess, tokens.ReasonMode)
		srv.cfg.Routed.Record(rank, guess.Hashes, now)
	}
}

// plan turns a verdict into what the machine needs.
func (srv *Server) plan(s *mainStream, q *question, v *verdict, sc *scratch, b *booked) (*plan, error) {
	decode := q.snap.Worker(v.decode.decision.Rank.ID)
	p := &plan{
		nonce: newNonce(), disaggregated: q.disagg,
		decode: v.decode.decision.Rank, decodeAddr: decode.Endpoint.String(), decodeDPSize: decode.DPSize,
	}
	if s.span != nil && srv.cfg.Tracer.Enabled() {
		p.traceparent = srv.traceDecision(s, v, b)
	}
	if srv.cfg.DebugHeader && s.m.hdr.debug != "" {
		p.explain = explainHeader(s.m.attempt, v, sc)
	}
	if !q.disagg {
		return p, nil
	}
	w := q.snap.Worker(v.prefill.decision.Rank.ID)
	p.prefill = v.prefill.decision.Rank
	p.bootstrapHost, p.bootstrapPort = handoff.SGLangHost(w.Bootstrap), w.Bootstrap.Port
	p.inHeaders = decode.HeaderOverrides && w.HeaderOverrides && s.m.path != openai.Completions
	p.room = prefill.DrawRoom(sc.rng, p.prefill.DPRank, w.DPSize, s.m.scan.Parallel())
	queued, _ := srv.cfg.Book.Load(p.prefill)
	p.overdueAfter = srv.cfg.OverdueBase + time.Duration(queued.PrefillTokens)*srv.cfg.OverduePerToken
	var err error
	p.token, err = srv.sealer.Seal(prefill.Leg{
		Owner: srv.owner, Nonce: p.nonce, Prefill: p.prefill, Room: p.room, Deadline: s.m.deadline,
	})
	return p, err
}

// traceDecision writes the decision's span and returns the header that makes
// both legs children of this attempt.
func (srv *Server) traceDecision(s *mainStream, v *verdict, b *booked) string {
	now := time.Now()
	sp := srv.cfg.Tracer.Start(s.span.SpanContext(), telemetry.SpanDecision, now.Add(-v.took), decisionAttributes(v)...)
	telemetry.End(sp, now, "")
	b.span = srv.cfg.Tracer.Start(s.span.SpanContext(), telemetry.SpanDecodeLeg, now)
	return telemetry.Traceparent(s.span.SpanContext())
}

// Explain decides a request without routing it: nothing is booked and no
// cursor moves. It returns a *journal.Record. The error is fit for the admin
// page; it names a row of the failure table.
func (srv *Server) Explain(ctx context.Context, path string, body []byte) (any, error) {
	p, ok := openai.ParsePath(path)
	if !ok {
		return nil, errors.New(failUnknownPath.message)
	}
	var r openai.Request
	if err := openai.Scan(p, body, &r); err != nil {
		return nil, err
	}
	q, f := srv.question(&r, body)
	if f != nil {
		return nil, errors.New(f.code + ": " + f.message + srv.known(f))
	}
	sc := newScratch()
	prompt := srv.cfg.Tokens.Resolve(ctx, q.query, srv.tokenizers(q.pool), &sc.tokens)
	var v verdict
	srv.judge(&v, q, prompt, sc, nil, nil)
	return srv.explained(&v, q, path, body, sc), nil
}
