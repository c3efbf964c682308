package extproc

import (
	"cmp"
	"log/slog"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/internal/journal"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// This file writes what came of attempts into the journal, metrics, traces and the log.

func (s *mainStream) mark(now time.Time, r leg.Report) {
	j := s.srv.cfg.Journal
	if r.Proof != "" {
		s.srv.doubts.proved(s.decided.prompt.Model, &r, now)
	}
	s.far.span.hear(&r)
	switch r.State {
	case leg.Started:
		j.Mark(s.decided.note, decision.PrefillStarted, now)
		s.decided.limits.start.learn(&s.srv.patience, now)
	case leg.Well:
		j.Mark(s.decided.note, decision.PrefillWell, now)
		s.srv.cfg.Telemetry.WorkerAttempt(s.decided.limits.prefill.subject.Worker, worker.Prefill, r.State.String())
		s.far.well(now)
		s.srv.Paces.prompt(s, worker.Prefill, s.m.Plan().Prefill, s.decided.prefill, now)
		s.decided.limits.prefill.learn(&s.srv.patience, now)
		s.decided.limits.decode.begin(now)
	case leg.Failed:
		j.LegEnd(s.decided.note, decision.LegFailed, string(r.Reason), now)
		met(j, s.decided.note, "", r.Said)
		s.srv.cfg.Telemetry.Leg("owner_failed", string(r.Reason))
		s.srv.cfg.Telemetry.WorkerAttempt(s.decided.limits.prefill.subject.Worker, worker.Prefill, r.State.String())
	case leg.Ended:
		j.Mark(s.decided.note, decision.PrefillEnded, now)
		met(j, s.decided.note, "", r.Said)
	}
}

// met notes what the leg that failed has met, or what the prefill leg has.
func met(j *journal.Journal, h journal.Handle, failed, prefillLeg string) {
	if failed != "" || prefillLeg != "" {
		j.Update(h, func(r *decision.Record) { r.Meet(failed, prefillLeg) })
	}
}

var journalOutcome = map[leg.Outcome]decision.Outcome{
	blame.OK: decision.OK, blame.Retried: decision.Retried, leg.Refused: decision.Refused, blame.OfWorker: decision.Rejected,
	blame.Failed: decision.Failed, blame.Cut: decision.Cut, blame.Left: decision.ClientLeft, leg.Answered: decision.Answered,
	blame.Unknown: decision.Unfinished,
}

// turnPage ends the record of a pair whose prefill has failed. One worker serves the request
// from then on, and gets a record of its own.
func (s *mainStream) turnPage(now time.Time) {
	recordEnd(s, now, blame.Retried)
	failed := s.m.InPlaceOf()
	code := failed.Code
	s.srv.cfg.Telemetry.AttemptEnded(string(blame.Retried))
	s.srv.cfg.Telemetry.FreshPick(code)
	met(s.srv.cfg.Journal, s.decided.note, failed.Said, "")
	s.srv.cfg.Journal.End(s.decided.note, decision.Retried, code, 0, now)
	telemetry.End(s.decided.span, now, code, attribute.String(telemetry.AttrOutcome, string(blame.Retried)))
}

// finish records how the attempt ended, once.
func (s *mainStream) finish(now time.Time, e *leg.Effect) {
	t := s.srv.cfg.Telemetry
	now = s.answered.end(now)
	code, status, detail, said := string(e.Outcome), 0, "", ""
	if e.Fail != nil {
		code, status, detail, said = e.Fail.Code, e.Fail.Status, e.Fail.Code, e.Fail.Said
	}
	t.AttemptEnded(string(e.Outcome))
	countWorker(s, e.Outcome)
	s.measure(now, e)
	recordEnd(s, now, e.Outcome)
	shaped(s, now, e)
	switch e.Outcome {
	case blame.Retried:
		s.srv.door.again.told(now)
		learned, picked := s.m.Learned()
		if e.Fail == nil { // Envoy begins the next attempt by itself; decide counts it
			s.srv.avoid.lost(s.m.Request(), learned.Lost, s.m.Plan().Decode, now)
			break
		}
		t.FreshPick(code)
		if picked {
			s.srv.avoid.add(s.m.Request(), learned, now)
		}
	case leg.Refused, blame.OfWorker, blame.Failed, blame.Cut:
		t.Failure(code)
		t.RequestEnded(string(e.Outcome), code)
	default:
		t.RequestEnded(string(e.Outcome), code)
	}
	s.decided.refused(s, e)
	met(s.srv.cfg.Journal, s.decided.note, said, "")
	s.srv.cfg.Journal.End(s.decided.note, journalOutcome[e.Outcome], detail, status, now)
	s.logFinish(e, detail, said)
	s.endSpans(now, e.Outcome, detail, said, status)
}

// endSpans ends the attempt's span and that of its decode leg. If status is 0, they get the
// status of the worker's answer.
func (s *mainStream) endSpans(now time.Time, o leg.Outcome, detail, said string, status int) {
	if s.asked.span == nil || !s.asked.span.IsRecording() {
		return
	}
	ends := []attribute.KeyValue{attribute.String(telemetry.AttrOutcome, string(o))}
	if detail != "" {
		ends = append(ends, attribute.String(telemetry.AttrReason, detail))
	}
	if said != "" {
		ends = append(ends, attribute.String(telemetry.AttrError, said))
	}
	status = cmp.Or(status, s.m.Answer().Code())
	if status != 0 {
		ends = append(ends, attribute.Int(telemetry.AttrStatus, status))
	}
	q := s.m.Request()
	of := append(slices.Clone(ends), attribute.String(telemetry.AttrRequestID, bounded(q.Headers.RequestID)),
		attribute.Int(telemetry.AttrAttempt, q.Attempt), attribute.String(telemetry.AttrPath, short(q.Headers.Path)))
	if p := s.m.Plan(); p != nil {
		telemetry.End(s.decided.span, now, detail, append(ends, attribute.String(telemetry.AttrDecode, p.Decode.String()),
			attribute.String(telemetry.AttrEndpoint, p.DecodeAddr))...)
		of = append(of, attribute.String(telemetry.AttrModel, s.decided.prompt.Model))
	}
	telemetry.End(s.asked.span, now, detail, of...)
}

// logFinish writes the attempt's one line, at debug level.
func (s *mainStream) logFinish(e *leg.Effect, detail, said string) {
	log := s.srv.log
	ctx := s.grpc.Context()
	if !log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	attrs := []slog.Attr{
		slog.String(logkey.RequestID, s.m.Request().Headers.RequestID), slog.Int(logkey.Attempt, s.m.Request().Attempt),
		slog.String(logkey.Outcome, string(e.Outcome)), slog.String(logkey.Reason, detail),
		slog.Duration(logkey.Took, time.Since(s.asked.began)),
	}
	if said != "" {
		attrs = append(attrs, slog.String(logkey.Err, said))
	}
	if p := s.m.Plan(); p != nil {
		attrs = append(attrs, slog.String(logkey.Decode, p.Decode.String()))
		if p.Disaggregated {
			attrs = append(attrs, slog.String(logkey.Prefill, p.Prefill.String()), slog.String(logkey.Leg, s.m.PrefillState().String()))
		}
	}
	log.LogAttrs(ctx, slog.LevelDebug, "attempt ended", attrs...)
}
