package route

import (
	"cmp"
	"slices"

	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/internal/engine/handoff"
	"github.com/seed-60ae5743/baton/internal/pin"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// This file judges which workers of a pool can be a pair: those that fit. Each engine hands
// KV over in its own way, and a request may be one that this way cannot serve.

// engines returns the engines of which one is to prefill the request: that of the worker
// that the request names; else those of the pool's prefill workers that have a partner;
// else, if none has, those of all. It returns nil if the named worker is not in this pool:
// the method place refuses that request. The slice is shared.
func (q *Question) engines() []worker.Engine {
	for _, t := range [...]*pin.Target{&q.wish.pins.Prefill, &q.wish.pins.Decode} {
		if !t.Named() {
			continue
		}
		w := t.Worker(q.world.Snapshot)
		if w == nil || w.Namespace != q.pool.Key.Namespace || !w.Answers(q.pool.Key.Model) {
			return nil
		}
		return []worker.Engine{w.Engine}
	}
	if len(q.pool.Paired) > 0 {
		return q.pool.PairedEngines
	}
	var all []worker.Engine
	for _, f := range q.pool.PrefillFits {
		if !slices.Contains(all, f.Engine) {
			all = append(all, f.Engine)
		}
	}
	return all
}

// Reasons why an engine's hand-off cannot serve a request; handoff.Hindrance returns more.
const (
	noListener = "listener"
	noMirror   = "mirror"
	// CutToFit is the reason of a request whose legs may keep different parts of its
	// prompt (docs/engines.md#truncation).
	CutToFit = "truncate_prompt_tokens"
)

// hindrance says why an engine's hand-off cannot serve the request. The zero value means that it
// can.
func (rt *Router) hindrance(e worker.Engine, q *Question) handoff.Obstacle {
	kind := engines.HandOff(e)
	cut := q.cut && engines.Of(e).Truncates
	switch {
	case q.req.Sidecar:
		kind = engines.Sidecar // which asks prefill for one token, too
	case !kind.PrefillFirst() && q.req.OneLeg:
		return handoff.Obstacle{Member: noMirror}
	case (kind.PrefillFirst() || q.req.Sends) && !rt.cfg.Policy.Rules.Listener:
		return handoff.Obstacle{Member: noListener}
	case handoff.Alone(kind, q.req.Scan), q.wholeAtPrefill():
		return handoff.Obstacle{}
	}
	if cut {
		return handoff.Obstacle{Member: CutToFit}
	}
	return handoff.Hindrance(kind, q.req.Body, q.req.Scan, rt.cfg.HandedOver)
}

// splittable refuses a request that is to be served with prefill and decode apart if no
// engine can do it: a hand-off through prefill's answer needs the prefill listener, and a
// request for one generation. If only some engines can, the pick is limited to these. If
// none can, one worker alone serves the request, provided that the pool has one and the
// request names no prefill worker.
func (rt *Router) splittable(q *Question) *Refusal {
	if !q.apart {
		return nil
	}
	var why, none handoff.Obstacle
	some, able := q.engines(), 0
	for _, e := range some {
		h := rt.hindrance(e, q)
		if h == none {
			able++
		} else if why == none || why.Member == noMirror {
			why = h
		}
	}
	switch {
	case able == 0 && len(some) > 0:
		return rt.unsplit(q, why)
	case !q.wish.names() && able < len(some):
		q.able = slices.DeleteFunc(slices.Clone(some), func(e worker.Engine) bool { return rt.hindrance(e, q) != none })
	}
	return nil
}

// unsplit has one worker serve a request that no engine can split, or returns why none
// can.
func (rt *Router) unsplit(q *Question, why handoff.Obstacle) *Refusal {
	if why.Member == noListener {
		return refuse(NoListener)
	}
	f := &Refusal{Reason: NoHandoff, Obstacle: why}
	if q.wish.pins.Prefill.Named() {
		return q.notUsed(f)
	}
	q.apart = false
	switch none := len(q.pool.AggregatedRanks) == 0; {
	case why.Member == handoff.NoPath && (none || rt.cfg.Policy.Rules.Enforced):
		f := q.noneAlone(none)
		f.Path = q.req.Scan.Path.String()
		return f
	case none || rt.cfg.Policy.Rules.Enforced:
		return f
	}
	return nil
}

// wholeAtPrefill reports whether a prefill worker is to serve the whole request, since that asks for
// one token: prefill makes it anyway, and the answer is then its engine's own. The request names
// no workers, and all that could prefill can do so.
func (q *Question) wholeAtPrefill() bool {
	if q.wish.names() || q.req.Sidecar || !handoff.OneToken(q.req.Scan) {
		return false
	}
	return q.servesAtPrefill()
}

// servesAtPrefill reports whether prefill workers of all the engines can serve whole requests.
func (q *Question) servesAtPrefill() bool {
	some := q.engines()
	return len(some) > 0 && !slices.ContainsFunc(some, func(e worker.Engine) bool { return !engines.Of(e).PrefillServes })
}

// byPrefill picks and books a prefill worker for a request that it serves whole. False means that
// it is another request.
func (d *decider) byPrefill() bool {
	q, v := d.q, &d.v
	if !q.wholeAtPrefill() || q.named() {
		return false
	}
	d.onPrefill()
	if v.fail == nil {
		q.apart, v.split = false, split{reason: FirstToken}
	}
	return true
}

// onPrefill picks and books a prefill worker that serves the whole request.
func (d *decider) onPrefill() {
	if err := d.choose(&d.v.decode, worker.Prefill, d.q.override.Apply(d.cfg.Prefill)); err != nil {
		d.v.fail = d.nobody(worker.Prefill, err)
	}
}

// notUsed adds to f the header or member that names the request's prefill worker: the
// answer then says that this worker would not be used.
func (q *Question) notUsed(f *Refusal) *Refusal {
	named := &q.wish.pins.Prefill
	f.By = cmp.Or(named.IDBy, named.AddressBy)
	return f
}

// uncut has one worker serve a request whose legs may keep different parts of its prompt,
// or refuses the request. It is called once the prompt is known.
func (d *decider) uncut() *Refusal {
	q := d.q
	if !q.apart || !slices.ContainsFunc(q.pool.PrefillFits, func(f worker.Fit) bool { return engines.Of(f.Engine).Truncates }) || !q.query.CutToFit(&d.v.prompt) {
		return nil
	}
	q.cut = true
	f := d.splittable(q)
	if f != nil || q.apart {
		return f
	}
	q.alone = CutPrompt
	return d.place(q) // the workers that it names were to be a pair
}

// unused refuses a request that names a prefill worker if its model is never split.
func (q *Question) unused() *Refusal {
	if !q.undivided || !q.wish.pins.Prefill.Named() {
		return nil
	}
	return q.notUsed(refuse(NoHandoff))
}

// servesAlone reports whether the decode worker may serve a request without a hand-off
// (docs/behaviour.md#prefill-answers).
func (rt *Router) servesAlone(w *worker.Worker) bool {
	return !rt.cfg.Policy.Rules.Enforced && w.CanServe(worker.Aggregated)
}

// carried makes a request one that one worker serves if its prefill leg would have to be
// mirrored and the gateway mirrors none (OneLeg). If the engine prefills first and there is a
// listener for it, the plugin sends the prefill leg itself, and the request stays split; so
// it does if decode's sidecar sends that leg.
func (rt *Router) carried(q *Question) *Refusal {
	if !q.apart || !q.req.OneLeg || q.req.Sidecar {
		return nil
	}
	some := q.engines()
	first := slices.ContainsFunc(some, func(e worker.Engine) bool { return engines.HandOff(e).PrefillFirst() })
	if len(some) == 0 || first && rt.cfg.Policy.Rules.Listener {
		return nil
	}
	switch {
	case rt.cfg.Policy.Rules.Enforced:
		return q.noneAlone(false)
	case len(q.pool.AggregatedRanks) == 0:
		return q.noneAlone(true)
	}
	q.apart, q.alone = false, OneLeg
	return nil
}

// ranks lists the ranks from which a role is picked. A decode worker must fit the prefill
// worker that was picked, and a prefill worker the decode worker that the request names, or
// some decode worker.
func (d *decider) ranks(role worker.Role) []worker.Rank {
	q, v := d.q, &d.v
	switch {
	case role == worker.Prefill && q.places.Decode != nil:
		return q.pool.PrefillRanksOf(q.places.Decode.Worker.Fit())
	case role == worker.Prefill && q.able != nil:
		return slices.DeleteFunc(slices.Clone(q.pool.PairedRanks), func(r worker.Rank) bool {
			return !slices.Contains(q.able, q.world.Worker(r.ID).Engine)
		})
	case role == worker.Prefill && q.places.Prefill == nil && len(q.pool.PairedRanks) > 0:
		return q.pool.PairedRanks
	case role == worker.Decode && v.prefill.made:
		return q.pool.DecodeRanksOf(q.world.Worker(v.prefill.decision.Rank.ID).Fit())
	default:
		return q.pool.Ranks(role)
	}
}

// keptApart returns those of the ranks whose workers are no pair with the worker of the other leg that
// the request names, or that was picked (internal/sides).
func (d *decider) keptApart(role worker.Role, ranks []worker.Rank) []worker.Rank {
	q := d.q
	switch other := q.places.Decode; {
	case role == worker.Prefill && other != nil && q.apart:
		return d.sides.Among(ranks, worker.Decode, other.Worker.ID)
	case role == worker.Decode && d.v.prefill.made:
		return d.sides.Among(ranks, worker.Prefill, d.v.prefill.decision.Rank.ID)
	}
	return nil
}

// unpaired returns the refusal of a request for which c found nobody: f, or that there are only workers
// which are kept apart, if waiting brings no other.
func (d *decider) unpaired(c *choice, f *Refusal) *Refusal {
	if f.Reason != lackOf(c.role) || f.Returning || f.Overloaded {
		return f
	}
	for _, r := range d.keptApart(c.role, c.stranded) {
		if w := d.q.world.Worker(r.ID); w != nil && allowed(d.q.req.Subset, w) && d.cfg.Health.Allows(r) {
			return refuse(SidesDiffer)
		}
	}
	return f
}
