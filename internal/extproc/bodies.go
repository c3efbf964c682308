package extproc

import "github.com/seed-60ae5743/baton/internal/leg"

// This file counts the bytes of bodies: see docs/decisions/0012-memory.md.

// Usage is what requests take now.
type Usage struct {
	BodyBytes, BodyLimit int64 // of bodies in flight, and above which requests are refused
	Waiting              int64 // requests that wait for a worker to return
	Still                int64 // streamed answers that stand still
}

// Usage returns what requests take now.
func (srv *Server) Usage() Usage {
	return Usage{BodyBytes: srv.bodies.Used(), BodyLimit: srv.bodies.Limit(), Waiting: srv.waiting.requests.Load(), Still: srv.still.Load()}
}

// BodiesTight reports whether requests with a large body may be refused now.
func (srv *Server) BodiesTight() bool { return srv.bodies.Tight() }

// unseen divides the budget: a body of unknown size that Envoy keeps until it is whole counts
// as 1/unseen of the budget. If it counted as the largest body that is allowed, a dozen such
// bodies at once would leave no room.
const unseen = 256

// admit counts a request's body when the request's headers come. It returns false if there
// is no room for the body.
func (s *mainStream) admit(ev *notice) bool {
	b, most := s.srv.bodies, int64(s.srv.cfg.MaxBodyBytes)
	length := ev.Headers.Length
	switch {
	case ev.EndOfStream, length.N > most: // no body, or one that is refused for its size
		return true
	case length.Said:
		return s.body.Admit(b, length.N)
	case ev.FullDuplex: // grow counts the pieces as they come
		return true
	default:
		return s.body.AdmitUnseen(b, min(most, b.Limit()/unseen))
	}
}

// grow counts the n bytes that have come of a request's body. It returns false if there is
// no room for them. For a fresh attempt there always is, since Envoy holds the body already.
func (s *mainStream) grow(n int64, whole bool) bool {
	b, most := s.srv.bodies, int64(s.srv.cfg.MaxBodyBytes)
	if whole { // no more will come
		most = n
	}
	switch {
	case s.letIn:
		s.body.Set(b, max(n, s.body.Size()))
		return true
	case !s.body.Grow(b, n, most):
		return false
	case whole: // the size that the body has, in place of an estimate
		s.body.Set(b, n)
	}
	return true
}

// hold counts the bodies that the event brings, and sets ev.Full if there is no room for a
// request's body. The body of a fresh attempt always has room, since Envoy holds it already.
func (s *mainStream) hold(ev *notice) {
	switch {
	case ev.Kind == leg.EventRequestHeaders && s.m.Awaits(leg.EventRequestHeaders):
		if !s.filter.Plain() && ev.Headers.Attempt() > 1 {
			s.letIn = true
			s.body.Set(s.srv.bodies, ev.Headers.Length.N)
			return
		}
		ev.Full = !s.admit(ev)
	case ev.Kind == leg.EventRequestBody && s.m.Awaits(leg.EventRequestBody):
		ev.Full = !s.grow(int64(s.m.Request().Gathered()+len(ev.Body)), ev.EndOfStream || !s.fullDuplex)
	case ev.Kind == leg.EventPrefilled:
		s.own.Set(s.srv.bodies, int64(len(ev.Answer.Body)))
	case ev.Kind == leg.EventCollected:
		s.own.Set(s.srv.bodies, 0)
	}
}

// let gives back the room of the request's body once the answer is over, and that of the
// bodies of the plugin's own legs once the attempt is over.
func (s *mainStream) let() {
	if s.m.Over() {
		s.own.Set(s.srv.bodies, 0)
	}
	if s.m.AnswerOver() {
		s.body.Set(s.srv.bodies, 0)
	}
}

// count counts the body of a mirrored leg. The body is never refused, since the request of
// the leg was let in.
func (s *prefillStream) count(ev *notice) {
	switch ev.Kind {
	case leg.EventRequestBody:
		if s.m.Awaits(leg.EventRequestBody) {
			s.body.Set(s.srv.bodies, int64(s.m.Gathered()+len(ev.Body)))
		}
	case leg.EventClosed:
		s.body.Set(s.srv.bodies, 0)
	}
}
