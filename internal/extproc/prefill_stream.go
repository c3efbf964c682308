package extproc

import (
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/budget"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/prefill/handoff"
)

// prefillStream runs one prefill leg: its machine, its gRPC stream and the way
// to its owner.
type prefillStream struct {
	stream
	m        prefillLeg
	owner    *mainStream // in this process; nil when elsewhere or unknown
	leg      prefill.Leg
	token    string
	span     trace.Span
	fault    string
	endpoint string // of its worker

	outcome legState        // well or failed, once it is known
	guest   bool            // another replica is told how it goes
	told    <-chan struct{} // closes when the last report to a peer has gone
	body    budget.Share    // of bodies in flight
}

func (s *prefillStream) post(ev *notice) { s.act.post(ev) }

func (s *prefillStream) handle(ev *notice) {
	defer func() {
		if r := recover(); r != nil {
			s.recovered("prefill", r)
			s.tellOwner(legReport{state: legFailed, reason: blame.Aborted})
			s.tellOwner(legReport{state: legEnded})
		}
	}()
	if ev.kind == evClosed {
		s.deaf, ev.ending = true, s.srv.reached(stageEnding)
		if s.guest {
			s.guest = false
			s.srv.guests.remove(s.token)
		}
	}
	s.count(ev)
	if s.broken {
		return
	}
	var t *ticket
	if ev.kind == evRequestHeaders && s.m.awaits(evRequestHeaders) {
		s.fullDuplex, s.answerDuplex = ev.fullDuplex, ev.answerDuplex
		t = s.admit(ev)
	}
	for i, effects := 0, s.m.step(time.Now(), &ev.event, t); i < len(effects); i++ {
		s.perform(&effects[i])
	}
	if ev.kind == evClosed {
		s.endSpan()
	}
}

func (s *prefillStream) endSpan() {
	if s.span == nil || !s.span.IsRecording() {
		return
	}
	attrs := []attribute.KeyValue{
		attribute.String(telemetry.AttrPrefill, s.leg.Prefill.String()), attribute.String(telemetry.AttrEndpoint, s.endpoint),
		attribute.String(telemetry.AttrOutcome, s.outcome.String()),
	}
	if s.fault != "" {
		attrs = append(attrs, attribute.String(telemetry.AttrReason, s.fault))
	}
	if status := s.m.answerStatus(); status != 0 {
		attrs = append(attrs, attribute.Int(telemetry.AttrStatus, status))
	}
	telemetry.End(s.span, time.Now(), s.fault, attrs...)
}

// admit opens the leg's token and finds its owner and its worker. A leg whose
// token this instance did not book belongs to a replica, or to a process that
// is gone: it runs on its own.
func (s *prefillStream) admit(ev *notice) *ticket {
	srv := s.srv
	sealed, err := srv.sealer.Open(ev.headers.Leg)
	if err != nil || sealed.Kind != prefill.MirrorLeg {
		srv.cfg.Telemetry.Leg("refused", "token")
		return &ticket{fail: &failLegRefused}
	}
	s.leg, s.token = sealed, ev.headers.Leg
	t := &ticket{leg: sealed}
	w := srv.view.Load().Worker(sealed.Prefill.ID)
	switch {
	case w == nil || w.EndpointOf(sealed.Prefill.DPRank).IsZero():
		t.fail = &failLegGone
		srv.cfg.Telemetry.Leg("refused", "gone")
	case sealed.Owner == srv.owner:
		s.owner = srv.attempts.find(sealed.Nonce)
		if s.owner == nil || !s.owner.attach(s) {
			srv.cfg.Telemetry.Leg("late", "")
			t.fail = &failLegLate
			s.owner = nil
		}
	case !srv.peers.reachable(sealed.Owner):
		srv.cfg.Telemetry.Leg("unowned", "")
	default:
		s.guest = true
		srv.guests.add(s.token, s)
	}
	if w != nil {
		s.endpoint = w.EndpointOf(sealed.Prefill.DPRank).String()
		t.endpoint = s.endpoint
		t.mooncake = handoff.KindOf(w.Engine) == handoff.Mooncake
		t.namesRank = t.mooncake && w.RanksPerPort() > 1
	}
	if srv.cfg.Tracer.Enabled() {
		parent := telemetry.Extract(ev.headers.Traceparent, ev.headers.Tracestate)
		s.span = srv.cfg.Tracer.Start(parent, telemetry.SpanPrefillLeg, time.Now())
	}
	return t
}

func (s *prefillStream) perform(e *effect) {
	switch e.op {
	case opContinue:
		s.sendContinue(e)
	case opRoute:
		s.sendRoute(e)
	case opImmediate:
		s.sendImmediate(e.imm)
	case opReport:
		if e.report.state != legEnded {
			s.outcome = e.report.state
		}
		if e.report.state == legFailed {
			s.fault = string(e.report.reason)
		}
		s.srv.cfg.Telemetry.Leg(e.report.state.String(), string(e.report.reason))
		s.tellOwner(e.report)
	case opFinish:
		s.srv.cfg.Telemetry.Failure(e.fail.code)
	}
}

func (s *prefillStream) tellOwner(r legReport) {
	switch {
	case s.owner != nil:
		s.owner.post(just(event{kind: evLeg, leg: r}))
	case s.token != "" && s.leg.Owner != s.srv.owner:
		s.told = s.srv.peers.report(s.leg.Owner, s.token, r, s.told)
	}
}
