package leg

import (
	"strconv"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/extproc/wire"
	"github.com/seed-60ae5743/baton/internal/openai"
)

// Answer is what has come of decode's answer, and how it comes to the client.
type Answer struct {
	carriage carriage
	foreign  bool   // it was made before us, by Envoy or by another filter
	status   string // of decode's head; empty: it has not come
	ending   ending
	some     bool // bytes of its body have been here
	midEvent bool // what was sent back last does not end with a line

	reading   bool               // its pieces come through the main leg, and no token has come
	events    openai.FirstEvents // what has come of them
	unserved  blame.Sight        // its first events do not serve the request; empty: nothing says so
	Relayed   time.Time          // when its head went to the client
	held      []piece
	heldBytes int
}

// carriage is how an answer comes to the client.
type carriage uint8

const (
	pastUs   carriage = iota // Envoy alone carries its body
	inPieces                 // each piece of its body is sent to us, and has to be sent back
	inDuplex                 // the same in full duplex
	asEvents                 // … where more than that may be sent: it is an answer of events
)

// carriageOf is what the first message of a stream says of it.
func carriageOf(ev *Event) carriage {
	switch {
	case ev.AnswerDuplex:
		return inDuplex
	case ev.AnswerBodies:
		return inPieces
	default:
		return pastUs
	}
}

// ending says whether the end of an answer has gone to the client.
type ending uint8

const (
	goesOn ending = iota
	endedWithHead
	ended
)

// piece is a part of a body, or its trailers.
type piece struct {
	of   wire.Kind
	body []byte
	last bool
}

// pieceOf is the piece of an answer that a message is; false: it is none.
func pieceOf(ev *Event) (piece, bool) {
	switch ev.Kind {
	case EventResponseBody:
		return piece{of: wire.ResponseBody, body: ev.Body, last: ev.EndOfStream}, true
	case EventResponseTrailers:
		return piece{of: wire.ResponseTrailers, last: true}, true
	default:
		return piece{}, false
	}
}

// head takes decode's head.
func (a *Answer) head(ev *Event) {
	a.status, a.ending = ev.Headers.Status, goesOn
	if ev.EndOfStream {
		a.ending = endedWithHead
	}
}

// serves takes the head of an answer that serves the request so far. reads says that its
// first events are to be read.
func (a *Answer) serves(ev *Event, reads bool) {
	events := IsEventStream(ev.Headers.ContentType)
	a.reading = a.throughUs() && reads && !ev.EndOfStream && events
	if a.carriage == inDuplex && events {
		a.carriage = asEvents
	}
}

// HeadCame reports whether decode's head has been here.
func (a *Answer) HeadCame() bool { return a.status != "" }

// Code is the status of decode's answer; 0: none.
func (a *Answer) Code() int { return StatusOf(a.status) }

// throughUs reports whether the answer's body is sent to us.
func (a *Answer) throughUs() bool { return a.carriage != pastUs }

// whole reports whether the answer's end has gone to the client.
func (a *Answer) whole() bool { return a.ending != goesOn }

// end is how an answer ended of which no access log tells.
func (a *Answer) end() blame.Sight {
	switch {
	case a.throughUs() && !a.whole():
		return blame.Unfinished
	case a.throughUs() && !a.some:
		return blame.Empty
	default:
		return blame.Served
	}
}

// unlogged is what is said of an answer's end that no access log told. elsewhere says that
// Envoy may have told another replica, which cannot know whose it is.
func (a *Answer) unlogged(elsewhere bool) blame.Sight {
	switch {
	case !a.HeadCame():
		return blame.ClientLeft
	case elsewhere:
		return a.end()
	default:
		return blame.Unfinished
	}
}

// sightOfHead reads decode's head. An answer that ends with it is empty, unless it is one
// that passes.
func (a *Answer) sightOfHead(passes bool) blame.Sight {
	if a.Code()/100 == 2 && a.ending == endedWithHead && !passes {
		return blame.Empty
	}
	return SightOfStatus(a.Code())
}

// sightOfStart is what the head of an answer has said, or its first events after it.
func (a *Answer) sightOfStart(passes bool) blame.Sight {
	if a.unserved != "" {
		return a.unserved
	}
	if !a.HeadCame() { // it broke off before its head came here
		return blame.Served
	}
	return a.sightOfHead(passes)
}

// read reads the first events in a piece of the answer.
func (a *Answer) read(p piece) openai.Finding {
	if !a.reading {
		return openai.FoundNothing
	}
	found := a.events.Read(p.body, p.last)
	a.reading = found == openai.FoundNothing
	return found
}

// maxHeldAnswer is how much of an answer waits for prefill to be well. A decode
// that writes more has what it needs of prefill.
const maxHeldAnswer = 1 << 20

// pieceCost is what a piece takes beside its buffer.
const pieceCost = 64

// hold keeps a piece until the head has gone to the client.
func (a *Answer) hold(p piece) {
	a.held, a.heldBytes = append(a.held, p), a.heldBytes+cap(p.body)+pieceCost
}

// full reports whether no more may be held.
func (a *Answer) full() bool { return a.heldBytes > maxHeldAnswer }

// pass lets a piece go to the client.
func (a *Answer) pass(p piece) Effect {
	if p.last && a.ending == goesOn {
		a.ending = ended
	}
	if n := len(p.body); n > 0 && p.of == wire.ResponseBody {
		a.midEvent = p.body[n-1] != '\n'
	}
	return Effect{Op: OpContinue, Of: p.of, Body: p.body, EndOfStream: p.last}
}

// release gives out what is held, to follow the head.
func (a *Answer) release() []piece {
	held := a.held
	a.held, a.heldBytes = nil, 0
	return held
}

// cutWith is the end of an answer of events with an error in it.
func (a *Answer) cutWith(f *Failure) []byte {
	var event []byte
	if a.midEvent {
		event = append(event, "\n\n"...)
	}
	return openai.AppendSSEError(event, f.Status, f.Kind, f.Code, f.Message, f.Param)
}

// SightOfStatus is what the status of a worker's answer says.
func SightOfStatus(code int) blame.Sight {
	switch {
	case code/100 == 2:
		return blame.Served
	case code == 408 || code == 429:
		return blame.Busy
	case code/100 == 4:
		return blame.Rejected
	default:
		return blame.Errored
	}
}

// SightOfEvents is what was seen of a worker whose first events say that they do not
// serve the request.
func SightOfEvents(found openai.Finding, status int) blame.Sight {
	if found == openai.FoundEnd {
		return blame.Empty
	}
	return SightOfError(status)
}

// SightOfError is what an error event says, by its code; 0: it has none.
func SightOfError(code int) blame.Sight {
	s := SightOfStatus(code)
	if s != blame.Served {
		return s
	}
	return blame.Errored
}

// StatusOf reads a status; 0 is none.
func StatusOf(s string) int {
	code, _ := strconv.Atoi(s)
	return code
}

// IsEventStream reports whether a content type is that of an answer of events.
func IsEventStream(contentType string) bool {
	const name = "text/event-stream"
	return len(contentType) >= len(name) && strings.EqualFold(contentType[:len(name)], name)
}
