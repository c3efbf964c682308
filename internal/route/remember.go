package route

import (
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/tokens"
)

// remember notes to which rank the prompt was routed. If events tell of the rank's
// blocks, the note stands in until they arrive; otherwise it is all that is known of
// them.
func (d *decider) remember() {
	q, v, sc := d.q, &d.v, d.sc
	p := &v.prompt
	rank, now := v.decode.decision.Rank, q.now
	if q.apart {
		rank = v.prefill.decision.Rank
	}
	switch {
	case len(p.Hashes) == 0: // a prompt with a picture may have no whole block before it
	case p.Estimated || !d.cfg.Overlap.Told(q.world.Worker(rank.ID), rank):
		d.cfg.Routes.Note(rank, p.Hashes, kvindex.Estimated, now)
	case d.cfg.Overlap.Predicts:
		d.cfg.Routes.Note(rank, p.Hashes, kvindex.Predicted, now)
	}
	if p.Source == tokens.FromEngine {
		// A later turn of the conversation, if its tokens come too late, finds its worker
		// by this.
		guess := v.rest
		if !p.Partial {
			guess = d.cfg.Estimate(q.query, &sc.guess, tokens.ReasonMode)
		}
		if len(guess.Hashes) > 0 {
			d.cfg.Routes.Note(rank, guess.Hashes, kvindex.Estimated, now)
		}
	}
}
