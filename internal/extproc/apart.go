package extproc

import (
	"cmp"
	"slices"

	"github.com/seed-60ae5743/baton/internal/openai"
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
func (q *question) engines() []worker.Engine {
	for _, t := range [...]*pin.Target{&q.wish.pins.Prefill, &q.wish.pins.Decode} {
		if !t.Named() {
			continue
		}
		w := t.Worker(q.snap.Snapshot)
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
func (srv *Server) hindrance(e worker.Engine, q *question, r *openai.Request, body []byte) string {
	kind := handoff.KindOf(e)
	switch {
	case !kind.PrefillFirst() && q.wish.oneLeg:
		return noMirror
	case kind.PrefillFirst() && srv.legClient == nil:
		return noListener
	case kind.PrefillFirst() && handoff.Alone(r):
		return ""
	default:
		return handoff.Obstacle(kind, body, r)
	}
}

// splittable says why a request that is to be served with prefill and decode
// apart cannot be, by any engine that might: where the hand-off goes through
// prefill's answer, it needs a listener and one generation. Of several engines those
// are left to be picked that can. A request that none can split goes to a worker that
// can serve it alone, if one can, and if it names no prefill worker.
func (srv *Server) splittable(q *question, r *openai.Request, body []byte) *failure {
	if !q.disagg {
		return nil
	}
	engines, able, why := q.engines(), 0, ""
	for _, e := range engines {
		if h := srv.hindrance(e, q, r, body); h == "" {
			able++
		} else if why == "" || why == noMirror {
			why = h
		}
	}
	switch {
	case able == 0 && len(engines) > 0:
		return srv.unsplit(q, why)
	case !q.wish.names() && able < len(q.pool.PrefillEngines):
		q.able = slices.DeleteFunc(slices.Clone(engines), func(e worker.Engine) bool { return srv.hindrance(e, q, r, body) != "" })
	}
	return nil
}

// unsplit has one worker serve what no engine can split, or says why not.
func (srv *Server) unsplit(q *question, why string) *failure {
	if why == noListener {
		return &failNoListener
	}
	f := failNoHandoff
	f.message += ": " + why
	if q.wish.pins.Prefill.Named() {
		return q.notUsed(f)
	}
	f.message += "."
	if q.disagg = false; len(q.pool.AggregatedRanks) == 0 || srv.cfg.EnforceDisagg {
		return &f
	}
	return nil
}

// notUsed is f for a request that names a prefill worker: who does is told that it
// would not be used.
func (q *question) notUsed(f failure) *failure {
	named := &q.wish.pins.Prefill
	f.param = cmp.Or(named.IDBy, named.AddressBy)
	f.message += "; and " + f.param + " names a prefill worker."
	return &f
}

// unused says so of a request of a model that is never split.
func (q *question) unused() *failure {
	if !q.undivided || !q.wish.pins.Prefill.Named() {
		return nil
	}
	f := failNoHandoff
	f.message = "The model's requests are never split"
	return q.notUsed(f)
}

// ranks lists who may be picked. Decode must speak the hand-off of the prefill
// worker that was picked, and prefill that of the decode worker that is named.
func (srv *Server) ranks(q *question, v *verdict, role worker.Role) []worker.Rank {
	switch {
	case role == worker.Prefill && q.places.Decode != nil:
		return q.pool.PrefillRanksOf(q.places.Decode.Worker.Engine)
	case role == worker.Prefill && len(q.able) == 1:
		return q.pool.PrefillRanksOf(q.able[0])
	case role == worker.Prefill && q.able != nil:
		return slices.DeleteFunc(slices.Clone(q.pool.PrefillRanks), func(r worker.Rank) bool {
			return !slices.Contains(q.able, q.snap.Worker(r.ID).Engine)
		})
	case role == worker.Decode && v.prefill.made:
		return q.pool.DecodeRanksOf(q.snap.Worker(v.prefill.decision.Rank.ID).Engine)
	default:
		return q.pool.Ranks(role)
	}
}
