package extproc

import "github.com/seed-60ae5743/baton/internal/leg"

// This file counts the bytes of bodies: see docs/decisions/0012-memory.md.

// Bodies returns how many bytes of bodies are in flight, and how many may be before
// requests are refused.
func (srv *Server) Bodies() (used, limit int64) { return srv.bodies.Used(), srv.bodies.Limit() }

// BodiesTight reports whether requests with a large body may be refused now.
func (srv *Server) BodiesTight() bool { return srv.bodies.Tight() }

// unseen is the part of the budget that a body of unknown size counts for where Envoy
// keeps it until it is whole. It may be the largest that there may be, but were it counted
// as that, a dozen at once would leave no room.
const unseen = 256

// admit counts a request's body when its headers come, and reports whether there is room.
func (s *mainStream) admit(ev *notice) bool {
	b, most := s.srv.bodies, int64(s.srv.cfg.MaxBodyBytes)
	length := ev.Headers.Length
	switch {
	case ev.EndOfStream, length.N > most: // there is none, or it is refused for that
		return true
	case length.Said:
		return s.body.Admit(b, length.N)
	case ev.FullDuplex: // it counts as it comes
		return true
	default:
		return s.body.AdmitUnseen(b, min(most, b.Limit()/unseen))
	}
}

// grow counts what has come of a request's body, n bytes, and reports whether there is
// room. A fresh attempt's has: Envoy holds it already.
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
	case whole: // what it is, and not what it might have been
		s.body.Set(b, n)
	}
	return true
}

// hold counts a request's body, and says on the event if it has no room. What Envoy holds
// of an earlier attempt has room already.
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

// let gives back what the attempt's bodies counted for, once its answer has ended.
func (s *mainStream) let() {
	if s.m.Over() {
		s.own.Set(s.srv.bodies, 0)
	}
	if s.m.AnswerOver() {
		s.body.Set(s.srv.bodies, 0)
	}
}

// count counts the body of a mirrored leg, which is never refused: its request has been
// let in.
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
