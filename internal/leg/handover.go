package leg

import (
	"errors"
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/engine/handoff"
	"github.com/seed-60ae5743/baton/internal/openai"
)

// OwnAnswer is what came of a leg that the plugin itself sent: a prefill leg or a
// collecting one.
type OwnAnswer struct {
	Status     int    // 0: no answer
	LocalReply string // Envoy's response flags, if Envoy itself answered
	RetryAfter string // of the worker's answer
	Location   string // the same
	Body       []byte
	Err        error     // why the answer is not whole; nil: it is
	Why        string    // Err as people who run the router read it; it has nothing of the answer
	Sent       bool      // the request has left the plugin, so somebody may have seen it
	Canceled   bool      // the plugin ended the leg
	Odd        bool      // the worker refuses more than its pool
	Spent      bool      // nothing reads the request's body any more: its buffer is free
	Unread     bool      // the answer is whole, and was not kept: it is too long, or has an encoding
	Made       time.Time // when the worker made the answer ([MadeAt]); zero: not known

	// Set by the machine.
	read      bool
	result    handoff.Result
	malformed error
}

// The errors of a leg of our own that the machine knows.
var (
	ErrLong    = errors.New("the answer is longer than what is read of one")
	ErrExpired = errors.New("the leg has not ended in its time")
)

// dateLate is how far an answer's date may lag behind the answer, beside being cut to the second:
// uvicorn writes it anew once a second, or later if the engine's loop is busy.
const dateLate = 2 * time.Second

// MadeAt returns when a worker made an answer that came at received: its date, if that lies
// between sent, when the request was sent, and received. Else the clocks differ, or the date is
// another's, and it returns received. A date that is a little before sent means sent. What is
// returned is never too late but for the clocks, and is compared by the monotonic clock.
func MadeAt(date string, sent, received time.Time) time.Time {
	at, err := time.Parse(time.RFC1123, date)
	switch {
	case err != nil || at.Before(sent.Truncate(time.Second).Add(-dateLate)) || at.After(received):
		return received
	case at.Before(sent):
		return sent
	}
	return received.Add(at.Sub(received))
}

// good reports whether a worker has answered, with a whole 2xx.
func (a *OwnAnswer) good() bool {
	return a.Err == nil && !a.Canceled && a.LocalReply == "" && a.Status >= 200 && a.Status < 300
}

// ofPlugins is OwnAnswer.LocalReply of a plugin that has not admitted the leg.
const ofPlugins = "-"

// said tells what the leg has met.
func (a *OwnAnswer) said(q *Request) string {
	what := a.Why
	switch {
	case a.LocalReply != "" && a.LocalReply != ofPlugins:
		what = byEnvoy(a.LocalReply)
	case a.Err == nil && q.Body != nil:
		what = openai.Words(a.Body, q.Body)
	case a.Err == nil:
		what = openai.Words(a.Body, q.kept)
	}
	return said(a.Status, q.Headers.Path, what)
}

// Taken reports whether a decode worker may have seen a collecting leg that ended so. It
// does not depend on what the answer says.
func (a *OwnAnswer) Taken() bool {
	return a.Sent && (a.LocalReply == "" || reached(a.LocalReply))
}

// stale ends an attempt whose hand-off had become too old before all of it was sent: decode has not
// got it, and prefill frees the KV.
func stale(a *attempt, now time.Time) {
	if a.phase != mainRouted {
		return
	}
	a.handover.giveUp()
	f := failStale
	if !a.decodeFailed(now, blame.Stale, false, &f) {
		a.reject(&f, false)
	}
}

// handover is the hand-off of one attempt: what prefill was asked for, and who is to take
// the KV that prefill holds.
type handover struct {
	asked  asked
	answer []byte
	result handoff.Result
	kv     kv
	final  string // if prefill's answer is the client's, its content type
}

// asked says what a leg of our own that has not answered was sent to prefill for. The
// request is kept for it.
type asked uint8

const (
	askedNothing  asked = iota // no such leg is on its way
	askedHandOff               // a hand-off for decode
	askedResponse              // the response, whatever it says: decode does not get the request
)

// kv says who is to take the KV that prefill holds.
type kv uint8

const (
	kvNobodys kv = iota // no KV is held, or its engines see to it
	kvOurs              // prefill holds KV, and nobody has taken it
	kvSent              // the same; decode was sent the hand-off, and it is not known whether it has come
	kvTaking            // a collecting leg is to take the KV
)

// unsure reports whether decode was sent the hand-off, and only Envoy's access log can
// tell whether decode has seen it.
func (h *handover) unsure() bool { return h.kv == kvSent }

// held reports whether prefill holds KV that nobody is known to have taken.
func (h *handover) held() bool { return h.kv == kvOurs || h.kv == kvSent }

// owed reports whether prefill may hold KV that is not taken yet: prefill has not
// answered, or the plugin has the hand-off, or the hand-off is on its way.
func (h *handover) owed() bool { return h.asked != askedNothing || h.kv != kvNobodys }

// send notes that the hand-off is sent to decode.
func (h *handover) send() {
	if h.kv == kvOurs {
		h.kv = kvSent
	}
}

// unsent notes that it is known now whether decode has seen the hand-off, and assumes
// that it has not. If it has, the caller calls attempt.taken next.
func (h *handover) unsent() {
	if h.kv == kvSent {
		h.kv = kvOurs
	}
}

// giveUp leaves held KV to the engines.
func (h *handover) giveUp() {
	if h.held() {
		h.kv = kvNobodys
	}
}

// readAnswer reads, once, what a good answer of prefill says of the hand-off.
func (h *handover) readAnswer(a *OwnAnswer, k handoff.Kind) {
	if !a.read && a.good() {
		a.read = true
		a.result, a.malformed = handoff.ReadAnswer(k, a.Body, h.asked == askedResponse)
	}
}

// judge returns the report of a leg that ended with this answer, and what the answer says
// of the hand-off.
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
		r.RetryAfter, r.Location, r.Odd = a.RetryAfter, a.Location, a.Odd
		if s == blame.Rejected || s == blame.Redirected {
			r.Answer, _ = p.Kind.Unquoted(a.Body)
		}
		return r, handoff.Result{}
	}
	if !p.Kind.PrefillFirst() {
		s, read := readBeside(a.Body, a.Unread)
		if s != blame.Served {
			return fail(s)
		}
		r := Report{State: Well, Status: a.Status}
		r.tell(&read, a.Unread)
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
		return r, a.result // a generation that failed may have left KV
	case a.result.Verdict == handoff.Missing && h.asked != askedResponse && !p.DecodeAlone:
		return fail(blame.NoHandoff)
	}
	u := &a.result.Tokens
	return Report{
		State: Well, Status: a.Status, Told: toldOf(u, a.result.Counted, a.result.Choices), Cached: u.Cached, Counted: a.result.Counted && u.HasCached,
	}, a.result
}

// collect returns a collecting leg: a decode for one token whose answer is dropped, which
// takes and frees KV of which no decode knows (docs/behaviour.md#collected). It returns
// false if there is none to take. The flag well says that the prefill leg was well.
func (h *handover) collect(r *Rules, q *Request, p *Plan, well bool) (Effect, bool) {
	if h.kv != kvOurs {
		return Effect{}, false
	}
	e := Effect{Op: OpCollect, Path: q.Path, Until: r.lastMoment(p)}
	switch {
	case p.Kind.Holds() && well:
		e.Path = openai.Completions
		e.Body = p.Kind.Together.Collect(nil, p.Model, p.meeting())
	case !p.Kind.Holds() && q.Scan != nil:
		e.Body = handoff.AppendCollect(nil, q.Body, q.Scan, p.Kind, h.answer, h.result)
	default:
		return Effect{}, false
	}
	h.kv = kvTaking
	return e, true
}
