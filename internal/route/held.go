package route

import (
	"slices"

	"github.com/seed-60ae5743/baton/internal/engine/handoff"
	"github.com/seed-60ae5743/baton/internal/hitloss"
	"github.com/seed-60ae5743/baton/internal/load"
)

// Held is what was known of the prompt's blocks when a rank was picked, beside what the
// picker's decision says. The zero value is that of a pick whose rank does not compute the
// prompt.
type Held struct {
	Best     uint32        // the most that a rank of the pool held, also one that could not be picked
	Out      hitloss.Cause // why that rank could not be, if Best is more than any that could held
	Missing  bool          // events were missing of the rank that held most of those that could be picked
	Told     uint32        // what its events told of the picked rank
	Events   bool          // events are to tell what the picked rank holds of the prompt
	Guessed  uint32        // of what it was believed to hold, what no event told
	Heard    uint32        // of Guessed, what another replica was the last to tell
	Silent   bool          // events of the picked rank were missing
	Removals uint64        // of kvindex.Index, before the index was asked
}

// Barred reports whether something in the request may keep its engine from using what it has
// cached, as a question for the logprobs of the prompt does, or a member of which it is not known
// what the engine makes of it. A client must not have a true rank called a liar by that.
func (q *Question) Barred() bool {
	if q.req.Scan == nil {
		return false
	}
	for k := range kinds(q.pool) {
		if handoff.Hindrance(k, q.req.Body, q.req.Scan, nil) != (handoff.Obstacle{}) {
			return true
		}
	}
	return false
}

// held says what was known at a pick of a rank that was at the position among those that the
// index was asked for. narrowed: not all of these were picked from.
func (d *decider) held(c *choice, at int, narrowed bool) Held {
	x, a := c.explain, &d.sc.overlap
	h := Held{Best: c.decision.MostOverlap, Missing: x.Missing}
	estimated := d.v.prompt.Estimated
	if !estimated {
		h.Told = a.Told(at)
	}
	if len(x.Rows) > 0 {
		picked := &x.Rows[0]
		h.Silent = picked.Degraded && !picked.Estimated
		h.Guessed = picked.PredictedBlocks
		h.Events = !estimated && d.cfg.Overlap.Told(d.q.world.Worker(picked.Rank.ID), picked.Rank)
		if estimated || picked.Estimated {
			h.Guessed = c.decision.OverlapBlocks
		}
	}
	if h.Guessed > 0 {
		p := &d.v.prompt
		per := max(p.BlocksPerHash, 1)
		hashes := p.Hashes[:min(int(c.decision.OverlapBlocks)/per, len(p.Hashes))]
		h.Heard = uint32(per * d.cfg.Routes.OfOthers(c.decision.Rank, hashes, int(c.decision.OverlapBlocks-h.Guessed)/per)) //nolint:gosec // blocks of a prompt
	}
	more := func(blocks uint32, why hitloss.Cause) {
		if blocks > h.Best {
			h.Best, h.Out = blocks, why
		}
	}
	if x.Held > 0 {
		more(x.Held, c.whyOut(&x.Holder))
	}
	if narrowed && len(a.Overlap) > 0 {
		more(slices.Max(a.Overlap), hitloss.Constraint)
	}
	if a.Drains {
		more(a.Outside, hitloss.Aside)
	}
	more(a.Outside, hitloss.Constraint)
	return h
}

// whyOut says why a rank that holds more than others could not be picked.
func (c *choice) whyOut(o *load.OutRow) hitloss.Cause {
	switch {
	case o.Cause == load.OutAside, o.Cause == load.OutUnknown, o.Cause == load.OutExcluded && !slices.Contains(c.stranded, o.Rank):
		return hitloss.Aside
	default:
		return hitloss.Constraint
	}
}
