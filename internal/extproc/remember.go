package extproc

import (
	"time"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/tokens"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// told reports whether events tell what the rank holds.
func (srv *Server) told(w *worker.Worker, r worker.Rank) bool {
	return !w.KVEvents.IsZero() || srv.cfg.Tells != nil && srv.cfg.Tells(r)
}

// remember notes what was routed where: for prompts and workers of which no
// events tell, and for others until the events come.
func (srv *Server) remember(v *verdict, q *question, sc *scratch) {
	p := &v.prompt
	rank, now := v.decode.decision.Rank, time.Now()
	if q.disagg {
		rank = v.prefill.decision.Rank
	}
	switch {
	case len(p.Hashes) == 0: // of one with a picture there may be no whole block before it
	case p.Estimated || !srv.told(q.snap.Worker(rank.ID), rank):
		srv.cfg.Routes.Note(rank, p.Hashes, kvindex.Estimated, now)
	case srv.cfg.PredictedWeight > 0:
		srv.cfg.Routes.Note(rank, p.Hashes, kvindex.Predicted, now)
	}
	if p.Source == tokens.FromEngine {
		// So that a later turn whose tokens come too late still finds its worker.
		guess := v.rest
		if !p.Partial {
			guess = srv.cfg.Tokens.Estimate(q.query, &sc.guess, tokens.ReasonMode)
		}
		if len(guess.Hashes) > 0 {
			srv.cfg.Routes.Note(rank, guess.Hashes, kvindex.Estimated, now)
		}
	}
}
