package leg

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// This file is what the runner of a main leg asks its machine, besides what is asked of
// its prefill leg (main_pairing.go). It is told nothing of phases.

// Awaits reports whether a message of Envoy's is the one that comes next.
func (m *Main) Awaits(k EventKind) bool {
	switch m.phase {
	case mainAwaitHeaders:
		return k == EventRequestHeaders
	case mainAwaitBody:
		return k == EventRequestBody
	case mainRouted:
		return k == EventResponseHeaders
	default:
		return false
	}
}

// Request is what has come of the request. It is for reading; what its end has set stays
// until it is routed.
func (m *Main) Request() *Request { return &m.req }

// Over reports whether nothing of the attempt remains.
func (m *Main) Over() bool { return m.phase == mainDone }

// AnswerOver reports whether the client's answer is over.
func (m *Main) AnswerOver() bool {
	switch m.phase {
	case mainRejected, mainEnded, mainLingering, mainDone:
		return true
	default:
		return false
	}
}

// Answering reports whether decode's answer is on its way to the client, on a stream that we
// have not left.
func (m *Main) Answering() bool { return m.phase == mainStreaming }

// Sightings are what was seen of the attempt's legs in the last step.
func (m *Main) Sightings() []Sighting { return m.charges.seen }

// Plan is the plan of the attempt; nil: nothing was picked.
func (a *attempt) Plan() *Plan { return a.plan }

// PickedAt is when the attempt's workers were picked.
func (a *attempt) PickedAt() time.Time { return a.pickedAt }

// Answer is what has come of decode's answer. It is for reading.
func (a *attempt) Answer() *Answer { return &a.answer }

// Began reports whether decode has begun an answer, which serves the request so far.
func (a *attempt) Began() bool { return a.answer.Code()/100 == 2 && a.ServesSoFar() }

// ServesSoFar reports whether nothing that has come of decode's answer says that it does
// not serve the request.
func (a *attempt) ServesSoFar() bool {
	return a.answer.sightOfStart(a.req.Passes()) == blame.Served
}

// Concluded reports whether OpFinish was returned.
func (a *attempt) Concluded() bool { return a.finished }

// Looks reports whether a stream of its own is to read the answer's first events. A
// gateway has no filter for it: its one filter shows us answers, or nobody does.
func (m *Main) Looks() bool {
	return m.rules.HoldFirst && m.req.Scan != nil && m.req.Scan.Stream && !m.req.Passes() && !m.way.Gateway()
}

// DecodeMate is who is to answer, where a refusal of its could be asked of another worker.
func (a *attempt) DecodeMate() (r worker.Rank, ok bool) {
	if a.plan == nil || !a.plan.Spare.Decode || !a.asksAgain() {
		return r, false
	}
	return a.plan.Decode, true
}

// Learned is the attempt's lesson; false: nothing was picked.
func (a *attempt) Learned() (Lesson, bool) {
	if a.plan == nil {
		return Lesson{}, false
	}
	return Lesson{Avoid: a.charges.avoid, Keep: a.charges.keep, Suspects: a.plan.Suspects}, true
}
