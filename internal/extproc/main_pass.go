package extproc

import (
	"slices"
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
)

// This file is for what passes by: requests of which only the headers are looked
// at, and answers that a data plane sends through us.

// passing is a request whose body is of no interest. The endpoint picker protocol
// wants an endpoint for each request, whatever its path; what is not generation
// is served by one worker, picked by load.
type passing struct {
	on, bare bool    // bare: headers are all there is
	routed   bool    // the headers have been answered
	ended    bool    // so has the body's end; Envoy may repeat it (envoy #46237)
	pieces   []piece // of the body, that came before
}

// underway reports whether more of the request is still to come through us.
func (p *passing) underway() bool { return p.on && !p.bare && !p.ended }

// piece is a part of a body, or its trailers.
type piece struct {
	of   message
	body []byte
	last bool
}

// passes reports whether only the headers of the request matter.
func (m *mainLeg) passes(known bool) bool { return m.way.gateway && !known }

// onPassing takes a piece of a passing request.
func (m *mainLeg) onPassing(ev *event) bool {
	if !m.passing.on || ev.kind != evRequestBody && ev.kind != evRequestTrailers {
		return false
	}
	p := piece{of: ofRequestBody, body: ev.body, last: ev.endOfStream}
	if ev.kind == evRequestTrailers {
		p.of, p.last = ofRequestTrailers, true
	}
	if m.passing.ended {
		m.rules.buffers.put(p.body)
		return true
	}
	m.passing.ended = p.last
	if m.passing.routed {
		m.letPass(p)
		m.maybeLeave()
	} else {
		m.passing.pieces = append(m.passing.pieces, p)
	}
	return true
}

func (m *mainLeg) letPass(p piece) {
	if n := len(p.body); n > 0 && p.of == ofResponseBody {
		m.answer.midEvent = p.body[n-1] != '\n'
	}
	m.emit(effect{op: opContinue, of: p.of, body: p.body, endOfStream: p.last})
}

// pass routes a request by its headers.
func (m *mainLeg) pass(now time.Time) {
	m.phase = mainRouted
	e := effect{op: opRouteHeaders, set: m.routeHeaders(now)}
	e.remove = m.leftover(e.set)
	m.emit(e)
	m.passing.routed = true
	for _, p := range m.passing.pieces {
		m.letPass(p)
	}
	m.passing.pieces = nil
}

// answerPath is how an answer comes to the client: past us, or through us where
// the filter sends us its body.
type answerPath struct {
	sent      bool // its body is sent to us: each piece has to be sent back
	duplex    bool // in full duplex
	streams   bool // and more than that may be: it is an answer of events, in full duplex
	midEvent  bool // what was sent back last does not end with a line
	headAlone bool // it ended with its head
	some      bool // bytes of its body have been here
	whole     bool // its end has been here
	foreign   bool // it was made before us, by Envoy or by another filter
	held      []piece
	heldBytes int
}

// end is how an answer ended of which no access log tells.
func (a *answerPath) end() blame.Sight {
	switch {
	case a.sent && !a.whole:
		return blame.Unfinished
	case a.sent && !a.some:
		return blame.Empty
	default:
		return blame.Served
	}
}

// maxHeldAnswer is how much of an answer waits for prefill to be well. A decode
// that writes more has what it needs of prefill.
const maxHeldAnswer = 1 << 20

// pieceCost is what a piece takes beside its buffer.
const pieceCost = 64

// onAnswerPiece takes a piece of an answer whose headers have come.
func (m *mainLeg) onAnswerPiece(now time.Time, ev *event) bool {
	p := piece{of: ofResponseBody, body: ev.body, last: ev.endOfStream}
	switch ev.kind {
	case evResponseTrailers:
		p = piece{of: ofResponseTrailers, last: true}
	case evResponseBody:
	default:
		return false
	}
	a := &m.answer
	a.some = a.some || len(p.body) > 0
	if m.phase == mainStreaming || a.foreign {
		m.onFirstPiece(now, p.body, p.last)
		a.whole = a.whole || p.last
		m.letPass(p)
		return true
	}
	a.held, a.heldBytes = append(a.held, p), a.heldBytes+cap(p.body)+pieceCost
	m.onFirstPiece(now, p.body, p.last)
	if m.phase == mainHolding && (a.heldBytes > maxHeldAnswer || !m.holds()) {
		m.relay(now)
	}
	return true
}

// onProxyRefusal takes an answer that Envoy or a filter before ours gives before
// there is a decode to answer: the body is over a limit, or all of it too slow. It
// goes to the client as it is.
func (m *mainLeg) onProxyRefusal(ev *event) {
	f := failProxy
	switch ev.headers.status {
	case "413":
		f = failBodyTooLarge
	case "408":
		f = failTooSlow
	}
	m.answer.foreign = true
	m.giveUp()
	m.finish(outcomeRefused, &f)
	m.releaseDecode()
	m.emit(effect{op: opContinue, of: ofResponseHeaders})
}

// letAnswerPass lets what was held follow the headers.
func (m *mainLeg) letAnswerPass() {
	for _, p := range m.answer.held {
		m.answer.whole = m.answer.whole || p.last
		m.letPass(p)
	}
	m.answer.held, m.answer.heldBytes = nil, 0
}

// dropPieces forgets what is held of bodies that go nowhere.
func (m *mainLeg) dropPieces() {
	for _, p := range slices.Concat(m.answer.held, m.passing.pieces) {
		m.rules.buffers.put(p.body)
	}
	m.answer.held, m.passing.pieces = nil, nil
	m.pieces.drop(m.rules.buffers)
}
