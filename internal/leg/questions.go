package leg

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// This file has the questions that the runner of a main leg asks its machine. Those about
// the prefill leg are in pairing.go. The runner does not know the machine's phase.

// Awaits reports whether the machine waits for a message of this kind.
func (m *Main) Awaits(k EventKind) bool {
	return m.phase == mainAwaitHeaders && k == EventRequestHeaders ||
		m.phase == mainAwaitBody && k == EventRequestBody ||
		m.phase == mainRouted && k == EventResponseHeaders
}

// Request returns what has come of the request, for reading. Body and Scan are there
// until the request is routed.
func (m *Main) Request() *Request { return &m.req }

// Over reports whether the attempt is over, with all its legs.
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

// Answering reports whether decode's answer is on its way to the client, on a stream that
// the machine has not left.
func (m *Main) Answering() bool { return m.phase == mainStreaming }

// Sightings returns what the last step has seen of the attempt's legs.
func (m *Main) Sightings() []Sighting { return m.charges.seen }

// Plan returns the plan of the attempt, or nil if nothing was picked.
func (a *attempt) Plan() *Plan { return a.plan }

// PickedAt returns when the attempt's workers were picked.
func (a *attempt) PickedAt() time.Time { return a.pickedAt }

// Answer returns what has come of decode's answer, for reading.
func (a *attempt) Answer() *Answer { return &a.answer }

// Began reports whether decode's answer has begun with a 2xx, and serves the request so
// far.
func (a *attempt) Began() bool { return a.answer.Code()/100 == 2 && a.ServesSoFar() }

// ServesSoFar reports whether decode's answer serves the request, by what has come of it.
// It is true while nothing has come.
func (a *attempt) ServesSoFar() bool {
	return a.answer.sightOfStart(a.req.Passes()) == blame.Served
}

// Concluded reports whether OpFinish was returned.
func (a *attempt) Concluded() bool { return a.finished }

// Looks reports whether another stream is to read the first events of decode's answer. A
// gateway has no filter for such a stream: its one filter sends answers to the main leg,
// or to nobody.
func (m *Main) Looks() bool {
	return m.rules.HoldFirst && m.req.Scan != nil && m.req.Scan.Stream && !m.req.Passes() && !m.way.Gateway()
}

// DecodeMate returns the rank that is to answer, if another worker could be asked after a
// refusal. Else it returns false.
func (a *attempt) DecodeMate() (r worker.Rank, ok bool) {
	if a.plan == nil || !a.plan.Spare.Decode || !a.asksAgain() {
		return r, false
	}
	return a.plan.Decode, true
}

// Learned returns what a fresh attempt has to know of this one. It returns false if
// nothing was picked.
func (a *attempt) Learned() (Lesson, bool) {
	if a.plan == nil {
		return Lesson{}, false
	}
	return Lesson{Avoid: a.charges.avoid, Keep: a.charges.keep, Suspects: a.plan.Suspects, Lost: a.plan.Lost, Told: a.plan.Expected.Told, By: a.plan.Expected.By}, true
}
