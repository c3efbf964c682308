package extproc

import (
	"cmp"
	"log/slog"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// This file is what attempts leave behind: in the journal, metrics, traces and the log.

func (s *mainStream) mark(now time.Time, r legReport) {
	j := s.srv.cfg.Journal
	switch r.state {
	case legStarted:
		j.Mark(s.note, decision.PrefillStarted, now)
	case legWell:
		j.Mark(s.note, decision.PrefillWell, now)
		s.srv.cfg.Telemetry.WorkerAttempt(s.prefillLimit.subject.Worker, worker.Prefill, r.state.String())
		s.prefillLimit.learn(&s.srv.patience, now)
		s.decodeLimit.from = now
	case legFailed:
		j.LegEnd(s.note, decision.LegFailed, string(r.reason), now)
		s.srv.cfg.Telemetry.Leg("owner_failed", string(r.reason))
		s.srv.cfg.Telemetry.WorkerAttempt(s.prefillLimit.subject.Worker, worker.Prefill, r.state.String())
	case legEnded:
		j.Mark(s.note, decision.PrefillEnded, now)
	}
}

var journalOutcome = map[outcome]decision.Outcome{
	blame.OK: decision.OK, blame.Retried: decision.Retried, outcomeRefused: decision.Refused, blame.OfWorker: decision.Rejected,
	blame.Failed: decision.Failed, blame.Cut: decision.Cut, blame.Left: decision.ClientLeft, outcomeAnswered: decision.Answered,
	blame.Unknown: decision.Unfinished,
}

// turnPage closes the record of a pair whose prefill has failed: one worker serves
// the request from here on, and has a record of its own.
func (s *mainStream) turnPage(now time.Time) {
	code := s.m.inPlaceOf().code
	s.srv.cfg.Telemetry.AttemptEnded(string(blame.Retried))
	s.srv.cfg.Telemetry.FreshPick(code)
	s.srv.cfg.Journal.End(s.note, decision.Retried, code, 0, now)
	telemetry.End(s.decodeSpan, now, code, attribute.String(telemetry.AttrOutcome, string(blame.Retried)))
}

// finish records how the attempt ended, once.
func (s *mainStream) finish(now time.Time, e *effect) {
	t := s.srv.cfg.Telemetry
	if !s.endedAt.IsZero() {
		now = s.endedAt // the access log comes later
	}
	code, status, detail := string(e.outcome), 0, ""
	if e.fail != nil {
		code, status, detail = e.fail.code, e.fail.status, e.fail.code
	}
	t.AttemptEnded(string(e.outcome))
	s.countWorker(e.outcome)
	s.measure(now, e)
	switch e.outcome {
	case blame.Retried:
		if e.fail == nil {
			break // on Envoy's own word; the attempt that follows is counted
		}
		t.FreshPick(code)
		if learned, ok := s.m.learned(); ok {
			s.srv.avoid.add(s.m.request(), learned, now)
		}
	case outcomeRefused, blame.OfWorker, blame.Failed, blame.Cut:
		t.Failure(code)
		t.RequestEnded(string(e.outcome), code)
	default:
		t.RequestEnded(string(e.outcome), code)
	}
	if s.note.IsZero() {
		s.note = s.srv.noteRefusal(s, e)
	}
	s.srv.cfg.Journal.End(s.note, journalOutcome[e.outcome], detail, status, now)
	s.logFinish(e, detail)
	s.endSpans(now, e.outcome, detail, status)
}

// endSpans ends the attempt's span and that of its decode leg. status 0: the worker's.
func (s *mainStream) endSpans(now time.Time, o outcome, detail string, status int) {
	if s.span == nil || !s.span.IsRecording() {
		return
	}
	ends := []attribute.KeyValue{attribute.String(telemetry.AttrOutcome, string(o))}
	if detail != "" {
		ends = append(ends, attribute.String(telemetry.AttrReason, detail))
	}
	if status = cmp.Or(status, s.m.decoded().code()); status != 0 {
		ends = append(ends, attribute.Int(telemetry.AttrStatus, status))
	}
	q := s.m.request()
	of := append(slices.Clone(ends), attribute.String(telemetry.AttrRequestID, bounded(q.headers.RequestID)),
		attribute.Int(telemetry.AttrAttempt, q.attempt), attribute.String(telemetry.AttrPath, short(q.headers.Path)))
	if p := s.m.planned(); p != nil {
		telemetry.End(s.decodeSpan, now, detail, append(ends, attribute.String(telemetry.AttrDecode, p.decode.String()),
			attribute.String(telemetry.AttrEndpoint, p.decodeAddr))...)
		of = append(of, attribute.String(telemetry.AttrModel, s.prompt.Model))
	}
	telemetry.End(s.span, now, detail, of...)
}

// logFinish writes the attempt's one line, at debug level.
func (s *mainStream) logFinish(e *effect, detail string) {
	log := s.srv.log
	ctx := s.grpc.Context()
	if !log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	attrs := []slog.Attr{
		slog.String(telemetry.KeyRequestID, s.m.request().headers.RequestID), slog.Int(telemetry.KeyAttempt, s.m.request().attempt),
		slog.String("outcome", string(e.outcome)), slog.String(telemetry.KeyReason, detail),
		slog.Duration("took", time.Since(s.began)),
	}
	if p := s.m.planned(); p != nil {
		attrs = append(attrs, slog.String("decode", p.decode.String()))
		if p.disaggregated {
			attrs = append(attrs, slog.String("prefill", p.prefill.String()), slog.String(telemetry.KeyLeg, s.m.prefillState().String()))
		}
	}
	log.LogAttrs(ctx, slog.LevelDebug, "attempt ended", attrs...)
}
