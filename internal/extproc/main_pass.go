package extproc

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/extproc/wire"
	"github.com/seed-60ae5743/baton/internal/openai"
)

// This file is for what passes by: requests on paths that are not read here, and answers
// that a data plane sends through us.

// passing is a request on a path that is not read here: one worker serves it, picked by
// load. Of its body only the model is read, and whether it says what only a router may;
// the rest is as it came. Of its answer nothing is read.
type passing struct {
	on     bool
	bare   bool // headers are all there is
	routed bool // the headers have been answered
}

// piece is a part of a body, or its trailers.
type piece struct {
	of   wire.Kind
	body []byte
	last bool
}

// passes reports whether the request is passed on to one worker: its path is none that
// is read here, and none that an engine is controlled by. Without a body it names no
// model: only a gateway, which wants an endpoint for each request, gets one for it.
func (m *mainLeg) passes(bare bool) bool {
	return m.rules.passOther && (m.way.gateway || !bare) && !openai.Control(m.hdr.Path)
}

func (m *mainLeg) letPass(p piece) {
	if n := len(p.body); n > 0 && p.of == wire.ResponseBody {
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
	p := piece{of: wire.ResponseBody, body: ev.body, last: ev.endOfStream}
	switch ev.kind {
	case evResponseTrailers:
		p = piece{of: wire.ResponseTrailers, last: true}
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
	switch ev.headers.Status {
	case "413":
		f = failBodyTooLarge
	case "408":
		f = failTooSlow
	}
	m.answer.foreign = true
	m.giveUp()
	m.finish(outcomeRefused, &f)
	m.releaseDecode()
	m.emit(effect{op: opContinue, of: wire.ResponseHeaders})
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
	for _, p := range m.answer.held {
		m.rules.buffers.Return(p.body)
	}
	m.answer.held = nil
	m.pieces.drop(m.rules.buffers)
}
