package extproc

import "strconv"

// This file counts the bytes of bodies: see docs/decisions/0012-memory.md.

// Bodies returns how many bytes of bodies are in flight, and how many may be before
// requests are refused.
func (srv *Server) Bodies() (used, limit int64) { return srv.bodies.Used(), srv.bodies.Limit() }

// unsized is the part of the budget that a body of unknown size counts for while Envoy
// keeps it. It may be the largest that there may be, but were it counted as that, a dozen
// small requests at once without a content-length would leave no room; what they may all
// come to in Envoy before they are whole is its overload manager's to bound.
const unsized = 256

// weigh is what a request's body counts for when its headers come. One that comes in
// pieces is counted as it comes.
func (srv *Server) weigh(ev *event) int64 {
	if ev.endOfStream {
		return 0
	}
	n, err := strconv.ParseInt(ev.headers.contentLength, 10, 64)
	switch most := int64(srv.cfg.MaxBodyBytes); {
	case err == nil && n > most: // refused for that
		return 0
	case err == nil:
		return max(n, 0)
	case ev.fullDuplex:
		return 0
	default:
		return min(most, srv.bodies.Limit()/unsized)
	}
}

// hold counts a request's body, and says on the event if it has no room. What Envoy holds
// of an earlier attempt has room already.
func (s *mainStream) hold(ev *event) {
	b := s.srv.bodies
	grow := func(n int64) {
		if s.m.way.plain || s.m.attempt <= 1 {
			ev.full = !s.body.Grow(b, n)
		} else {
			s.body.Set(b, max(n, s.body.Size()))
		}
	}
	switch {
	case ev.kind == evRequestHeaders && s.m.phase == mainAwaitHeaders:
		if again, _ := strconv.Atoi(ev.headers.attemptCount); !s.m.way.plain && again > 1 {
			s.body.Set(b, s.srv.weigh(ev))
			return
		}
		grow(s.srv.weigh(ev))
	case ev.kind == evRequestBody && s.m.phase == mainAwaitBody:
		n := int64(s.m.pieces.size + len(ev.body))
		if whole := ev.endOfStream || !s.fullDuplex; whole && n < s.body.Size() {
			s.body.Set(b, n) // what it is, and not what it might have been
		}
		grow(n)
	case ev.kind == evPrefilled:
		s.own.Set(b, int64(len(ev.answer.body)))
	case ev.kind == evCollected:
		s.own.Set(b, 0)
	}
}

// let gives back what the attempt's bodies counted for, once its answer has ended.
func (s *mainStream) let() {
	switch s.m.phase {
	case mainDone:
		s.own.Set(s.srv.bodies, 0)
		s.body.Set(s.srv.bodies, 0)
	case mainRejected, mainEnded, mainLingering:
		s.body.Set(s.srv.bodies, 0)
	}
}

// count counts the body of a mirrored leg, which is never refused: its request has been
// let in.
func (s *prefillStream) count(ev *event) {
	switch ev.kind {
	case evRequestBody:
		if s.m.phase == prefillAwaitBody {
			s.body.Set(s.srv.bodies, int64(s.m.pieces.size+len(ev.body)))
		}
	case evClosed:
		s.body.Set(s.srv.bodies, 0)
	}
}
