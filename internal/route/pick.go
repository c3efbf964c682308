package route

import (
	"errors"
	"slices"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/overlap"
	"github.com/seed-60ae5743/baton/internal/pin"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/tokens"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// choice is one pick, with what it was made from.
type choice struct {
	role     worker.Role
	params   picker.Params
	decision picker.Decision
	explain  *load.Explanation // nil: no pick was asked for
	made     bool
	growth   load.Growth            // of decode's answer
	most     float64                // with such a cost the pick is declined; 0: no limit
	others   []Destination          // to try after the picked one, best first
	missing  string                 // the required taint that is shown in place of noTaint
	without  string                 // why a rank was not among those to pick from
	stranded []worker.Rank          // left out, since no decode worker is in their domain, or the two would be kept apart (internal/sides)
	full     *picker.SaturatedError // why no rank was picked, if a full queue was the reason
	named    pin.Trust              // if not Normal: the request names the worker
	held     Held
}

// mode is the way of picking, in the words of the record: a router mode, or a trust.
func (c *choice) mode() string {
	if c.named != pin.Normal {
		return c.named.String()
	}
	return c.params.Mode.String()
}

// verdict is the decision while it is being made.
type verdict struct {
	bookings bookings // kept when the decision is judged again in a newer world
	prompt   tokens.Prompt
	rest     tokens.Prompt // if prompt is known in part: the whole prompt, estimated
	blocks   int
	size     int
	prefill  choice
	decode   choice
	split    split
	// stranded are the prefill ranks in whose domain no decode worker may be picked.
	stranded []worker.Rank
	fail     *Refusal
}

// newBlocks is how many KV blocks the prompt takes on a rank that has none of it cached.
func (v *verdict) newBlocks() int { return (v.prompt.ISLTokens + v.size - 1) / v.size }

// Tokenizers lists the workers that may count the request's tokens.
func (rt *Router) Tokenizers(q *Question) []worker.Endpoint {
	var out []worker.Endpoint
	for _, ws := range [][]*worker.Worker{q.pool.Prefill, q.pool.Decode, q.pool.Aggregated} {
		for _, w := range ws {
			if allowed(q.req.Subset, w) && rt.cfg.Health.Allows(worker.Rank{ID: w.ID}) { // the question goes to the first rank's port
				out = append(out, w.Endpoint)
			}
		}
	}
	return out
}

// judge makes and books the picks. It books prefill before it picks decode, whose pick
// counts that load (docs/behaviour.md#booked-once). Without bookings it only previews.
func (d *decider) judge(p tokens.Prompt) {
	q, v, sc := d.q, &d.v, d.sc
	v.prompt, v.size = p, q.query.BlockSize
	v.blocks = len(p.Hashes) * max(p.BlocksPerHash, 1)
	if p.Partial {
		v.rest = d.cfg.Estimate(q.query, &sc.guess, p.Reason)
		v.blocks = max(v.blocks, p.ISLTokens/max(v.size, 1))
	}
	v.fail = d.uncut()
	switch {
	case v.fail != nil:
	case q.decodeOnly:
		params := picker.DecodeOverride(q.override.Apply(d.cfg.Decode))
		if err := d.choose(&v.decode, worker.Decode, params); err != nil {
			v.fail = d.nobody(worker.Decode, err)
		}
	case q.atPrefill:
		d.onPrefill()
	case !q.apart:
		if err := d.choose(&v.decode, worker.Aggregated, q.override.Apply(d.cfg.Aggregated)); err != nil {
			v.fail = d.nobody(worker.Aggregated, err)
		}
		switch {
		case q.fellBack != "":
			v.split = split{reason: Fallback, cause: q.fellBack}
		case q.alone != "":
			v.split = split{reason: q.alone}
		}
	case !d.byPrefill() && !d.alone():
		d.pair()
	}
}

// choose picks one leg's rank and books it.
func (d *decider) choose(c *choice, role worker.Role, params picker.Params) error {
	q, v := d.q, &d.v
	into := v.bookings.of(role)
	params.BlockSize = v.size
	*c = choice{most: c.most, role: role, params: params}
	since := d.cfg.Overlap.Index.Removals()
	r := d.offer(c)
	all := r.Ranks
	if at := q.placeOf(role); at != nil {
		c.named = q.req.Trust
		narrow(&r, at, &c.params)
	} else if w := d.kept(role, r.Ranks, c.stranded); w != nil {
		narrow(&r, &pin.Place{Worker: w, DPRank: q.req.Keep.DPRank}, &c.params)
	}
	var some bool
	r.Within, some = within(q.world.Snapshot, q.req.Subset, r.Ranks)
	if !some {
		c.explain = nil
		return errOutside
	}
	c.without = "is none that the gateway allows"
	if c.named == pin.Normal && role == worker.Prefill && q.places.Decode != nil {
		q.reach(&r, q.places.Decode.Worker)
		if q.req.Subset == nil {
			c.without = "the request's own choice leaves it out"
		}
	}
	err := q.nameTaint(d.pick(c, &r, into))
	c.made, c.missing = err == nil, q.missing
	if c.made && c.named != pin.Normal {
		c.decision.Reason = picker.Named
	}
	errors.As(err, &c.full)
	if c.made && role != worker.Decode {
		c.held = d.held(c, slices.Index(all, r.Ranks[0])+c.decision.Index, len(r.Ranks) < len(all))
		c.held.Removals = since
	}
	if c.made && role != worker.Prefill && q.req.Endpoints > 1 && c.named == pin.Normal && into != nil {
		d.others(c, r)
	}
	return err
}

// pick picks from the ranks that r offers, and books the pick unless it is a preview
// (into is nil). If no rank is left, it tries again with ranks that were left out: first
// with the other ranks of a worker that has failed before, then with all ranks that have
// failed. Those are waited for while they are probed.
func (d *decider) pick(c *choice, r *load.Request, into *load.Reservation) error {
	q := d.q
	pick := func() (err error) {
		if into == nil {
			c.decision, err = d.cfg.Book.Preview(r)
		} else {
			c.decision, err = d.cfg.Book.PickAndReserve(r, into)
		}
		return err
	}
	exclude := r.Exclude
	mates := portMates(q.world, q.req.Failed)
	if len(mates) > 0 {
		r.Exclude = slices.Concat(exclude, mates)
	}
	err := pick()
	if err != nil && len(r.Exclude) > len(exclude) {
		r.Exclude = exclude
		err = pick()
	}
	if errors.Is(err, picker.ErrNoCandidate) && len(q.req.Failed) > 0 {
		if slices.ContainsFunc(q.req.Failed, d.cfg.Health.Judged) {
			return errProbed
		}
		r.Exclude = c.stranded
		err = pick()
	}
	return err
}

// portMates are the other ranks of workers that have failed a request, if each rank has
// a port of its own. They may be dead with the failed rank, and the probe that finds out
// takes its time.
func portMates(world *activation.World, failed []worker.Rank) (mates []worker.Rank) {
	for _, r := range failed {
		if w := world.Worker(r.ID); w != nil && w.Ports() > 1 {
			mates = appendRanks(mates, w)
		}
	}
	return mates
}

func (d *decider) blocksOf(p *tokens.Prompt, role worker.Role) overlap.Prompt {
	return overlap.Prompt{Hashes: p.Hashes, BlocksPerHash: p.BlocksPerHash, Estimated: p.Estimated, Key: d.q.pool.Key, Role: role}
}

// offer returns what one leg's rank is picked from.
func (d *decider) offer(c *choice) load.Request {
	q, v, sc := d.q, &d.v, d.sc
	role := c.role
	c.explain = &sc.explain[0]
	r := load.Request{
		Key: q.pool.Key, Ranks: d.ranks(role), Params: &c.params, Now: q.now,
		Pick:   picker.Request{Role: role, ISLTokens: v.prompt.ISLTokens, RequestBlocks: v.blocks, Estimated: v.prompt.Estimated},
		Filter: d.cfg.Health, Exclude: q.req.Failed, MaxCost: c.most,
		Constraints: q.bound(&sc.bound, role, v.prefill.decision.Rank.ID),
	}
	if role != worker.Decode {
		r.Target = q.req.Target
	} else if v.prefill.made {
		r.From = v.prefill.decision.Rank
	}
	if role == worker.Prefill {
		if !q.req.Admitted {
			r.MaxQueuedISLTokens = d.cfg.MaxQueuedISLTokens
		}
		c.stranded = v.stranded
	} else {
		c.explain, r.Pick.NewBlocks = &sc.explain[1], v.newBlocks()
		asked := q.answer()
		c.growth = d.cfg.growth(&asked, v.size)
		r.Growth = c.growth
	}
	c.stranded = slices.Concat(c.stranded, d.keptApart(role, r.Ranks))
	if len(c.stranded) > 0 {
		r.Exclude = slices.Concat(q.req.Failed, c.stranded)
	}
	r.Explain = c.explain
	// If the prompt is prefilled elsewhere, the overlaps on decode's ranks are looked up
	// only for an engine that fetches just the blocks that decode lacks.
	r.Pick.FetchesLacking = role == worker.Decode && v.prefill.made && engines.Of(q.world.Worker(v.prefill.decision.Rank.ID).Engine).FetchesLacking
	if role == worker.Decode && !r.Pick.FetchesLacking {
		return r
	}
	d.overlaps.Of(q.world.Snapshot, r.Ranks, d.blocksOf(&v.prompt, role), &sc.overlap)
	if v.prompt.Partial {
		d.overlaps.Of(q.world.Snapshot, r.Ranks, d.blocksOf(&v.rest, role), &sc.beyond)
		sc.overlap.Beyond(len(v.prompt.Hashes), &sc.beyond, c.params.EstimatedOverlapWeight, v.blocks)
	}
	r.Cached = sc.overlap.Cached
	r.Pick.SharedBlocks = int(sc.overlap.Shared)
	return r
}
