package extproc

import (
	"errors"
	"strconv"

	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// overrideField is where a request says how its own picks are to be weighed.
// The name is that of Dynamo's router API; nvext is what engines leave alone.
const overrideField = "router_config_override"

func (srv *Server) readOverride(q *question, r *openai.Request, body []byte) *failure {
	if !srv.cfg.Overrides || !r.Given(body, openai.NVExt) {
		return nil
	}
	ext := r.Value(openai.NVExt).Of(body)
	s, found := openai.FindValue(ext, overrideField)
	if !found {
		return nil
	}
	var err error
	q.override, err = picker.ParseOverride(s.Of(ext))
	switch {
	case errors.Is(err, picker.ErrAssumesReuse):
		return badBody(&openai.Error{Kind: openai.WrongType, Field: "nvext." + overrideField + ".assume_kv_reuse", Detail: "false, or none"})
	case err != nil:
		return badBody(&openai.Error{
			Kind: openai.WrongType, Field: "nvext." + overrideField, Detail: "an object of numbers from 0 up and booleans",
		})
	}
	return nil
}

// constraintsField is where a request says which taints its workers must, or had
// better, carry. The name is that of Dynamo's requests.
const constraintsField = "routing_constraints"

// readConstraints reads what the request asks of its workers. Where requests may
// not, one that does is refused: what it requires would not hold.
func (srv *Server) readConstraints(q *question, r *openai.Request, body []byte) *failure {
	if !r.Given(body, openai.NVExt) {
		return nil
	}
	ext := r.Value(openai.NVExt).Of(body)
	s, found := openai.FindValue(ext, constraintsField)
	if !found {
		return nil
	}
	c, err := picker.ParseConstraints(s.Of(ext))
	switch {
	case err != nil:
		return badBody(&openai.Error{
			Kind: openai.WrongType, Field: "nvext." + constraintsField,
			Detail: "required_taints, a list, and preferred_taints, an object of weights, of at most " + strconv.Itoa(picker.MaxConstraints) + " taints each",
		})
	case !c.None() && !srv.cfg.Overrides:
		return badBody(&openai.Error{Kind: openai.ForbiddenField, Field: "nvext." + constraintsField})
	}
	q.constraints = c
	q.missing = srv.taints.known(q.snap, &q.constraints)
	return nil
}

// bound returns what binds one pick: what the request asks for, and for decode the
// domain that the KV of its prefill worker is not to leave. It may lie in c
// or be the question's own; nil for nothing.
func (q *question) bound(c *picker.Constraints, role worker.Role, prefill worker.ID) *picker.Constraints {
	var k worker.KVTransfer
	if w := q.snap.Worker(prefill); w != nil && role == worker.Decode {
		k = w.KVTransfer
	}
	if k.Domain == "" {
		if q.constraints.None() {
			return nil
		}
		return &q.constraints
	}
	c.Copy(&q.constraints)
	if taint := q.snap.TransferTaint(prefill); k.Enforcement == worker.Preferred {
		c.Prefer(taint, k.Weight)
	} else {
		c.Require(taint)
	}
	return c
}

// reach leaves of a prefill pick those whose KV may go to the decode worker that
// the request names, and all of them where none may: decode's pick then says
// why.
func (q *question) reach(r *load.Request, decode *worker.Worker) {
	may, n := picker.NewBits(len(r.Ranks)), 0
	for i, rank := range r.Ranks {
		w := q.snap.Worker(rank.ID)
		free := w == nil || w.KVTransfer.Domain == "" || w.KVTransfer.Enforcement == worker.Preferred
		if (free || decode.HasTaint(q.snap.TransferTaint(rank.ID))) && (r.Within == nil || r.Within.Has(i)) {
			may.Set(i)
			n++
		}
	}
	if n > 0 {
		r.Within = may
	}
}
