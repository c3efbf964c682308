package route

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/pkg/tokens"
)

// reasonOf is why a model cannot be served, or only as a fallback; empty for one that
// can. Without a listener a request may still find another way: splittable judges that.
func reasonOf(o activation.Outlook) Reason {
	if o.Way != activation.Refused && !o.Fallback {
		return ""
	}
	switch o.Reason {
	case activation.Pending:
		return Pending
	case activation.NoPrefill:
		return NoPrefill
	case activation.NoDecode:
		return NoDecode
	case activation.NoCommon:
		return NoCommon
	case activation.NoListener:
		return ""
	case activation.Enforced:
		return Enforced
	case activation.PrefillGone:
		return PrefillGone
	case activation.NoAggregated:
		return NoAggregated
	default:
		return NoWorker
	}
}

// outlook says whether a request is to be served with prefill and decode apart, and
// has the reason why it cannot be served at all, or of what one worker is to serve in
// place of.
func (rt *Router) outlook(q *Question) (apart, fallback bool, why Reason) {
	rules := rt.cfg.Policy.RulesOf(q.pool)
	o := activation.Judge(q.world.Standing(q.pool.Key).State, q.pool, rules)
	q.undivided = rules.NeverSplit
	return o.Way == activation.Apart || o.Reason == activation.NoListener, o.Fallback, reasonOf(o)
}

// judgeInTime is judge in the world of now, and again in a newer world while nobody can be
// picked in the one that was judged.
func (d *decider) judgeInTime(p tokens.Prompt) {
	if d.cfg.Board.Load() != d.q.world { // it has changed while tokens were counted
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

// follow goes on with the question in a newer world, or reports that there is none.
func (d *decider) follow() bool {
	n := d.newer(d.q)
	if n == nil {
		return false
	}
	d.q = n
	return true
}

// maxWorlds bounds how often one request is judged.
const maxWorlds = 10

// newer returns the question in a later world than q's, or nil where there is
// none or it cannot be asked there. All workers of a request may have been
// replaced while its tokens were counted, or be replaced right now: then the
// load book does not know the old ones any more, and a request must not be
// refused though the new ones could serve it.
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
