package route

import (
	"cmp"
	"slices"

	"github.com/seed-60ae5743/baton/internal/pin"
	"github.com/seed-60ae5743/baton/pkg/prefill/handoff"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// This file is for the engines of a pool: each hands KV over in its own way, and
// not every way is open to every request.

// engines returns those of which one is to prefill the request: that of the worker
// it names, else those of the pool that have decode workers too, where any has.
// Nil where it names a worker that this pool does not have, which place will say.
// The slice is shared.
func (q *Question) engines() []worker.Engine {
	for _, t := range [...]*pin.Target{&q.wish.pins.Prefill, &q.wish.pins.Decode} {
		if !t.Named() {
			continue
		}
		w := t.Worker(q.world.Snapshot)
		if w == nil || w.Namespace != q.pool.Key.Namespace || !slices.Contains(w.Models, q.pool.Key.Model) {
			return nil
		}
		return []worker.Engine{w.Engine}
	}
	all := q.pool.PrefillEngines
	if len(all) == 1 {
		return all
	}
	whole := slices.DeleteFunc(slices.Clone(all), func(e worker.Engine) bool { return len(q.pool.DecodeRanksOf(e)) == 0 })
	if len(whole) == 0 {
		return all
	}
	return whole
}

// What keeps an engine's hand-off from serving a request; handoff.Obstacle has more.
const (
	noListener = "listener"
	noMirror   = "mirror"
)

// hindrance says why an engine's hand-off cannot serve the request, "" where it can.
func (rt *Router) hindrance(e worker.Engine, q *Question) string {
	kind := handoff.KindOf(e)
	switch {
	case !kind.PrefillFirst() && q.req.OneLeg:
		return noMirror
	case kind.PrefillFirst() && !rt.cfg.Policy.Rules.Listener:
		return noListener
	case kind.PrefillFirst() && handoff.Alone(q.req.Scan):
		return ""
	default:
		return handoff.Obstacle(kind, q.req.Body, q.req.Scan)
	}
}

// splittable says why a request that is to be served with prefill and decode
// apart cannot be, by any engine that might: where the hand-off goes through
// prefill's answer, it needs a listener and one generation. Of several engines those
// are left to be picked that can. A request that none can split goes to a worker that
// can serve it alone, if one can, and if it names no prefill worker.
func (rt *Router) splittable(q *Question) *Refusal {
	if !q.apart {
		return nil
	}
	engines, able, why := q.engines(), 0, ""
	for _, e := range engines {
		h := rt.hindrance(e, q)
		if h == "" {
			able++
		} else if why == "" || why == noMirror {
			why = h
		}
	}
	switch {
	case able == 0 && len(engines) > 0:
		return rt.unsplit(q, why)
	case !q.wish.names() && able < len(q.pool.PrefillEngines):
		q.able = slices.DeleteFunc(slices.Clone(engines), func(e worker.Engine) bool { return rt.hindrance(e, q) != "" })
	}
	return nil
}

// unsplit has one worker serve what no engine can split, or says why not.
func (rt *Router) unsplit(q *Question, why string) *Refusal {
	if why == noListener {
		return refuse(NoListener)
	}
	f := &Refusal{Reason: NoHandoff, Obstacle: why}
	if q.wish.pins.Prefill.Named() {
		return q.notUsed(f)
	}
	q.apart = false
	if len(q.pool.AggregatedRanks) == 0 || rt.cfg.Policy.Rules.Enforced {
		return f
	}
	return nil
}

// notUsed is f for a request that names a prefill worker: who does is told that it
// would not be used.
func (q *Question) notUsed(f *Refusal) *Refusal {
	named := &q.wish.pins.Prefill
	f.By = cmp.Or(named.IDBy, named.AddressBy)
	return f
}

// unused says so of a request of a model that is never split.
func (q *Question) unused() *Refusal {
	if !q.undivided || !q.wish.pins.Prefill.Named() {
		return nil
	}
	return q.notUsed(refuse(NoHandoff))
}

// servesAlone reports whether the decode worker may serve a request that
// nothing was handed over for (docs/behaviour.md#prefill-answers).
func (rt *Router) servesAlone(w *worker.Worker) bool {
	return !rt.cfg.Policy.Rules.Enforced && w.CanServe(worker.Aggregated)
}

// carried turns a request of which a gateway carries one leg only into one for one
// worker. A synchronous hand-off needs no more than that.
func (rt *Router) carried(q *Question) *Refusal {
	if !q.apart || !q.req.OneLeg {
		return nil
	}
	engines := q.engines()
	first := slices.ContainsFunc(engines, func(e worker.Engine) bool { return handoff.KindOf(e).PrefillFirst() })
	if len(engines) == 0 || first && rt.cfg.Policy.Rules.Listener {
		return nil
	}
	switch {
	case rt.cfg.Policy.Rules.Enforced:
		return refuse(Enforced)
	case len(q.pool.AggregatedRanks) == 0:
		return refuse(NoAggregated)
	}
	q.apart, q.alone = false, OneLeg
	return nil
}

// ranks lists who may be picked. Decode must speak the hand-off of the prefill
// worker that was picked, and prefill that of the decode worker that is named.
func (d *decider) ranks(role worker.Role) []worker.Rank {
	q, v := d.q, &d.v
	switch {
	case role == worker.Prefill && q.places.Decode != nil:
		return q.pool.PrefillRanksOf(q.places.Decode.Worker.Engine)
	case role == worker.Prefill && len(q.able) == 1:
		return q.pool.PrefillRanksOf(q.able[0])
	case role == worker.Prefill && q.able != nil:
		return slices.DeleteFunc(slices.Clone(q.pool.PrefillRanks), func(r worker.Rank) bool {
			return !slices.Contains(q.able, q.world.Worker(r.ID).Engine)
		})
	case role == worker.Decode && v.prefill.made:
		return q.pool.DecodeRanksOf(q.world.Worker(v.prefill.decision.Rank.ID).Engine)
	default:
		return q.pool.Ranks(role)
	}
}
