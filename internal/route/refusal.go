package route

import (
	"errors"
	"fmt"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/internal/engine/handoff"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/pin"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Reason says why no worker serves a request. Metrics and error.code use these words; the
// caller writes the rest of what a client reads.
type Reason string

// The reasons. Each comment names the fields of the Refusal that are set with the reason.
const (
	NotReady     Reason = "not_ready"               // no worker set is known yet
	UnknownModel Reason = "model_not_found"         // Model
	NoResponse   Reason = "response_not_found"      // a response is continued or asked for which no worker keeps
	NoWorker     Reason = "no_worker"               // the model's workers have left and may come back, or there are workers whose models are not known yet
	Pending      Reason = "prefill_not_ready"       // prefill workers are known, and not ready
	NoPrefill    Reason = "no_prefill_worker"       // Overloaded
	NoDecode     Reason = "no_decode_worker"        // Overloaded
	NoAggregated Reason = "no_aggregated_worker"    // Overloaded
	NeedsAlone   Reason = "needs_aggregated_worker" // Path: only one worker alone can serve it, and none that could was known lately, or none may
	UnknownPath  Reason = "unknown_path"            // Path: the same, and no engine is known to serve it
	NoCommon     Reason = "no_common_handoff"       // Workers
	SidesDiffer  Reason = "sides_differ"            // workers are there, and those of the two roles count the tokens of a prompt differently
	PrefillGone  Reason = "prefill_gone"            // the model's prefill workers have left, and no worker can serve alone
	NoListener   Reason = "no_prefill_listener"     // the engine's hand-off needs the prefill listener
	NoHandoff    Reason = "not_disaggregable"       // Obstacle, By
	Saturated    Reason = "prefill_saturated"       // Queue
	NoTaint      Reason = "no_worker_with_taint"    // Taint, Role
	Outside      Reason = "no_endpoint_in_subset"   // the subset that the data plane allows has no worker of the role
	Enforced     Reason = "disaggregation_enforced" // one worker could serve, and may not
	NamedLeft    Reason = "worker_gone"             // Role, Worker: it has left since it was looked up
	BadName      Reason = "invalid_routing"         // Pin: what is wrong with the worker's name; its Kind has a word of its own
	BadBody      Reason = "invalid_body"            // Body: the faulty member of the body; its Kind has a word of its own
)

// Refusal says why no worker serves a request. The Reason says which of the other fields
// are set.
type Refusal struct {
	Reason Reason

	Model      string                 // that the request names
	Path       string                 // of the request, if Baton does not read it
	Role       worker.Role            // for which no worker was found
	Worker     worker.ID              // that the request names
	Taint      string                 // that is required, as the request or a topology names it
	Queue      *picker.SaturatedError // how full the queue is
	Overloaded bool                   // all workers that could serve are over a threshold
	Returning  bool                   // one that is set aside or doubted may serve soon, or a pair be there: waiting may help
	Workers    string                 // what the prefill and the decode workers are, of which no two are a pair
	Obstacle   handoff.Obstacle       // what of the request cannot be split; none: the model is never split
	By         string                 // the header or member that names a prefill worker which would not be used; empty: none does
	Pin        *pin.Error
	Body       *openai.Error
}

func refuse(r Reason) *Refusal { return &Refusal{Reason: r} }

// noneAlone is the refusal of a request that only one worker alone could serve, if the pool
// has none. Waiting helps only if such a worker is known, or was lately, and may serve.
func (q *Question) noneAlone(may bool) *Refusal {
	switch {
	case may && q.world.ServedAlone(q.pool.Key, q.now):
		return refuse(NoAggregated)
	case q.req.Passing != "" && !engines.Served.Serves(q.req.Passing):
		return &Refusal{Reason: UnknownPath, Path: q.req.Passing}
	default:
		return &Refusal{Reason: NeedsAlone, Path: q.req.Passing}
	}
}

// refuse is the refusal of a request whose pool cannot serve for the reason.
func (q *Question) refuse(why Reason) *Refusal {
	f := refuse(why)
	if why == NoCommon {
		f.Workers = activation.NoPair(q.pool)
	}
	f.Returning = q.awaitsPair()
	return f
}

// awaitsPair reports whether waiting may bring the pool a pair that could serve the request:
// while workers are replaced, those of one role may all be new before any of the other is. A
// question does not wait, and no new worker is one that is named, or in the data plane's subset.
func (q *Question) awaitsPair() bool {
	if q.wish.query || q.wish.names() || q.req.Subset != nil {
		return false
	}
	p := q.pool
	return len(p.Prefill) > 0 && len(p.Decode) > 0 && len(p.Paired) == 0 && q.world.ServedApart(p.Key, q.now)
}

func badMember(e openai.Error) *Refusal { return &Refusal{Reason: BadBody, Body: &e} }

// nobody is the refusal after a pick for the role has found no rank. If the request names
// the worker, the refusal says that this worker has left.
func (q *Question) nobody(role worker.Role, err error) *Refusal {
	if errors.Is(err, errOutside) {
		return refuse(Outside)
	}
	var taint *picker.TaintError
	lacks := errors.As(err, &taint)
	if at := q.placeOf(role); at != nil && errors.Is(err, picker.ErrNoCandidate) && !lacks {
		return &Refusal{Reason: NamedLeft, Role: role, Worker: at.Worker.ID}
	}
	var full *picker.SaturatedError
	var over *picker.OverloadedError
	switch {
	case lacks:
		return &Refusal{Reason: NoTaint, Role: role, Taint: taint.Taint}
	case errors.As(err, &full):
		return &Refusal{Reason: Saturated, Queue: full}
	default:
		return &Refusal{Reason: lackOf(role), Overloaded: errors.As(err, &over)}
	}
}

// nobody is the refusal after a pick for the role has found no rank.
func (d *decider) nobody(role worker.Role, err error) *Refusal {
	f := d.q.nobody(role, err)
	f.Returning = f.Reason == lackOf(role) && !f.Overloaded && d.q.req.Subset == nil &&
		(errors.Is(err, errProbed) || d.cfg.Health.MayReturn(d.q.pool.Key, role))
	return f
}

// errProbed says that each rank that is left has failed the request, and is being probed.
var errProbed = fmt.Errorf("%w: those that are left are being probed", picker.ErrNoCandidate)

// lackOf returns the reason for a pick that found no worker in the role.
func lackOf(role worker.Role) Reason {
	switch role {
	case worker.Prefill:
		return NoPrefill
	case worker.Decode:
		return NoDecode
	default:
		return NoAggregated
	}
}
