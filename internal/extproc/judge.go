package extproc

import (
	"hash/maphash"
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// This file tells internal/health what a machine has seen of the attempt's workers.

var healthOutcome = [...]health.Outcome{
	blame.None: health.NotStarted, blame.Credit: health.OK, blame.Connect: health.Unreached, blame.Loss: health.ConnectionLost,
	blame.Break: health.BrokeOff, blame.Error: health.ServerError, blame.Refusal: health.Refused, blame.Slow: health.Overdue,
	blame.Held: health.Refused,
}

// requestSeed seeds the hashes by which health tells requests apart.
var requestSeed = maphash.MakeSeed()

// judge performs an effect that charges or credits a worker, or suspects one.
func (s *mainStream) judge(now time.Time, e *leg.Effect) {
	if e.Op == leg.OpSuspect {
		s.srv.cfg.Health.Suspect(e.Rank, now)
		if s.srv.cfg.Health.Aside(e.Rank) { // set aside for another request, before this one was overdue
			s.post(just(leg.Event{Kind: leg.EventGone, Rank: e.Rank}))
		}
		return
	}
	if repays(e) {
		s.srv.patience.Repaid(s.decided.limits.decode.subject.Pool)
	}
	countCharge(s.srv.cfg.Telemetry, e)
	tell(s.srv.cfg.Health, e, maphash.String(requestSeed, avoidKey(&s.m.Request().Headers)), s.m.PickedAt(), now)
}

// tell tells health one charge, or how a hand-off ended. The argument request stands for the
// client's request; since is when the attempt's workers were picked.
func tell(h *health.Tracker, e *leg.Effect, request uint64, since, now time.Time) {
	switch e.Op {
	case leg.OpCharge:
		h.Report(e.Rank, health.Report{Outcome: healthOutcome[e.Charge], Request: request, Since: since, Proven: e.Proven}, now)
		if e.Proven && e.Charge == blame.Refusal {
			h.MateServed()
		}
	case leg.OpPairFailed:
		h.HandoffFailed(e.Rank, e.Other, now)
	case leg.OpPairServed:
		h.HandoffServed(e.Rank, e.Other)
	}
}

// countCharge counts a charge for its worker. A hand-off that failed counts for both workers
// of the pair.
func countCharge(t *telemetry.Instruments, e *leg.Effect) {
	switch e.Op {
	case leg.OpCharge:
		t.Charged(e.Rank.ID, e.Charge.Label())
	case leg.OpPairFailed:
		t.Charged(e.Rank.ID, telemetry.ChargeHandoff)
		t.Charged(e.Other.ID, telemetry.ChargeHandoff)
	}
}

// countWorker counts the attempt and its outcome for the worker that was to answer.
func countWorker(s *mainStream, o leg.Outcome) {
	p := s.m.Plan()
	if p == nil {
		return
	}
	role := worker.Aggregated
	if p.Disaggregated {
		role = worker.Decode
	}
	s.srv.cfg.Telemetry.WorkerAttempt(p.Decode.ID, role, string(o))
}

// odd reports whether a request that the worker has refused with this status is to be sent
// to a mate: a worker that refuses more than its pool does may be at fault itself.
func odd(h *health.Tracker, r worker.Rank, status int) bool {
	return leg.SightOfStatus(status) == blame.Rejected && h.AskMate(r)
}
