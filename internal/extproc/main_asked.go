package extproc

import (
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"

	"github.com/seed-60ae5743/baton/internal/budget"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/route"
	"github.com/seed-60ae5743/baton/internal/subset"
	"github.com/seed-60ae5743/baton/internal/telemetry"
)

// asked is what a main leg knows of its request beside the machine, and what the request takes
// until it is over: the room of its body, its name, its turn. Its fields are owned by the goroutine
// that handles an event. A decision reads those that no longer change once the request has come.
type asked struct {
	began  time.Time
	span   trace.Span
	subset *subset.Set   // endpoints that the data plane allows; nil: all
	named  bool          // the attempt is noted in unrouted
	ahead  time.Duration // our clock less that of the proxy, as the request came; see receipt
	body   budget.Share  // of bodies in flight
	letIn  bool          // the body had room in an earlier attempt
	shape  shape         // zero: not known, or none
	tries  bool          // the request is let through to try its shape, which is held back

	waits atomic.Int64 // the request's part in waiting.bytes; also written by a decision
}

// begin takes the request's headers, and adds to the event what the machine needs beside them.
func (q *asked) begin(s *mainStream, ev *notice) {
	q.began = time.Now()
	s.srv.said.sent(ev.Headers.Unheeded)
	q.subset = s.srv.subsetOf(ev, s.filter.Gateway())
	ev.Received, q.ahead = s.srv.receipt(s.grpc.Context(), ev.Headers, !s.filter.Gateway(), q.began)
	if ev.Headers.RequestID == "" {
		ev.Headers.RequestID, ev.Unnamed = uuid.NewString(), true
	}
	if s.srv.cfg.Tracer.Enabled() {
		parent := telemetry.Extract(ev.Headers.Traceparent, ev.Headers.Tracestate)
		q.span = s.srv.cfg.Tracer.Start(parent, telemetry.SpanRequest, q.began)
	}
}

// beginAt sets when the request began: of a stream that begins with an answer, and for the record
// of the one worker that serves in place of a pair.
func (q *asked) beginAt(now time.Time) { q.began = now }

// comeByName notes the attempt's name in unrouted, so that an entry of the access log
// without the attempt's number finds the attempt. Only hand-offs through the plugin need
// this, so without a legClient nothing is noted.
func (q *asked) comeByName(s *mainStream, now time.Time) {
	if s.srv.legClient == nil || q.named || s.m.Over() {
		return
	}
	q.named = true
	s.srv.unrouted.come(s, nameOfAttempt(s.m.Request()), now)
}

// leaveName removes the attempt's name from unrouted. If decode has answered, the attempt
// was routed, so its entry in the access log has the attempt's number.
func (q *asked) leaveName(s *mainStream, now time.Time) {
	if q.named {
		q.named = false
		s.srv.unrouted.leave(nameOfAttempt(s.m.Request()), !s.m.Answer().HeadCame(), now)
	}
}

// nameOfAttempt returns the name that Envoy's access log gives to the attempt if it was not
// routed.
func nameOfAttempt(q *leg.Request) attemptName {
	return nameOf(q.Headers.RequestID, q.Attempt)
}

// admit counts the request's body when the request's headers come. It returns false if there
// is no room for the body. That of a fresh attempt always has room, since Envoy holds it already.
func (q *asked) admit(b *budget.Budget, ev *notice, fresh bool, most int64) bool {
	length := ev.Headers.Length
	switch {
	case fresh:
		q.letIn = true
		q.body.Set(b, length.N)
		return true
	case ev.EndOfStream, length.N > most: // no body, or one that is refused for its size
		return true
	case length.Said:
		return q.body.Admit(b, length.N)
	case ev.FullDuplex: // grow counts the pieces as they come
		return true
	default:
		return q.body.AdmitUnseen(b, min(most, b.Limit()/unseen))
	}
}

// grow counts the n bytes that have come of a request's body. It returns false if there is
// no room for them. For a fresh attempt there always is, since Envoy holds the body already.
func (q *asked) grow(b *budget.Budget, n, most int64, whole bool) bool {
	if whole { // no more will come
		most = n
	}
	switch {
	case q.letIn:
		q.body.Set(b, max(n, q.body.Size()))
		return true
	case !q.body.Grow(b, n, most):
		return false
	case whole: // the size that the body has, in place of an estimate
		q.body.Set(b, n)
	}
	return true
}

// wait counts the request, whose body has so many bytes, among those that wait for a worker to
// return, until goOn. It returns false if there is no room.
func (q *asked) wait(w *waiting, bytes, most int64) bool {
	if q.waits.Load() > 0 {
		return true
	}
	n := bytes + 1
	if !w.add(n, most) {
		return false
	}
	q.waits.Store(n)
	return true
}

// goOn ends the wait of a request that waits no longer.
func (q *asked) goOn(w *waiting) {
	if n := q.waits.Swap(0); n > 0 {
		w.remove(n)
	}
}

// heldBack notes the shape of the request, and returns why it is held back, or nil.
func (q *asked) heldBack(of *route.Question, l *shapes, now time.Time) (why *leg.Failure) {
	if of == nil || of.Asks() || q.tries {
		return nil
	}
	q.shape = shapeOf(of.Shape())
	if q.shape == (shape{}) {
		return nil
	}
	why, q.tries = l.ask(q.shape, now)
	return why
}

// tried ends the trial of a request that was let through, and returns whether there was one.
func (q *asked) tried() bool {
	was := q.tries
	q.tries = false
	return was
}
