package route

import (
	"slices"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/internal/sides"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// maxDomains bounds how many prefill workers are picked for one request because no decode
// worker could be picked for the one before. All reaches without a decode worker are
// passed over together, and count once.
const maxDomains = 8

// pair picks prefill, then decode. If no decode worker may be picked that fits the prefill
// worker, in the domain that its KV is not to leave (docs/behaviour.md#transfer-domain),
// pair picks prefill again, of another fit or in another domain. These are looked at only
// after such a failure: other requests pay nothing for them.
func (d *decider) pair() {
	q, v := d.q, &d.v
	prefillParams, decodeParams := q.override.Apply(d.cfg.Prefill), picker.DecodeOverride(q.override.Apply(d.cfg.Decode))
	for range maxDomains {
		err := d.choose(&v.prefill, worker.Prefill, prefillParams)
		if err != nil {
			if v.fail == nil {
				v.fail = d.unpaired(&v.prefill, d.nobody(worker.Prefill, err))
			}
			return
		}
		err = d.choose(&v.decode, worker.Decode, decodeParams)
		if err == nil {
			v.fail = nil
			return
		}
		v.bookings.prefill.Cancel(q.now)
		if v.fail == nil {
			v.fail = d.unpaired(&v.decode, d.nobody(worker.Decode, err))
		}
		if !d.strand() {
			return
		}
	}
}

// reach is where the KV of a prefill worker may go.
type reach struct {
	fit    worker.Fit
	domain string    // "": anywhere
	from   worker.ID // 0: any; else that worker, since some workers are kept apart
}

func reachOf(world *activation.World, w *worker.Worker, apart *sides.Apart) reach {
	at := reach{fit: w.Fit(), domain: domain(world, w)}
	if apart != nil {
		at.from = w.ID
	}
	return at
}

// strand takes prefill workers out of the pick whose KV no decode worker may fetch: those
// of the reach that has just failed, and those of reaches without a decode worker to pick.
// It returns false if there is only one reach, if no decode worker may be picked at all, or if the
// request names the prefill worker.
func (d *decider) strand() bool {
	q, v := d.q, &d.v
	from := q.world.Worker(v.prefill.decision.Rank.ID)
	if from == nil || q.places.Prefill != nil || domain(q.world, from) == "" && len(q.pool.PrefillFits) < 2 && d.sides == nil {
		return false
	}
	if !slices.ContainsFunc(q.pool.Decode, d.mayDecode) {
		return false // another prefill worker would help nobody
	}
	served := map[reach]bool{reachOf(q.world, from, d.sides): false}
	for _, w := range q.pool.Prefill {
		at := reachOf(q.world, w, d.sides)
		ok, known := served[at]
		if !known {
			ok = d.decodes(at)
			served[at] = ok
		}
		if ok || slices.Contains(v.stranded, worker.Rank{ID: w.ID}) {
			continue
		}
		v.stranded = appendRanks(v.stranded, w)
	}
	return true
}

// domain returns the taint that a decode worker must carry to get the KV of w, "" for
// none.
func domain(world *activation.World, w *worker.Worker) string {
	if w == nil || w.KVTransfer.Domain == "" || w.KVTransfer.Enforcement == worker.Preferred {
		return ""
	}
	return world.TransferTaint(w.ID)
}

// decodes reports whether there is a decode worker within the reach that could be picked.
// Load is not looked at: such a worker may be overloaded.
func (d *decider) decodes(at reach) bool {
	q := d.q
	return slices.ContainsFunc(q.pool.Decode, func(w *worker.Worker) bool {
		return w.Fit().Fits(at.fit) && (at.domain == "" || w.HasTaint(at.domain)) && !d.sides.Keeps(at.from, w.ID) && q.constraints.Lacks(w) == "" && d.mayDecode(w)
	})
}

// mayDecode reports whether the worker may be picked for decode, wherever KV may go.
func (d *decider) mayDecode(w *worker.Worker) bool {
	if at := d.q.places.Decode; at != nil {
		return w.ID == at.Worker.ID
	}
	return w.CanServe(worker.Decode) && allowed(d.q.req.Subset, w) && d.cfg.Health.AllowsSome(w.ID)
}
