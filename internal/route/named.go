package route

import (
	"slices"

	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/pin"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// This file is for requests that name their workers themselves
// (docs/behaviour.md#named-workers).

// stillAsks reports whether a request is answered although it cannot be served: it only
// asks which workers would serve it, prefill is becoming ready, and decode is there
// (docs/behaviour.md#becoming-ready).
func (q *Question) stillAsks(why Reason) bool {
	q.decodeOnly = q.wish.query && why == Pending && len(q.pool.Decode) > 0
	return q.decodeOnly
}

// lead returns the workers whose facts, such as the block size, say how the prompt is
// read.
func (q *Question) lead() []*worker.Worker {
	switch {
	case q.apart && q.able != nil:
		first := slices.IndexFunc(q.pool.Paired, func(w *worker.Worker) bool { return slices.Contains(q.able, w.Engine) })
		return q.pool.Paired[max(first, 0):]
	case q.apart && len(q.pool.Paired) > 0:
		return q.pool.Paired
	case q.apart:
		return q.pool.Prefill
	case q.decodeOnly:
		return q.pool.Decode
	case q.atPrefill:
		return q.pool.Prefill
	default:
		return q.pool.Aggregated
	}
}

// place finds the workers that the request names.
func (rt *Router) place(q *Question) *Refusal {
	if q.req.Trust == pin.Normal {
		return nil
	}
	var err *pin.Error
	q.places, err = q.wish.pins.Resolve(pin.Scope{
		Snap: q.world.Snapshot, Key: q.pool.Key, Trust: q.req.Trust,
		Disaggregated: q.apart, Alone: !q.apart && !q.decodeOnly, Left: rt.cfg.Left, LeftFrom: rt.cfg.LeftFrom,
	})
	if err != nil {
		return &Refusal{Reason: BadName, Pin: err}
	}
	return nil
}

// misnamed returns what is wrong with the workers that the request names, if no worker of
// a leg can be picked. Named workers are checked before any pick: a client that has named
// a draining worker must learn that this worker is the reason.
func (rt *Router) misnamed(q *Question, why Reason) *Refusal {
	if why != NoPrefill && why != NoDecode && why != NoCommon {
		return nil
	}
	apart := *q
	apart.apart = true
	return rt.place(&apart)
}

// placeOf returns the worker that the request names for the role, nil for none.
func (q *Question) placeOf(r worker.Role) *pin.Place {
	if r == worker.Prefill {
		return q.places.Prefill
	}
	return q.places.Decode
}

// narrow limits a pick to what the request names: one rank, or the ranks of one worker.
// That worker may be picked although it is set aside, has failed this request, or is over
// a limit. No cursor moves (docs/behaviour.md#one-turn).
func narrow(r *load.Request, at *pin.Place, p *picker.Params) {
	rank := worker.Rank{ID: at.Worker.ID, DPRank: at.DPRank}
	from, sorted := slices.BinarySearchFunc(r.Ranks, rank, worker.Rank.Compare)
	if !sorted { // workers whose models are not known come last in a list
		from = max(slices.Index(r.Ranks, rank), 0)
	}
	n := 1
	if at.AnyRank {
		n = int(at.Worker.DPSize)
	}
	n = min(n, len(r.Ranks)-from)
	r.Cached = r.Part(from, n)
	r.Ranks = r.Ranks[from : from+n : from+n]
	r.Filter, r.Exclude, r.MaxQueuedISLTokens = anybody{r.Filter}, nil, 0
	p.ServeOverloaded = true
	if p.Mode == picker.RoundRobin {
		p.Mode = picker.KV
	}
}

// anybody is a filter by which any worker may be picked. It reports bookings to the
// filter inside.
type anybody struct{ load.Filter }

func (anybody) Changes(since uint64, dst []worker.ID) (now uint64, changed []worker.ID, all bool) {
	return 1, dst, since != 1
}

func (anybody) Standing(worker.Rank) health.Standing { return health.Free }

// kept returns the worker that an earlier attempt has left to be tried with another
// partner. It returns nil if there is none for the role, or if that worker may not be
// picked, as one that is not among the ranks since it does not fit its new partner, or is stranded.
func (d *decider) kept(role worker.Role, ranks, stranded []worker.Rank) *worker.Worker {
	q := d.q
	w := q.world.Worker(q.req.Keep.ID)
	if w == nil || w.Role != role || w.Draining || !q.apart || !allowed(q.req.Subset, w) || d.cfg.Health.Aside(q.req.Keep) || !slices.Contains(ranks, q.req.Keep) || slices.Contains(stranded, q.req.Keep) {
		return nil
	}
	return w
}
