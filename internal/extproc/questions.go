package extproc

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// This file is what the runner of a main leg asks its machine, besides what is asked of
// its prefill leg (main_pairing.go). It is told nothing of phases.

// awaits reports whether a message of Envoy's is the one that comes next.
func (m *mainLeg) awaits(k eventKind) bool {
	switch m.phase {
	case mainAwaitHeaders:
		return k == evRequestHeaders
	case mainAwaitBody:
		return k == evRequestBody
	case mainRouted:
		return k == evResponseHeaders
	default:
		return false
	}
}

// request is what has come of the request. It is for reading; what its end has set stays
// until it is routed.
func (m *mainLeg) request() *request { return &m.req }

// over reports whether nothing of the attempt remains.
func (m *mainLeg) over() bool { return m.phase == mainDone }

// answered reports whether the client's answer is over.
func (m *mainLeg) answered() bool {
	switch m.phase {
	case mainRejected, mainEnded, mainLingering, mainDone:
		return true
	default:
		return false
	}
}

// answers reports whether decode's answer is on its way to the client, on a stream that we
// have not left.
func (m *mainLeg) answers() bool { return m.phase == mainStreaming }

// sightings are what was seen of the attempt's legs in the last step.
func (m *mainLeg) sightings() []sighting { return m.charges.seen }

// planned is the plan of the attempt; nil: nothing was picked.
func (a *attempt) planned() *plan { return a.plan }

// picked is when the attempt's workers were picked.
func (a *attempt) picked() time.Time { return a.pickedAt }

// decoded is what has come of decode's answer. It is for reading.
func (a *attempt) decoded() *answer { return &a.answer }

// began reports whether decode has begun an answer, which serves the request so far.
func (a *attempt) began() bool { return a.answer.code()/100 == 2 && a.servesSoFar() }

// servesSoFar reports whether nothing that has come of decode's answer says that it does
// not serve the request.
func (a *attempt) servesSoFar() bool {
	return a.answer.sightOfStart(a.req.passes()) == blame.Served
}

// concluded reports whether opFinish was returned.
func (a *attempt) concluded() bool { return a.finished }

// looks reports whether a stream of its own is to read the answer's first events. A
// gateway has no filter for it: its one filter shows us answers, or nobody does.
func (m *mainLeg) looks() bool {
	return m.rules.holdFirst && m.req.scan != nil && m.req.scan.Stream && !m.req.passes() && !m.way.gateway
}

// decodeMate is who is to answer, where a refusal of its could be asked of another worker.
func (a *attempt) decodeMate() (r worker.Rank, ok bool) {
	if a.plan == nil || !a.plan.spare.Decode || !a.asksAgain() {
		return r, false
	}
	return a.plan.decode, true
}

// learned is the attempt's lesson; false: nothing was picked.
func (a *attempt) learned() (lesson, bool) {
	if a.plan == nil {
		return lesson{}, false
	}
	return lesson{avoid: a.charges.avoid, keep: a.charges.keep, suspects: a.plan.suspects}, true
}
