package extproc

import (
	"context"
	"encoding/base64"
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/pkg/prefill"
)

// firstStream reads the first events of decode's answer before the answer comes to the main
// leg: see doc.go. The token says which attempt the answer belongs to.
type firstStream struct {
	stream
	token  string
	leg    prefill.Leg
	owner  *mainStream // nil: at another replica, or not known
	events openai.FirstEvents
	phase  firstPhase
	why    []byte // the body of an error
}

type firstPhase uint8

const (
	firstAwaitHeaders firstPhase = iota
	firstReading
	firstFailing // reads the body of an error
	firstTold    // waits for the owner to say whether the answer goes on
	firstLeft
)

func (s *firstStream) handle(ev *notice) {
	defer func() {
		if r := recover(); r != nil { // the answer is not at fault: let it pass
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

// leave lets the answer pass, with the pieces that Envoy holds.
func (s *firstStream) leave() {
	s.phase, s.deaf = firstLeft, true
	s.finishStream()
}

func (s *firstStream) begin(ev *notice) {
	sealed, err := s.srv.sealer.Open(s.token)
	if err != nil || sealed.Kind != prefill.AnswerLeg {
		s.leave()
		return
	}
	if ev.Headers.SaysWhy() && !ev.EndOfStream {
		s.leg, s.phase = sealed, firstFailing
		s.wait()
		return
	}
	if ev.Headers.LocalReply != "" || leg.SightOfStatus(leg.StatusOf(ev.Headers.Status)) != blame.Served || !leg.IsEventStream(ev.Headers.ContentType) {
		s.leave()
		return
	}
	s.leg, s.phase = sealed, firstReading
	if sealed.Owner == s.srv.owner {
		s.owner = s.srv.attempts.find(sealed.Nonce)
	}
	if s.owner != nil {
		s.owner.answered.looked.Store(true)
	}
	if ev.Headers.Encoded || s.owner == nil && (sealed.Owner == s.srv.owner || !s.srv.peers.reachable(sealed.Owner)) {
		s.leave() // the answer cannot be read, or there is no owner that could begin another attempt
		return
	}
	if ev.EndOfStream {
		s.piece(nil, true)
		return
	}
	s.wait()
}

// wait tells Envoy to hold what has come for as long as the request may take. Without that
// Envoy would give up after its own time-out for a message, which is short, so that it
// notices a plugin that hangs.
func (s *firstStream) wait() {
	s.send(wire.Extend(leg.Extension(time.Until(s.leg.Deadline))))
}

// piece reads a piece of the answer. Envoy keeps the pieces to which the plugin does not
// reply, and sends them on when the stream ends.
func (s *firstStream) piece(body []byte, last bool) {
	if s.phase == firstFailing {
		s.fail(body, last)
		return
	}
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

// fail reads a piece of an error. What it says goes to the main leg in a header of its head,
// which waits here: then any replica can have the main leg's stream.
func (s *firstStream) fail(body []byte, last bool) {
	s.why = append(s.why, body...)
	if !last && len(s.why) < wire.MaxWhy {
		s.wait()
		return
	}
	why := base64.StdEncoding.EncodeToString(s.why[:min(len(s.why), wire.MaxWhy)])
	s.send(wire.Relay(wire.ResponseHeaders, []wire.Header{{Name: prefill.HeaderError, Value: why}}, nil, ""))
	s.leave()
}

// tell tells the owner what the first events say. The owner either begins another attempt,
// which ends this stream, or lets the answer go on by leg.EventPass.
func (s *firstStream) tell(seen blame.Sight) {
	pass := func() { s.act.post(just(leg.Event{Kind: leg.EventPass})) }
	if s.owner != nil {
		s.owner.post(&notice{Event: leg.Event{Kind: leg.EventFound, Seen: seen, Status: s.events.Status(), Error: s.events.Error()}, pass: pass})
		return
	}
	ctx, cancel := context.WithDeadline(s.grpc.Context(), s.leg.Deadline.Add(leg.MessageTimeout))
	s.srv.peers.found(ctx, s.leg.Owner, peerReport{Token: s.token, Reason: seen, Status: s.events.Status(), Error: s.events.Error()}, func() {
		cancel()
		pass()
	})
}
