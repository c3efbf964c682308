package route

import (
	"slices"

	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// maxDomains bounds how many prefill workers are picked for one request because no decode
// worker could be picked in the domain of the one before. All domains without a decode
// worker are passed over together, and count once.
const maxDomains = 8

// pair picks prefill, then decode. If no decode worker may be picked in the domain that
// prefill's KV is not to leave (docs/behaviour.md#transfer-domain), pair picks prefill
// again in another domain. Domains are looked at only after such a failure: other
// requests pay nothing for them.
func (d *decider) pair() {
	q, v := d.q, &d.v
	prefillParams, decodeParams := q.override.Apply(d.cfg.Prefill), picker.DecodeOverride(q.override.Apply(d.cfg.Decode))
	for range maxDomains {
		err := d.choose(&v.prefill, worker.Prefill, prefillParams)
		if err != nil {
			if v.fail == nil {
				v.fail = q.nobody(worker.Prefill, err)
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
			v.fail = q.nobody(worker.Decode, err)
		}
		if !d.strand() {
			return
		}
	}
}

// strand takes prefill workers out of the pick whose KV no decode worker may fetch: those
// of the domain that has just failed, and those of domains without a decode worker to
// pick. It returns false if no domain binds the pick, or if the request names the prefill
// worker.
func (d *decider) strand() bool {
	q, v := d.q, &d.v
	failed := q.domain(q.world.Worker(v.prefill.decision.Rank.ID))
	if failed == "" || q.places.Prefill != nil {
		return false
	}
	served := map[string]bool{failed: false}
	for _, w := range q.pool.Prefill {
		at := q.domain(w)
		if at == "" {
			continue
		}
		ok, known := served[at]
		if !known {
			ok = d.decodes(w.Engine, at)
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
func (q *Question) domain(w *worker.Worker) string {
	if w == nil || w.KVTransfer.Domain == "" || w.KVTransfer.Enforcement == worker.Preferred {
		return ""
	}
	return q.world.TransferTaint(w.ID)
}

// decodes reports whether the domain has a decode worker of the engine that could be
// picked. Load is not looked at: such a worker may be overloaded.
func (d *decider) decodes(e worker.Engine, domain string) bool {
	q := d.q
	may := func(w *worker.Worker) bool {
		if at := q.places.Decode; at != nil {
			return w.ID == at.Worker.ID
		}
		return w.CanServe(worker.Decode) && allowed(q.req.Subset, w) && d.cfg.Health.AllowsSome(w.ID)
	}
	return slices.ContainsFunc(q.pool.Decode, func(w *worker.Worker) bool {
		return w.Engine == e && w.HasTaint(domain) && q.constraints.Lacks(w) == "" && may(w)
	})
}
