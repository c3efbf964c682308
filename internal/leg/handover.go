package leg

import (
	"errors"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/prefill/handoff"
)

// OwnAnswer is what came of a leg that the plugin sent itself.
type OwnAnswer struct {
	Status     int    // 0: no answer
	LocalReply string // Envoy's response flags, where Envoy itself answered
	RetryAfter string // the worker's
	Body       []byte
	Err        error // no whole answer
	Sent       bool  // somebody may have seen the request
	Canceled   bool  // by us
	Odd        bool  // its worker refuses more than its pool
	Spent      bool  // nobody reads the request's body any more

	// Set by the machine.
	read      bool
	result    handoff.Result
	malformed error
}

// What may be wrong with the answer of a leg of our own, of which the machine speaks.
var (
	ErrLong    = errors.New("the answer is longer than what is read of one")
	ErrExpired = errors.New("the leg has not ended in its time")
)

// good reports whether a worker has answered a whole 2xx.
func (a *OwnAnswer) good() bool {
	return a.Err == nil && !a.Canceled && a.LocalReply == "" && a.Status >= 200 && a.Status < 300
}

// Taken reports whether a collecting leg that ended so may have been seen by a
// decode worker, whatever it says.
func (a *OwnAnswer) Taken() bool {
	return a.Sent && (a.LocalReply == "" || reached(a.LocalReply))
}

// handover is the hand-off of one attempt: what prefill was asked for, and whose the KV
// is that it holds.
type handover struct {
	asked  bool // a leg of our own has not answered; the request is kept
	alone  bool // prefill's answer is the response, whatever it says
	answer []byte
	result handoff.Result
	kv     kv
}

// kv says whose what prefill holds is.
type kv uint8

const (
	kvNobodys kv = iota // none is held, or it is an engine's business
	kvOurs              // prefill holds it, and nobody has taken it
	kvSent              // … decode was sent it, and nobody has said whether it came
	kvTaking            // a collecting leg is on its way
)

// unsure reports whether only Envoy's access log can tell if decode has seen
// the hand-off.
func (h *handover) unsure() bool { return h.kv == kvSent }

// held reports whether prefill holds KV that nobody is known to have taken.
func (h *handover) held() bool { return h.kv == kvOurs || h.kv == kvSent }

// owed reports whether KV may be held that only we would have taken: prefill has not
// answered, or its hand-off is in our hand or on its way.
func (h *handover) owed() bool { return h.asked || h.kv != kvNobodys }

// send says that decode is sent the hand-off.
func (h *handover) send() {
	if h.kv == kvOurs {
		h.kv = kvSent
	}
}

// unsent says that it is known whether decode has seen the hand-off: it has not, unless
// it is given up, too.
func (h *handover) unsent() {
	if h.kv == kvSent {
		h.kv = kvOurs
	}
}

// giveUp leaves what is held to its engine.
func (h *handover) giveUp() {
	if h.held() {
		h.kv = kvNobodys
	}
}

// readAnswer reads what a good answer of prefill says, once.
func (h *handover) readAnswer(a *OwnAnswer, k handoff.Kind) {
	if !a.read && a.good() {
		a.read = true
		a.result, a.malformed = handoff.ReadAnswer(k, a.Body, h.alone)
	}
}

// judge turns an answer into the leg's end and what the hand-off says.
func (h *handover) judge(a *OwnAnswer, p *Plan) (Report, handoff.Result) {
	fail := func(r blame.Sight) (Report, handoff.Result) {
		return Report{State: Failed, Reason: r, Status: a.Status}, handoff.Result{}
	}
	switch {
	case a.Canceled:
		return fail(blame.Aborted)
	case a.LocalReply != "":
		return fail(localSight(a.LocalReply))
	case a.Status == 0 && errors.Is(a.Err, ErrExpired):
		return fail(blame.TimedOut)
	case a.Status == 0:
		return fail(blame.NotSent)
	case errors.Is(a.Err, ErrLong) && a.Status < 300:
		return fail(blame.TooLong)
	case a.Err != nil && !errors.Is(a.Err, ErrLong):
		return fail(blame.BrokeOff)
	}
	if s := SightOfStatus(a.Status); s != blame.Served {
		r, _ := fail(s)
		r.RetryAfter, r.Odd = a.RetryAfter, a.Odd
		if s == blame.Rejected {
			r.Answer = a.Body
		}
		return r, handoff.Result{}
	}
	if len(a.Body) == 0 {
		return fail(blame.Empty)
	}
	h.readAnswer(a, p.Kind)
	switch {
	case a.malformed != nil:
		return fail(blame.Unreadable)
	case a.result.Verdict == handoff.Failed:
		r, _ := fail(blame.Failing)
		return r, a.result // it may hold KV all the same
	case a.result.Verdict == handoff.Missing && !h.alone && !p.DecodeAlone:
		return fail(blame.NoHandoff)
	}
	return Report{State: Well, Status: a.Status}, a.result
}

// collect returns the decode for one token whose answer nobody gets, which takes and frees
// KV that no decode has been told of (docs/behaviour.md#collected); false: there is none
// to take. well says that prefill was.
func (h *handover) collect(q *Request, p *Plan, well bool) (Effect, bool) {
	if h.kv != kvOurs {
		return Effect{}, false
	}
	e := Effect{Op: OpCollect, Path: q.Path}
	switch {
	case p.Kind == handoff.Mooncake && well:
		e.Path = openai.Completions
		e.Body = handoff.AppendMooncakeCollect(nil, p.Model, p.Bootstrap, p.Prefill.DPRank, p.Room)
	case p.Kind != handoff.Mooncake && q.Scan != nil:
		e.Body = handoff.AppendCollect(nil, q.Body, q.Scan, p.Kind, h.answer, h.result)
	default:
		return Effect{}, false
	}
	h.kv = kvTaking
	return e, true
}
