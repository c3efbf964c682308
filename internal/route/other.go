package route

import (
	"slices"
	"strings"

	"github.com/seed-60ae5743/baton/pkg/tokens"
)

// This file is for requests on paths that Baton does not read: one worker serves them.

// askPassing is Ask for a request on such a path. A worker of the model that the body
// names serves it. If the request has only headers, the worker may be one of any model.
func (rt *Router) askPassing(q *Question) *Refusal {
	r := &q.req
	q.query.Request, q.query.Body = r.Scan, r.Body
	anyPart := r.Scan == nil || tokenizes(r.Passing)
	f := rt.passingPool(q, anyPart)
	if f != nil {
		return f
	}
	if of := rt.cfg.Policy.RulesOf(q.pool); of.Enforced && !of.NeverSplit && !anyPart {
		return refuse(Enforced)
	}
	q.decodeOnly = anyPart && len(q.pool.AggregatedRanks) == 0
	lead := q.lead()
	if len(lead) == 0 {
		return refuse(NoAggregated)
	}
	q.query.Key, q.query.BlockSize = q.pool.Key, int(lead[0].BlockSize)
	return rt.place(q)
}

// passingPool finds the pool of the model that the body names, or of the worker that the
// request names, or of the only model. For a request without a body it prefers a pool
// that has a worker for it.
func (rt *Router) passingPool(q *Question, anyPart bool) *Refusal {
	named := q.wish.pins.Decode.Worker(q.world.Snapshot)
	if r := q.req.Scan; r != nil && (len(r.Model) > 0 || named == nil) {
		home, f := rt.homeOf(q)
		q.pool = home.pool
		return f
	}
	for key := range Keys(q.world, rt.cfg.Policy.Namespace) {
		pool := q.world.Pool(key)
		if named != nil && !slices.Contains(named.Models, key.Model) {
			continue // a request without a model is for a model of the named worker
		}
		ranks := pool.AggregatedRanks
		if anyPart && len(ranks) == 0 {
			ranks = pool.DecodeRanks
		}
		if _, some := within(q.world.Snapshot, q.req.Subset, ranks); q.pool == nil || some && len(ranks) > 0 {
			q.pool = pool
		}
	}
	if q.pool == nil {
		return refuse(NoWorker)
	}
	return nil
}

// tokenizes reports whether a path asks only for tokens or their text. A decode worker
// can answer this, since it takes no KV.
func tokenizes(path string) bool {
	path, _, _ = strings.Cut(path, "?")
	switch strings.TrimPrefix(path, "/v1") {
	case "/tokenize", "/detokenize":
		return true
	}
	return false
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
	return tokens.Prompt{ISLTokens: min(len(q.query.Body)/passedBytesPerToken, passedTokensMost), Estimated: true}
}
