package route

import (
	"slices"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// spares reports whether somebody of the role but r could be tried: nobody who has
// failed the request, is aside, or is not allowed. It looks at few workers, however many
// there are.
func (rt *Router) spares(q *Question, role worker.Role, r worker.Rank) bool {
	but := append(append(make([]worker.Rank, 0, 8), r), q.req.Failed...)
	if q.req.Subset == nil {
		return rt.cfg.Health.Spare(q.pool.Key, role, but...)
	}
	return rt.sparesWithin(q, role, but)
}

// spareLooks bounds the search among those to whom a data plane limits a request. Of a
// subset and a pool that are both larger, a few who could be tried among many who could
// not may be overlooked: then there is no fresh attempt where only another worker may do
// better.
const spareLooks = 256

// sparesWithin is spares within a subset: by its addresses where these are few, and by
// the pool's workers, whose address may have no port in the subset, or be shared.
func (rt *Router) sparesWithin(q *Question, role worker.Role, but []worker.Rank) bool {
	free := func(w *worker.Worker, dp worker.DPRank) bool {
		r := worker.Rank{ID: w.ID, DPRank: dp}
		failed := func(x worker.Rank) bool { return x.In(r, w.Ports() == 1) }
		return !slices.ContainsFunc(but, failed) && !rt.cfg.Health.Aside(r)
	}
	n := 0
	for at := range q.req.Subset.Endpoints() {
		n++
		if n > spareLooks {
			break
		}
		if w, dp := q.world.RankAt(at); w != nil && q.has(role, w) && free(w, dp) {
			return true
		}
	}
	ws := q.members(role)
	for _, w := range ws[:min(len(ws), spareLooks)] {
		for dp := range worker.DPRank(w.Ports()) { //nolint:gosec // DPSize is bounded
			if q.req.Subset.Allows(w.EndpointOf(dp).AddrPort()) && free(w, dp) {
				return true
			}
		}
	}
	return false
}

// has reports whether a worker is of the pool, in that role.
func (q *Question) has(role worker.Role, w *worker.Worker) bool {
	return w.CanServe(role) && w.Namespace == q.pool.Key.Namespace && slices.Contains(w.Models, q.pool.Key.Model)
}

// members are the pool's workers in that role.
func (q *Question) members(role worker.Role) []*worker.Worker {
	switch role {
	case worker.Prefill:
		return q.pool.Prefill
	case worker.Decode:
		return q.pool.Decode
	default:
		return q.pool.Aggregated
	}
}
