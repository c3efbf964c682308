package route

import (
	"slices"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/pin"
	"github.com/seed-60ae5743/baton/pkg/tokens"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// This file is for requests on paths that Baton does not read: one worker serves them.

// askPassing is Ask for a request on such a path. A worker of the model that the body
// names serves it. If the request has only headers, the worker may be one of any model; so
// may the worker of a body that names no model, if PassUnknown is set.
func (rt *Router) askPassing(q *Question) *Refusal {
	r := &q.req
	q.query.Request, q.query.Body = r.Scan, r.Body
	anyPart := r.Scan == nil || engines.OfAnyRole.Serves(r.Passing)
	kept := openai.ResponseAt(r.Passing)
	if w := keeper(q.world, kept); w != nil && len(w.Models) > 0 {
		q.pool = q.world.Pool(w.Base())
	}
	if q.pool == nil {
		if f := rt.passingPool(q); f != nil {
			return f
		}
	}
	if kept != "" {
		f := q.placeKeeper(kept)
		if f == nil {
			q.query.Key, q.query.BlockSize = q.pool.Key, blockSizeOf(q.places.Decode.Worker)
		}
		return f
	}
	if of := rt.cfg.Policy.RulesOf(q.pool); of.Enforced && !of.NeverSplit && !anyPart {
		return q.noneAlone(false)
	}
	q.decodeOnly = anyPart && !offers(q, q.pool.AggregatedRanks) && (offers(q, q.pool.DecodeRanks) || len(q.pool.AggregatedRanks) == 0 && !offers(q, q.pool.PrefillRanks))
	q.atPrefill = !offers(q, q.pool.AggregatedRanks) && !q.decodeOnly && offers(q, q.pool.PrefillRanks) && (anyPart || q.servesAtPrefill())
	lead := q.lead()
	switch {
	case len(lead) == 0 && (anyPart || rt.models.untold(q.world) != nil): // a worker that decodes will do, or one of which nothing is known yet
		return refuse(NoAggregated)
	case len(lead) == 0:
		return q.noneAlone(true)
	}
	q.query.Key, q.query.BlockSize = q.pool.Key, blockSizeOf(lead[0])
	return rt.place(q)
}

// passingPool finds the pool of the model that the body names, or of a model of the worker
// that the request names, or of the only model. If the request names neither and there are
// several models, it is the pool of all workers; for a body only if PassUnknown is set.
func (rt *Router) passingPool(q *Question) *Refusal {
	r, only, untold := q.req.Scan, worker.Key{}, rt.models.untold(q.world)
	named := q.wish.pins.Decode.Worker(q.world.Snapshot)
	switch {
	case untold != nil && q.wish.namesUntold(q.world):
		q.pool = untold
		return nil
	case r != nil && len(r.Model) > 0:
		return rt.passHome(q)
	case named != nil && len(named.Models) > 0:
		only = named.Base()
	case r != nil || untold == nil:
		only = rt.models.onlyModel(q.world, q.now)
	}
	switch {
	case only.Model != "" && (r == nil || named != nil):
		q.pool = q.world.Pool(only)
	case only.Model != "", r != nil && !rt.cfg.PassUnknown:
		return rt.passHome(q)
	default:
		q.pool = rt.models.everyone.get(q.world, rt.models.everybody)
	}
	if q.pool == nil {
		return refuse(NoWorker)
	}
	return nil
}

// keeper returns the worker that a response's id names; nil: it names none that is known.
func keeper(world *activation.World, id string) *worker.Worker {
	n, _ := openai.KeeperOf(id)
	return world.Worker(worker.ID(n))
}

// placeKeeper has the worker that keeps a response serve the request, which only that one can. An id
// that names no worker is an engine's own: it is the only worker's, if there is one alone.
func (q *Question) placeKeeper(id string) *Refusal {
	w := keeper(q.world, id)
	if _, named := openai.KeeperOf(id); w == nil && !named && len(q.pool.Aggregated) == 1 {
		w = q.pool.Aggregated[0]
	}
	if w == nil || !slices.Contains(q.pool.Aggregated, w) {
		return refuse(NoResponse)
	}
	q.apart, q.decodeOnly = false, false
	q.places.Decode = &pin.Place{Worker: w, AnyRank: w.DPSize > 1}
	return nil
}

// offers reports whether the data plane allows one of the ranks.
func offers(q *Question, ranks []worker.Rank) bool {
	_, some := within(q.world.Snapshot, q.req.Subset, ranks)
	return some && len(ranks) > 0
}

func (rt *Router) passHome(q *Question) *Refusal {
	home, f := rt.models.homeOf(q)
	q.pool = home.pool
	return f
}

// A request that is passed on is booked with tokens that are guessed from its size. The
// bound is there because pictures and sounds are long as text.
const (
	passedBytesPerToken = 4
	passedTokensMost    = 16 << 10
)

func (q *Question) passedPrompt() tokens.Prompt {
	if q.query.Request == nil || q.query.Request.End() == 0 { // only headers, or a form
		return tokens.Prompt{}
	}
	p := q.guessedPrompt()
	p.ISLTokens = min(p.ISLTokens, passedTokensMost)
	return p
}

// guessedPrompt is a prompt of which only the size of the body is known.
func (q *Question) guessedPrompt() tokens.Prompt {
	return tokens.Prompt{ISLTokens: len(q.query.Body) / passedBytesPerToken, Estimated: true}
}
