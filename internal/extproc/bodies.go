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

// hold counts the bodies that the event brings, and sets ev.Full if there is no room for a
// request's body.
func (s *mainStream) hold(ev *notice) {
	most := int64(s.srv.cfg.MaxBodyBytes)
	switch {
	case ev.Kind == leg.EventRequestHeaders && s.m.Awaits(leg.EventRequestHeaders):
		fresh := !s.filter.Plain() && ev.Headers.Attempt() > 1
		ev.Full = !s.asked.admit(s.srv.bodies, ev, fresh, most)
	case ev.Kind == leg.EventRequestBody && s.m.Awaits(leg.EventRequestBody):
		ev.Full = !s.asked.grow(s.srv.bodies, int64(s.m.Request().Gathered()+len(ev.Body)), most, ev.EndOfStream || !s.fullDuplex)
	case ev.Kind == leg.EventPrefilled:
		s.far.body.Set(s.srv.bodies, int64(len(ev.Answer.Body)))
	case ev.Kind == leg.EventCollected:
		s.far.body.Set(s.srv.bodies, 0)
	}
}

// let gives back the room of the request's body once the answer is over, and that of the
// bodies of the plugin's own legs once the attempt is over.
func (s *mainStream) let() {
	if s.m.Over() {
		s.far.body.Set(s.srv.bodies, 0)
	}
	if s.m.AnswerOver() {
		s.asked.body.Set(s.srv.bodies, 0)
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
