package extproc

import (
	"hash/maphash"
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/health"
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
func (s *mainStream) judge(now time.Time, e *effect) {
	if e.op == opSuspect {
		s.srv.cfg.Health.Suspect(e.rank, health.Overdue, now)
		if s.srv.cfg.Health.Aside(e.rank) { // for another request, before this one has waited so long
			s.post(just(event{kind: evGone, rank: e.rank}))
		}
		return
	}
	countCharge(s.srv.cfg.Telemetry, e)
	tell(s.srv.cfg.Health, e, maphash.String(requestSeed, avoidKey(&s.m.request().headers)), s.m.picked(), now)
}

// tell gives health one charge, or what came of a hand-off. request names the client's
// request, since is when its workers were asked.
func tell(h *health.Tracker, e *effect, request uint64, since, now time.Time) {
	switch e.op {
	case opCharge:
		h.Report(e.rank, health.Report{Outcome: healthOutcome[e.charge], Request: request, Since: since, Proven: e.proven}, now)
		if e.proven && e.charge == blame.Refusal {
			h.MateServed()
		}
	case opPairFailed:
		h.HandoffFailed(e.rank, e.other, now)
	case opPairServed:
		h.HandoffServed(e.rank, e.other)
	}
}

// countCharge counts what workers are charged with: of a pair that has failed both.
func countCharge(t *telemetry.Instruments, e *effect) {
	switch e.op {
	case opCharge:
		t.Charged(e.rank.ID, e.charge.Label())
	case opPairFailed:
		t.Charged(e.rank.ID, telemetry.ChargeHandoff)
		t.Charged(e.other.ID, telemetry.ChargeHandoff)
	}
}

// countWorker counts the attempt by the worker that was to answer.
func (s *mainStream) countWorker(o outcome) {
	p := s.m.planned()
	if p == nil {
		return
	}
	role := worker.Aggregated
	if p.disaggregated {
		role = worker.Decode
	}
	s.srv.cfg.Telemetry.WorkerAttempt(p.decode.ID, role, string(o))
}

// odd reports whether a worker's refusal with that status is to be asked of a mate: who
// refuses more than its pool may be at fault itself.
func odd(h *health.Tracker, r worker.Rank, status int) bool {
	return sightOfStatus(status) == blame.Rejected && h.AskMate(r)
}
