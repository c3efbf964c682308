package route

import (
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/tokens"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// told reports whether events tell what the rank holds.
func (rt *Router) told(w *worker.Worker, r worker.Rank) bool {
	return !w.KVEvents.IsZero() || rt.cfg.Overlap.Tells != nil && rt.cfg.Overlap.Tells(r)
}

// remember notes what was routed where: for prompts and workers of which no
// events tell, and for others until the events come.
func (d *decider) remember() {
	q, v, sc := d.q, &d.v, d.sc
	p := &v.prompt
	rank, now := v.decode.decision.Rank, q.now
	if q.apart {
		rank = v.prefill.decision.Rank
	}
	switch {
	case len(p.Hashes) == 0: // of one with a picture there may be no whole block before it
	case p.Estimated || !d.told(q.world.Worker(rank.ID), rank):
		d.cfg.Routes.Note(rank, p.Hashes, kvindex.Estimated, now)
	case d.cfg.Overlap.PredictedWeight > 0:
		d.cfg.Routes.Note(rank, p.Hashes, kvindex.Predicted, now)
	}
	if p.Source == tokens.FromEngine {
		// So that a later turn whose tokens come too late still finds its worker.
		guess := v.rest
		if !p.Partial {
			guess = d.cfg.Estimate(q.query, &sc.guess, tokens.ReasonMode)
		}
		if len(guess.Hashes) > 0 {
			d.cfg.Routes.Note(rank, guess.Hashes, kvindex.Estimated, now)
		}
	}
}
