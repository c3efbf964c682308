package extproc

import (
	"context"
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/extproc/wire"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/prefill"
)

// firstStream reads the first events of decode's answer, for the main leg that is
// before it on the answer's way to the client: see doc.go. What it is of, the token
// says.
type firstStream struct {
	stream
	token  string
	leg    prefill.Leg
	owner  *mainStream // nil: at another replica
	events openai.FirstEvents
	phase  firstPhase
}

type firstPhase uint8

const (
	firstAwaitHeaders firstPhase = iota
	firstReading
	firstTold // the owner says whether the answer goes on
	firstLeft
)

func (s *firstStream) handle(ev *notice) {
	defer func() {
		if r := recover(); r != nil { // the answer is well: let it pass
			s.broken = true
			s.srv.panicked("first_token", r)
			s.leave()
		}
	}()
	switch {
	case s.broken:
	case ev.Kind == leg.EventClosed:
		s.deaf, s.phase = true, firstLeft
	case ev.Kind == leg.EventPass:
		s.leave()
	case ev.Kind == leg.EventResponseHeaders && s.phase == firstAwaitHeaders:
		s.begin(ev)
	case ev.Kind == leg.EventResponseBody:
		s.piece(ev.Body, ev.EndOfStream)
		s.srv.rules.Buffers.Return(ev.Body)
	case ev.Kind == leg.EventResponseTrailers:
		s.piece(nil, true)
	default: // Envoy was told to send nothing else
		s.leave()
	}
}

// leave lets the answer pass, what Envoy holds of it included.
func (s *firstStream) leave() {
	s.phase, s.deaf = firstLeft, true
	s.finishStream()
}

func (s *firstStream) begin(ev *notice) {
	sealed, err := s.srv.sealer.Open(s.token)
	if err != nil || sealed.Kind != prefill.AnswerLeg || ev.Headers.LocalReply != "" ||
		leg.SightOfStatus(leg.StatusOf(ev.Headers.Status)) != blame.Served || !leg.IsEventStream(ev.Headers.ContentType) {
		s.leave()
		return
	}
	s.leg, s.phase = sealed, firstReading
	if sealed.Owner == s.srv.owner {
		s.owner = s.srv.attempts.find(sealed.Nonce)
	}
	if s.owner != nil {
		s.owner.looked.Store(true)
	}
	if s.owner == nil && (sealed.Owner == s.srv.owner || !s.srv.peers.reachable(sealed.Owner)) {
		s.leave() // nobody would make another attempt
		return
	}
	if ev.EndOfStream {
		s.piece(nil, true)
		return
	}
	s.wait()
}

// wait has Envoy hold what has come for as long as the request may take: each message
// has a time of its own, in which a plugin that hangs is noticed.
func (s *firstStream) wait() {
	s.send(wire.Extend(leg.Extension(time.Until(s.leg.Deadline))))
}

// unread says once that nobody asks us to read the first events of answers: an Envoy
// whose configuration is older, or not ours. Of several replicas another may read them.
func (srv *Server) unread(head *wire.Headers) {
	if !srv.rules.Replicas && head.LocalReply == "" && leg.StatusOf(head.Status)/100 == 2 && leg.IsEventStream(head.ContentType) {
		srv.saidUnread.Do(func() {
			srv.log.Warn("Envoy's main leg has no filter baton.first_token, or not on the route of x-baton-first-token: " +
				"an error in a streamed answer is not seen (docs/decisions/0011-first-token.md); answer.first_token: off ends this line")
		})
	}
}

// piece takes a part of the answer. Envoy keeps those that are not answered, and sends
// them on when the stream ends.
func (s *firstStream) piece(body []byte, last bool) {
	if s.phase != firstReading {
		return
	}
	switch found := s.events.Read(body, last); found {
	case openai.FoundNothing:
		s.wait()
	case openai.FoundError, openai.FoundEnd:
		s.srv.cfg.Telemetry.FirstEvents(found.String())
		s.phase = firstTold
		s.tell(leg.SightOfEvents(found, s.events.Status()))
	default:
		s.srv.cfg.Telemetry.FirstEvents(found.String())
		s.leave()
	}
}

// tell asks the owner what is to become of the answer: another attempt ends this stream,
// and leg.EventPass lets it go on.
func (s *firstStream) tell(seen blame.Sight) {
	pass := func() { s.act.post(just(leg.Event{Kind: leg.EventPass})) }
	if s.owner != nil {
		s.owner.post(&notice{Event: leg.Event{Kind: leg.EventFound, Seen: seen, Status: s.events.Status()}, pass: pass})
		return
	}
	ctx, cancel := context.WithDeadline(s.grpc.Context(), s.leg.Deadline.Add(leg.MessageTimeout))
	s.srv.peers.found(ctx, s.leg.Owner, peerReport{Token: s.token, Reason: seen, Status: s.events.Status()}, func() {
		cancel()
		pass()
	})
}
