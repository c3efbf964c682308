package extproc

import (
	"cmp"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/budget"
	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// prefillStream runs one mirrored prefill leg. It has the machine, the gRPC stream and the
// way to the leg's owner.
type prefillStream struct {
	stream
	m     leg.Prefill
	owner *mainStream // the attempt's main leg; nil: at another replica, or not known
	leg   prefill.Leg
	token string
	span  legSpan

	guest bool            // another replica owns the leg, and gets the reports
	told  <-chan struct{} // closes when the latest report to another replica was sent
	body  budget.Share    // of bodies in flight
}

func (s *prefillStream) post(ev *notice) { s.act.post(ev) }

func (s *prefillStream) handle(ev *notice) {
	defer func() {
		if r := recover(); r != nil {
			s.recovered("prefill", r)
			s.tellOwner(leg.Report{State: leg.Failed, Reason: blame.Aborted})
			s.tellOwner(leg.Report{State: leg.Ended})
		}
	}()
	if ev.Kind == leg.EventClosed {
		s.deaf, ev.Ending = true, s.srv.door.reached(stageEnding)
		if s.guest {
			s.guest = false
			s.srv.guests.remove(s.token)
		}
	}
	s.count(ev)
	if s.broken {
		return
	}
	var t *leg.Ticket
	if ev.Kind == leg.EventRequestHeaders && s.m.Awaits(leg.EventRequestHeaders) {
		s.fullDuplex, s.answerDuplex = ev.FullDuplex, ev.AnswerDuplex
		t = s.admit(ev)
	}
	for i, effects := 0, s.m.Step(time.Now(), &ev.Event, t); i < len(effects); i++ {
		s.perform(&effects[i])
	}
	if ev.Kind == leg.EventClosed {
		s.span.status = s.m.AnswerStatus()
		s.span.end()
	}
}

// legSpan is the span of a prefill leg, with what is told of the leg. The zero value: there is
// none.
type legSpan struct {
	span     trace.Span
	prefill  worker.Rank
	endpoint string // of its worker

	outcome leg.State // well or failed, once it is known
	fault   string
	met     string // what the leg has met, if it has failed
	status  int    // of the worker's answer; 0: none has come
}

// hear notes a report of the leg.
func (l *legSpan) hear(r *leg.Report) {
	if r.State != leg.Ended {
		l.outcome = r.State
	}
	if r.State == leg.Failed {
		l.fault = string(r.Reason)
	}
	l.met, l.status = cmp.Or(r.Said, l.met), cmp.Or(r.Status, l.status)
}

func (l *legSpan) end() {
	if l.span == nil || !l.span.IsRecording() {
		return
	}
	attrs := []attribute.KeyValue{
		attribute.String(telemetry.AttrPrefill, l.prefill.String()), attribute.String(telemetry.AttrEndpoint, l.endpoint),
		attribute.String(telemetry.AttrOutcome, l.outcome.String()),
	}
	if l.fault != "" {
		attrs = append(attrs, attribute.String(telemetry.AttrReason, l.fault))
	}
	if l.met != "" {
		attrs = append(attrs, attribute.String(telemetry.AttrError, l.met))
	}
	if l.status != 0 {
		attrs = append(attrs, attribute.Int(telemetry.AttrStatus, l.status))
	}
	telemetry.End(l.span, time.Now(), l.fault, attrs...)
}

// admit opens the leg's token and finds the leg's owner and worker. If this process is not
// the owner, another replica is, which gets the reports; or the owner is a process that has
// ended, and the leg runs without an owner.
func (s *prefillStream) admit(ev *notice) *leg.Ticket {
	srv := s.srv
	sealed, err := srv.sealer.Open(ev.Headers.Leg)
	if err != nil || sealed.Kind != prefill.MirrorLeg {
		srv.cfg.Telemetry.Leg("refused", "token")
		return &leg.Ticket{Fail: &leg.FailLegRefused}
	}
	s.leg, s.token = sealed, ev.Headers.Leg
	t := &leg.Ticket{Leg: sealed}
	w := srv.view.Load().Worker(sealed.Prefill.ID)
	if w != nil {
		t.HandOff = engines.HandOff(w.Engine).Begun()
	}
	switch {
	case t.HandOff == nil || w.EndpointOf(sealed.Prefill.DPRank).IsZero():
		t.Fail = &leg.FailLegGone
		srv.cfg.Telemetry.Leg("refused", "gone")
	case sealed.Owner == srv.owner:
		s.owner = srv.attempts.find(sealed.Nonce)
		if s.owner == nil || !s.owner.far.attach(s) {
			srv.cfg.Telemetry.Leg("late", "")
			t.Fail = &leg.FailLegLate
			s.owner = nil
		}
	case !srv.peers.reachable(sealed.Owner):
		srv.cfg.Telemetry.Leg("unowned", "")
	default:
		s.guest = true
		srv.guests.add(s.token, s)
	}
	s.span.prefill = sealed.Prefill
	if w != nil {
		s.span.endpoint = w.EndpointOf(sealed.Prefill.DPRank).String()
		t.Endpoint = s.span.endpoint
		t.NamesRank = t.HandOff != nil && t.HandOff.NamesRank && w.RanksPerPort() > 1
	}
	if srv.cfg.Tracer.Enabled() {
		parent := telemetry.Extract(ev.Headers.Traceparent, ev.Headers.Tracestate)
		s.span.span = srv.cfg.Tracer.Start(parent, telemetry.SpanPrefillLeg, time.Now())
	}
	return t
}

func (s *prefillStream) perform(e *leg.Effect) {
	switch e.Op {
	case leg.OpContinue:
		s.sendContinue(e)
	case leg.OpRoute:
		s.sendRoute(e)
	case leg.OpImmediate:
		s.sendImmediate(e.Imm)
	case leg.OpReport:
		s.span.hear(&e.Report)
		s.srv.cfg.Telemetry.Leg(e.Report.State.String(), string(e.Report.Reason))
		s.tellOwner(e.Report)
	case leg.OpFinish:
		s.srv.cfg.Telemetry.Failure(e.Fail.Code)
	}
}

// late ends a leg that has begun here after its attempt was over, as an owner's own replica
// refuses it: no decode worker will take its KV. A later report of such an attempt is of a leg
// that ends anyway.
func (s *prefillStream) late(r leg.Report) {
	if r.State == leg.Started {
		s.srv.cfg.Telemetry.Leg("late", "")
		s.post(just(leg.Event{Kind: leg.EventAbort}))
	}
}

func (s *prefillStream) tellOwner(r leg.Report) {
	switch {
	case s.owner != nil:
		s.owner.post(just(leg.Event{Kind: leg.EventLeg, Leg: r}))
	case s.token != "" && s.leg.Owner != s.srv.owner:
		s.told = s.srv.peers.report(s.leg.Owner, s.token, r, func() { s.late(r) }, s.told)
	}
}
