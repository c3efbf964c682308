package extproc

import (
	"slices"
	"time"

	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// maxDomains bounds how many prefill workers are picked for one request because
// decode was busy in the domain of the one before. Domains that nobody decodes
// in are passed over together and count once.
const maxDomains = 8

// pair picks prefill, then decode. Where nobody may be picked for decode in the
// domain that prefill's KV is not to leave (docs/behaviour.md#transfer-domain), prefill
// is picked again in another one: only then is that looked at, so that it costs nothing
// elsewhere.
func (srv *Server) pair(v *verdict, q *question, sc *scratch, prefillBooking, decodeBooking *load.Reservation) {
	prefillParams, decodeParams := q.override.Apply(srv.cfg.Prefill), picker.DecodeOverride(q.override.Apply(srv.cfg.Decode))
	for range maxDomains {
		if err := srv.choose(&v.prefill, worker.Prefill, prefillParams, v, q, sc, prefillBooking); err != nil {
			if v.fail == nil {
				v.fail = q.nobody(worker.Prefill, &failNoPrefill, err)
			}
			return
		}
		err := srv.choose(&v.decode, worker.Decode, decodeParams, v, q, sc, decodeBooking)
		if err == nil {
			v.fail = nil
			return
		}
		prefillBooking.Cancel(time.Now())
		if v.fail == nil {
			v.fail = q.nobody(worker.Decode, &failNoDecode, err)
		}
		if !srv.strand(v, q) {
			return
		}
	}
}

// strand takes the prefill workers out of the pick whose KV would be stranded:
// those of the domain that has just failed, and of those that have no decode worker
// to pick. It reports false where no domain binds the pick, or the worker is named.
func (srv *Server) strand(v *verdict, q *question) bool {
	failed := q.domain(q.snap.Worker(v.prefill.decision.Rank.ID))
	if failed == "" || q.places.Prefill != nil {
		return false
	}
	served := map[string]bool{failed: false}
	for _, w := range q.pool.Prefill {
		d := q.domain(w)
		if d == "" {
			continue
		}
		ok, known := served[d]
		if !known {
			ok = srv.decodes(q, w.Engine, d)
			served[d] = ok
		}
		if ok || slices.Contains(v.stranded, worker.Rank{ID: w.ID}) {
			continue
		}
		v.stranded = appendRanks(v.stranded, w)
	}
	return true
}

// domain returns the taint that the KV of the worker requires of decode, "" for
// none.
func (q *question) domain(w *worker.Worker) string {
	if w == nil || w.KVTransfer.Domain == "" || w.KVTransfer.Enforcement == worker.Preferred {
		return ""
	}
	return q.snap.TransferTaint(w.ID)
}

// decodes reports whether some decode worker of the domain could be picked, if it
// is not too busy.
func (srv *Server) decodes(q *question, e worker.Engine, domain string) bool {
	may := func(w *worker.Worker) bool {
		if at := q.places.Decode; at != nil {
			return w.ID == at.Worker.ID
		}
		return w.CanServe(worker.Decode) && allowed(q.wish.subset, w) && srv.cfg.Health.AllowsSome(w.ID)
	}
	return slices.ContainsFunc(q.pool.Decode, func(w *worker.Worker) bool {
		return w.Engine == e && w.HasTaint(domain) && q.constraints.Lacks(w) == "" && may(w)
	})
}
