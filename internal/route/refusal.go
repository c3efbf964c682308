package route

import (
	"errors"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/pin"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Reason says why nobody serves a request. The words are those of metrics and of
// error.code; what a client reads besides is its caller's to write.
type Reason string

// The reasons. Behind each stand the facts of a Refusal that go with it.
const (
	NotReady     Reason = "not_ready"               // no set of workers is known yet
	UnknownModel Reason = "model_not_found"         // Model
	NoWorker     Reason = "no_worker"               // the model is away for a while
	Pending      Reason = "prefill_not_ready"       // prefill workers are there, and not ready
	NoPrefill    Reason = "no_prefill_worker"       // Overloaded
	NoDecode     Reason = "no_decode_worker"        // Overloaded
	NoAggregated Reason = "no_aggregated_worker"    // Overloaded
	NoCommon     Reason = "no_common_handoff"       // prefill and decode are of other engines
	PrefillGone  Reason = "prefill_gone"            // and nobody can do without
	NoListener   Reason = "no_prefill_listener"     // the engine's hand-off needs one
	NoHandoff    Reason = "not_disaggregable"       // Obstacle, By
	Saturated    Reason = "prefill_saturated"       // Queue
	NoTaint      Reason = "no_worker_with_taint"    // Taint, Role
	Outside      Reason = "no_endpoint_in_subset"   // of whom the data plane allows
	Enforced     Reason = "disaggregation_enforced" // one worker could serve, and may not
	NamedLeft    Reason = "worker_gone"             // Role, Worker: since it was looked up
	BadName      Reason = "invalid_routing"         // Pin: what names a worker; its Kind has a word of its own
	BadBody      Reason = "invalid_body"            // Body: a member of the body; its Kind has a word of its own
)

// Refusal is why nobody serves a request, with what is known of it. Which facts are
// there, its Reason says.
type Refusal struct {
	Reason Reason

	Model      string                 // that was asked for
	Role       worker.Role            // that nobody was found for
	Worker     worker.ID              // that is named
	Taint      string                 // that is required, as the request or a topology names it
	Queue      *picker.SaturatedError // how full it is
	Overloaded bool                   // all who could serve are over a threshold
	Obstacle   string                 // what of the request cannot be split; empty: its model's never are
	By         string                 // who names a prefill worker that would not be used; empty: nobody
	Pin        *pin.Error
	Body       *openai.Error
}

func refuse(r Reason) *Refusal { return &Refusal{Reason: r} }

func badMember(e openai.Error) *Refusal { return &Refusal{Reason: BadBody, Body: &e} }

// nobody is the refusal of a pick for the role that found nobody; of a worker that was
// named, that it has left since.
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

// lackOf is the reason where nobody serves in the role.
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
