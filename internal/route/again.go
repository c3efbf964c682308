package route

import (
	"errors"
	"slices"
	"time"

	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/subset"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// This file picks another decode worker for a request, while prefill runs or after it has
// ended: the KV that prefill holds can go to any decode worker that fits.

// Again is what a further pick of decode needs: the same terms as at the decision. It
// must not be changed.
type Again struct {
	key         worker.Key
	fit         worker.Fit
	subset      *subset.Set
	exclude     []worker.Rank
	pick        picker.Request
	growth      load.Growth
	params      picker.Params
	constraints *picker.Constraints
	bound       picker.Constraints // the memory of constraints if the domain of the prefill worker adds one
}

// again returns the terms for a further pick of decode, in case the decode worker leaves
// while prefill runs.
func (d *decider) again() *Again {
	q, v := d.q, &d.v
	a := &Again{
		fit: q.world.Worker(v.prefill.decision.Rank.ID).Fit(),
		key: q.pool.Key, subset: q.req.Subset, exclude: q.req.Failed, params: v.decode.params, growth: v.decode.growth,
		pick: picker.Request{Role: worker.Decode, ISLTokens: v.prompt.ISLTokens, NewBlocks: v.newBlocks()},
	}
	a.constraints = q.bound(&a.bound, worker.Decode, v.prefill.decision.Rank.ID)
	return a
}

// DecodeAgain picks and books another decode worker if the one that was picked has left
// or was set aside; the text says which. The text is empty if that worker may stay. There
// is no pick if that worker may stay, if the prefill worker has left, or if no other
// decode worker may be picked.
func (rt *Router) DecodeAgain(a *Again, prefill, decode worker.Rank, now time.Time) (p Pick, why string) {
	world := rt.cfg.Board.Load()
	switch {
	case world.Worker(decode.ID) == nil:
		why = "left"
	case rt.cfg.Health.Aside(decode):
		why = "was set aside"
	default:
		return p, ""
	}
	pool, from := world.Pool(a.key), world.Worker(prefill.ID)
	if pool == nil || from == nil {
		return p, why
	}
	params := a.params
	r := load.Request{
		Key: a.key, Params: &params, Filter: rt.cfg.Health, Constraints: a.constraints, Pick: a.pick, Growth: a.growth,
		Ranks: pool.DecodeRanksOf(from.Fit()), Now: now,
	}
	differ := append(rt.apart().Among(r.Ranks, worker.Prefill, prefill.ID), decode)
	r.Exclude = append(slices.Clone(a.exclude), differ...)
	var some bool
	r.Within, some = within(world.Snapshot, a.subset, r.Ranks)
	if !some {
		return p, why
	}
	booking := new(load.Reservation)
	d, err := rt.cfg.Book.PickAndReserve(&r, booking)
	if errors.Is(err, picker.ErrNoCandidate) {
		r.Exclude = differ // a rank that has failed this request before is better than none
		d, err = rt.cfg.Book.PickAndReserve(&r, booking)
	}
	if err != nil {
		return p, why // the attempt fails at the missing worker, and reports it
	}
	w := world.Worker(d.Rank.ID)
	if w == nil {
		booking.Release(now)
		return p, why
	}
	return Pick{Decision: d, Role: worker.Decode, Worker: w, Booking: booking, Alone: rt.servesAlone(w)}, why
}

// Collector returns a decode worker of the snapshot that may fetch the KV that prefill
// holds, and a rank of it. Nobody gets the answer, so no pair is kept apart here. It passes over the workers in tried. It returns nil if there
// is no such worker, or without an Again.
func (rt *Router) Collector(a *Again, snap *worker.Snapshot, tried []worker.ID) (*worker.Worker, worker.DPRank) {
	if a == nil {
		return nil, 0
	}
	pool := snap.Pool(a.key)
	if pool == nil {
		return nil, 0
	}
	for _, w := range pool.Decode {
		if slices.Contains(tried, w.ID) || !w.Fit().Fits(a.fit) || a.constraints.Lacks(w) != "" {
			continue
		}
		for dp := range worker.DPRank(w.DPSize) {
			if a.subset.Allows(w.EndpointOf(dp).AddrPort()) && rt.cfg.Health.Allows(worker.Rank{ID: w.ID, DPRank: dp}) {
				return w, dp
			}
		}
	}
	return nil, 0
}
