package extproc

import (
	"errors"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/prefill/handoff"
)

// legAnswer is what came of a leg that the plugin sent itself.
type legAnswer struct {
	status     int    // 0: no answer
	localReply string // Envoy's response flags, where Envoy itself answered
	retryAfter string // the worker's
	body       []byte
	err        error // no whole answer
	sent       bool  // somebody may have seen the request
	canceled   bool  // by us
	odd        bool  // its worker refuses more than its pool
	spent      bool  // nobody reads the request's body any more

	// Set by the machine.
	read      bool
	result    handoff.Result
	malformed error
}

// What may be wrong with the answer of a leg of our own, of which the machine speaks.
var (
	errLongAnswer = errors.New("the answer is longer than what is read of one")
	errExpired    = errors.New("the leg has not ended in its time")
)

// good reports whether a worker has answered a whole 2xx.
func (a *legAnswer) good() bool {
	return a.err == nil && !a.canceled && a.localReply == "" && a.status >= 200 && a.status < 300
}

// taken reports whether a collecting leg that ended so may have been seen by a
// decode worker, whatever it says.
func (a *legAnswer) taken() bool {
	return a.sent && (a.localReply == "" || reached(a.localReply))
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
func (h *handover) readAnswer(a *legAnswer, k handoff.Kind) {
	if !a.read && a.good() {
		a.read = true
		a.result, a.malformed = handoff.ReadAnswer(k, a.body, h.alone)
	}
}

// judge turns an answer into the leg's end and what the hand-off says.
func (h *handover) judge(a *legAnswer, p *plan) (legReport, handoff.Result) {
	fail := func(r blame.Sight) (legReport, handoff.Result) {
		return legReport{state: legFailed, reason: r, status: a.status}, handoff.Result{}
	}
	switch {
	case a.canceled:
		return fail(blame.Aborted)
	case a.localReply != "":
		return fail(localSight(a.localReply))
	case a.status == 0 && errors.Is(a.err, errExpired):
		return fail(blame.TimedOut)
	case a.status == 0:
		return fail(blame.NotSent)
	case errors.Is(a.err, errLongAnswer) && a.status < 300:
		return fail(blame.TooLong)
	case a.err != nil && !errors.Is(a.err, errLongAnswer):
		return fail(blame.BrokeOff)
	}
	if s := sightOfStatus(a.status); s != blame.Served {
		r, _ := fail(s)
		r.retryAfter, r.odd = a.retryAfter, a.odd
		if s == blame.Rejected {
			r.answer = a.body
		}
		return r, handoff.Result{}
	}
	if len(a.body) == 0 {
		return fail(blame.Empty)
	}
	h.readAnswer(a, p.kind)
	switch {
	case a.malformed != nil:
		return fail(blame.Unreadable)
	case a.result.Verdict == handoff.Failed:
		r, _ := fail(blame.Failing)
		return r, a.result // it may hold KV all the same
	case a.result.Verdict == handoff.Missing && !h.alone && !p.decodeAlone:
		return fail(blame.NoHandoff)
	}
	return legReport{state: legWell, status: a.status}, a.result
}

// collect returns the decode for one token whose answer nobody gets, which takes and frees
// KV that no decode has been told of (docs/behaviour.md#collected); false: there is none
// to take. well says that prefill was.
func (h *handover) collect(q *request, p *plan, well bool) (effect, bool) {
	if h.kv != kvOurs {
		return effect{}, false
	}
	e := effect{op: opCollect, path: q.path}
	switch {
	case p.kind == handoff.Mooncake && well:
		e.path = openai.Completions
		e.body = handoff.AppendMooncakeCollect(nil, p.model, p.bootstrap, p.prefill.DPRank, p.room)
	case p.kind != handoff.Mooncake && q.scan != nil:
		e.body = handoff.AppendCollect(nil, q.body, q.scan, p.kind, h.answer, h.result)
	default:
		return effect{}, false
	}
	h.kv = kvTaking
	return e, true
}
