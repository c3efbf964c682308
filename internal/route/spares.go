package route

import (
	"slices"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// spares reports whether another worker of the role than r could be tried: one that has
// not failed the request, is neither set aside nor doubted, and is allowed. It looks at few workers,
// however large the pool is.
func (rt *Router) spares(q *Question, role worker.Role, r worker.Rank) bool {
	but := append(append(make([]worker.Rank, 0, 8), r), q.req.Failed...)
	if q.req.Subset == nil {
		return rt.cfg.Health.Spare(q.pool.Key, role, but...)
	}
	return rt.sparesWithin(q, role, but)
}

// spareLooks bounds that search in a subset that a data plane sets. If both the subset
// and the pool are larger, a few workers that could be tried may be overlooked among many
// that could not. Then there is no fresh attempt for a failure that only another worker
// can avoid.
const spareLooks = 256

// sparesWithin is spares within a subset. It looks through the subset's addresses, and
// then through the pool's workers: a worker's address may be in the subset without its
// port, or be shared.
func (rt *Router) sparesWithin(q *Question, role worker.Role, but []worker.Rank) bool {
	free := func(w *worker.Worker, dp worker.DPRank) bool {
		r := worker.Rank{ID: w.ID, DPRank: dp}
		failed := func(x worker.Rank) bool { return x.In(r, w.Ports() == 1) }
		return !slices.ContainsFunc(but, failed) && !rt.cfg.Health.Away(r)
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

// has reports whether a worker is in the question's pool and can serve in the role.
func (q *Question) has(role worker.Role, w *worker.Worker) bool {
	return w.CanServe(role) && w.Namespace == q.pool.Key.Namespace && w.Answers(q.pool.Key.Model)
}

// members returns the pool's workers that serve in the role.
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
