package route

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/pkg/tokens"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// reasonOf says why a model cannot be served, or why only by a fallback; empty if it can.
// Without a prefill listener a request may still be served: splittable judges that.
func reasonOf(o activation.Outlook) Reason {
	if o.Way != activation.Refused && !o.Fallback {
		return ""
	}
	why, named := reasons[o.Reason]
	if !named {
		return NoWorker
	}
	return why
}

// reasons are those of an outlook of which a refusal has one of its own.
var reasons = map[activation.Reason]Reason{
	activation.Pending: Pending, activation.NoPrefill: NoPrefill, activation.NoDecode: NoDecode, activation.NoCommon: NoCommon,
	activation.NoListener: "", activation.Enforced: Enforced, activation.PrefillGone: PrefillGone, activation.NoAggregated: NoAggregated,
}

// outlook says whether a request is to be served with prefill and decode apart. If it
// cannot be, the reason is not empty; if fallback is true, too, one worker serves in
// place of that error.
func (rt *Router) outlook(q *Question) (apart, fallback bool, why Reason) {
	rules := rt.cfg.Policy.RulesOf(q.pool)
	o := activation.Judge(q.world.Standing(q.pool.Key).State, q.pool, rules)
	q.undivided = rules.NeverSplit
	why = reasonOf(o)
	if why == NoCommon {
		why = noCommon(q.world, q.pool)
	}
	return o.Way == activation.Apart || o.Reason == activation.NoListener, o.Fallback, why
}

// noCommon says why no two workers of the pool hand KV over to each other: one that could
// drains, so that its successor may come, or none is known.
func noCommon(world *activation.World, p *worker.Pool) Reason {
	for _, w := range world.Workers() {
		switch {
		case !w.Draining || w.Namespace != p.Key.Namespace || !w.Answers(p.Key.Model):
		case w.Role == worker.Prefill && len(p.DecodeRanksOf(w.Fit())) > 0:
			return NoPrefill
		case w.Role == worker.Decode && len(p.PrefillRanksOf(w.Fit())) > 0:
			return NoDecode
		}
	}
	return NoCommon
}

// judgeInTime judges the question in the current world, and again in each newer world as
// long as the pick fails.
func (d *decider) judgeInTime(p tokens.Prompt) {
	if d.cfg.Board.Load() != d.q.world { // the world has changed while tokens were counted
		d.follow()
	}
	for range maxWorlds {
		d.v = verdict{bookings: d.v.bookings}
		d.judge(p)
		if d.v.fail == nil || !d.follow() {
			break
		}
	}
	d.fallBack()
}

// follow puts the question in a newer world. It returns false if there is none.
func (d *decider) follow() bool {
	n := d.newer(d.q)
	if n == nil {
		return false
	}
	d.q = n
	return true
}

// maxWorlds bounds in how many worlds one request is judged.
const maxWorlds = 10

// newer returns the question in a later world than q's. It returns nil if there is none,
// or if the question cannot be asked there. All workers of a request may be replaced
// while its tokens are counted, or at this moment. The load book has then dropped the old
// workers, and the new ones can serve the request.
func (rt *Router) newer(q *Question) *Question {
	world, now := rt.newerWorld(q)
	if world == nil {
		return nil
	}
	n, f := rt.askIn(world, now, &q.req, q.wish)
	if f != nil || q.req.Passing == "" && (n.query.BlockSize != q.query.BlockSize || n.query.Eagle != q.query.Eagle) {
		return nil
	}
	return n
}

func (rt *Router) newerWorld(q *Question) (*activation.World, time.Time) {
	if rt.cfg.Newer != nil {
		return rt.cfg.Newer(q.world)
	}
	world := rt.cfg.Board.Load()
	if world == q.world {
		return nil, q.now
	}
	return world, q.now
}
