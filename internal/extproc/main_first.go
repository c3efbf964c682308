package extproc

import (
	"fmt"
	"strconv"
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/openai"
)

// This file is the main leg's part in the beginning of a streamed answer. Engines send
// the head, and an event with a role, before they know whether they can serve: what
// counts is the first token.

// FirstToken says what becomes of a streamed answer before its first token.
type FirstToken string

// The values of FirstToken.
const (
	// FirstTokenHold keeps the answer back: an error, or an end, before the first token
	// can become a fresh attempt.
	FirstTokenHold FirstToken = "hold"
	// FirstTokenOff lets it pass. What its worker has done is learnt from Envoy's access
	// log, or where its bytes come to us in any case.
	FirstTokenOff FirstToken = "off"
)

// Validate returns an error where f is none of them.
func (f FirstToken) Validate() error {
	switch f {
	case FirstTokenHold, FirstTokenOff:
		return nil
	default:
		return fmt.Errorf("first_token %q: expected %s or %s", string(f), FirstTokenHold, FirstTokenOff)
	}
}

// answerStart is the beginning of an answer of events.
type answerStart struct {
	reads bool               // its pieces come through the main leg, and no token has come
	read  openai.FirstEvents // what has come of them
	seen  blame.Sight        // they do not serve the request; empty: nothing says so
}

// looks reports whether a stream of its own is to read the answer's first events. A
// gateway has no filter for it: its one filter shows us answers, or nobody does.
func (m *mainLeg) looks() bool {
	return m.rules.firstToken == FirstTokenHold && m.scan != nil && m.scan.Stream && !m.passing.on && !m.way.gateway
}

// readsFirst notes that the answer whose head has come shows its first events to the
// main leg.
func (m *mainLeg) readsFirst(ev *event) {
	m.first.reads = m.answer.sent && !m.passing.on && !ev.endOfStream && isEventStream(ev.headers.ContentType)
}

// holds reports whether decode's head waits: for prefill to be well, or for the first
// token.
func (m *mainLeg) holds() bool {
	if m.first.seen != "" {
		return false // no other answer will come
	}
	return m.rules.hold && m.waitsForPrefill() || m.first.reads && m.rules.firstToken == FirstTokenHold && !m.way.plain
}

// onFirstPiece reads a piece of the answer.
func (m *mainLeg) onFirstPiece(now time.Time, body []byte, last bool) {
	if !m.first.reads {
		return
	}
	found := m.first.read.Read(body, last)
	if found == openai.FoundNothing {
		return
	}
	m.first.reads = false
	m.emit(effect{op: opFound, found: found})
	if found == openai.FoundError || found == openai.FoundEnd {
		m.onFound(now, sightOfEvents(found, m.first.read.Status()), false)
	}
	m.first.read = openai.FirstEvents{}
}

// onFound takes the word that decode's first events do not serve the request. While
// none of them has gone to the client a fresh attempt may do better; else they go on:
// the worker's own words say more than ours.
func (m *mainLeg) onFound(now time.Time, seen blame.Sight, odd bool) {
	if m.plan == nil || m.first.seen != "" {
		m.emit(effect{op: opPass})
		return
	}
	if m.phase == mainRouted { // the head has not come here
		m.status = "200"
		m.handover.sent = false
		m.taken()
	}
	m.answerBy, m.suspectAt = time.Time{}, time.Time{}
	if seen == blame.Errored || seen == blame.Empty {
		seen = m.unfetched(seen)
	}
	f := failureOfDecode(seen)
	if m.phase == mainRouted || m.phase == mainHolding {
		if m.decodeFailed(now, seen, odd, &f) {
			return
		}
	} else if !m.finished {
		m.charge(now, blame.Of(m.decodeLeg(), seen), m.plan.decode, false)
	}
	m.first.seen = seen
	m.emit(effect{op: opPass})
	if m.phase == mainHolding {
		m.relay(now)
	}
}

// unfetched is what an error, or nothing, says of a decode that needs prefill's KV: one
// that cannot reach prefill says so while prefill still waits for it.
func (m *mainLeg) unfetched(s blame.Sight) blame.Sight {
	if m.plan.disaggregated {
		return blame.Unfetched
	}
	return s
}

// sightOfStart is what the head of an answer has said, or its first events after it.
func (m *mainLeg) sightOfStart() blame.Sight {
	if m.first.seen != "" {
		return m.first.seen
	}
	if m.status == "" { // it broke off before its head came here
		return blame.Served
	}
	return m.sightOfHead()
}

// statusOf reads a status; 0 is none.
func statusOf(s string) int {
	code, _ := strconv.Atoi(s)
	return code
}
