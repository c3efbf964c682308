package route

import (
	"errors"
	"strconv"

	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// overrideField is the member of nvext in which a request sets weights for its own picks.
// The name is that of Dynamo's router API. Engines do not read nvext.
const overrideField = "router_config_override"

func (rt *Router) readOverride(q *Question) *Refusal {
	given, found := q.ext(overrideField)
	if !found {
		return nil
	}
	if !rt.cfg.Overrides {
		if rt.cfg.Unweighed != nil {
			rt.cfg.Unweighed()
		}
		return nil
	}
	var err error
	q.override, err = picker.ParseOverride(given)
	switch {
	case errors.Is(err, picker.ErrAssumesReuse):
		return badMember(openai.Error{Kind: openai.WrongType, Field: "nvext." + overrideField + ".assume_kv_reuse", Detail: "false, or none"})
	case err != nil:
		return badMember(openai.Error{
			Kind: openai.WrongType, Field: "nvext." + overrideField, Detail: "an object of numbers from 0 up and booleans",
		})
	}
	return nil
}

// ext returns a member of the request's nvext.
func (q *Question) ext(field string) (value []byte, found bool) {
	r := q.req.Scan
	if !r.Given(q.req.Body, openai.NVExt) {
		return nil, false
	}
	ext := r.Value(openai.NVExt).Of(q.req.Body)
	s, found := openai.FindValue(ext, field)
	if !found {
		return nil, false
	}
	return s.Of(ext), true
}

// constraintsField is the member of nvext that names the taints that a request requires
// of its workers or prefers. The name is that of Dynamo's requests.
const constraintsField = "routing_constraints"

// readConstraints reads the taints that the request requires or prefers. If requests may
// not set them, such a request is refused: served, it could reach a worker without a
// taint that it requires.
func (rt *Router) readConstraints(q *Question) *Refusal {
	given, found := q.ext(constraintsField)
	if !found {
		return nil
	}
	c, err := picker.ParseConstraints(given)
	switch {
	case err != nil:
		return badMember(openai.Error{
			Kind: openai.WrongType, Field: "nvext." + constraintsField,
			Detail: "required_taints, a list, and preferred_taints, an object of weights, of at most " + strconv.Itoa(picker.MaxConstraints) + " taints each",
		})
	case !c.None() && !rt.cfg.Overrides:
		return badMember(openai.Error{Kind: openai.ForbiddenField, Field: "nvext." + constraintsField})
	}
	q.constraints = c
	q.missing = rt.taints.known(q.world, &q.constraints)
	return nil
}

// bound returns the constraints of one pick: those of the request, and for decode also
// the domain that the KV of its prefill worker is not to leave. The result may be c or
// the question's own constraints; nil means that there are none.
func (q *Question) bound(c *picker.Constraints, role worker.Role, prefill worker.ID) *picker.Constraints {
	var k worker.KVTransfer
	if w := q.world.Worker(prefill); w != nil && role == worker.Decode {
		k = w.KVTransfer
	}
	if k.Domain == "" {
		if q.constraints.None() {
			return nil
		}
		return &q.constraints
	}
	c.Copy(&q.constraints)
	if taint := q.world.TransferTaint(prefill); k.Enforcement == worker.Preferred {
		c.Prefer(taint, k.Weight)
	} else {
		c.Require(taint)
	}
	return c
}

// reach limits a prefill pick to the workers whose KV may go to the decode worker that
// the request names. If there are none it limits nothing: the decode pick then fails,
// with the reason.
func (q *Question) reach(r *load.Request, decode *worker.Worker) {
	may, n := picker.NewBits(len(r.Ranks)), 0
	for i, rank := range r.Ranks {
		w := q.world.Worker(rank.ID)
		free := w == nil || w.KVTransfer.Domain == "" || w.KVTransfer.Enforcement == worker.Preferred
		if (free || decode.HasTaint(q.world.TransferTaint(rank.ID))) && (r.Within == nil || r.Within.Has(i)) {
			may.Set(i)
			n++
		}
	}
	if n > 0 {
		r.Within = may
	}
}
