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

// This file tells internal/health what the machine has seen of its workers.

var healthOutcome = [...]health.Outcome{
	blame.None: health.NotStarted, blame.Credit: health.OK, blame.Connect: health.ConnectFailed, blame.Loss: health.ConnectionLost,
	blame.Break: health.BrokeOff, blame.Error: health.ServerError, blame.Refusal: health.Refused, blame.Slow: health.Overdue,
	blame.Held: health.Refused,
}

// requestSeed makes the names under which health knows requests.
var requestSeed = maphash.MakeSeed()

// judge performs what the machine says of a worker.
func (s *mainStream) judge(now time.Time, e *leg.Effect) {
	if e.Op == leg.OpSuspect {
		s.srv.cfg.Health.Suspect(e.Rank, health.Overdue, now)
		if s.srv.cfg.Health.Aside(e.Rank) { // for another request, before this one has waited so long
			s.post(just(leg.Event{Kind: leg.EventGone, Rank: e.Rank}))
		}
		return
	}
	countCharge(s.srv.cfg.Telemetry, e)
	tell(s.srv.cfg.Health, e, maphash.String(requestSeed, avoidKey(&s.m.Request().Headers)), s.m.PickedAt(), now)
}

// tell gives health one charge, or what came of a hand-off. request names the client's
// request, since is when its workers were asked.
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

// countCharge counts what workers are charged with: of a pair that has failed both.
func countCharge(t *telemetry.Instruments, e *leg.Effect) {
	switch e.Op {
	case leg.OpCharge:
		t.Charged(e.Rank.ID, e.Charge.Label())
	case leg.OpPairFailed:
		t.Charged(e.Rank.ID, telemetry.ChargeHandoff)
		t.Charged(e.Other.ID, telemetry.ChargeHandoff)
	}
}

// countWorker counts the attempt by the worker that was to answer.
func (s *mainStream) countWorker(o leg.Outcome) {
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

// odd reports whether a worker's refusal with that status is to be asked of a mate: who
// refuses more than its pool may be at fault itself.
func odd(h *health.Tracker, r worker.Rank, status int) bool {
	return leg.SightOfStatus(status) == blame.Rejected && h.AskMate(r)
}
