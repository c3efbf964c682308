package leg

import (
	"bytes"
	"strconv"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/wire"
)

// Answer is what the machine knows of decode's answer, and of how the answer comes to the
// client.
type Answer struct {
	carriage carriage
	foreign  bool   // Envoy or another filter made the answer, before decode was asked
	status   string // of the answer's head; "": the head has not come
	sent     sent
	ending   ending

	reading   bool               // first events are looked for here: the pieces come through the main leg, and no token has come
	events    openai.FirstEvents // reads those first events
	unserved  blame.Sight        // what the first events say, if they do not serve the request; else ""
	follows   bool               // it is a stream of events that is read here, and its first events serve the request
	later     openai.LaterEvents // reads what comes behind the first token
	failed    bool               // what has passed says that the engine has failed
	Relayed   time.Time          // when the head went to the client
	held      []piece
	heldBytes int
	streams   bool   // it is a stream of events
	passed    uint64 // bytes that have gone to the client through the plugin
}

// carriage is how an answer comes to the client.
type carriage uint8

const (
	pastUs   carriage = iota // Envoy alone carries the body
	inPieces                 // Envoy sends each piece of the body to the plugin, which has to send it back
	inDuplex                 // the same, in full duplex
	asEvents                 // the same, for an event stream: the plugin may add an event
)

// carriageOf returns how the answer will come, as the first message of the stream says.
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

// sent says what was sent back of the answer's body.
type sent uint8

const (
	sentNothing sent = iota
	sentEvents       // whole events, as an empty line ends each: another can be added
	sentLines        // whole lines
	sentPart         // the last line is not whole
)

// ending says whether the end of an answer has gone to the client, and how.
type ending uint8

const (
	goesOn ending = iota
	endedWithHead
	ended
)

// piece is a part of an answer's body, or the answer's trailers.
type piece struct {
	of   wire.Kind
	body []byte
	last bool
}

// pieceOf returns the piece of an answer that a message carries. False means that the
// message carries none.
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

// head notes the head of decode's answer.
func (a *Answer) head(ev *Event) {
	a.status, a.ending = ev.Headers.Status, goesOn
	if ev.EndOfStream {
		a.ending = endedWithHead
	}
}

// serves notes that the head of the answer serves the request so far. The flag reads says
// that the answer's first events are to be read. Those of an answer with an encoding cannot
// be, and no event can be added to them.
func (a *Answer) serves(ev *Event, reads bool) {
	events := IsEventStream(ev.Headers.ContentType) && !ev.Headers.Encoded
	a.streams = events && !ev.EndOfStream
	a.reading = a.throughUs() && reads && a.streams
	a.follows = a.reading
	if a.carriage == inDuplex && events {
		a.carriage = asEvents
	}
}

// HeadCame reports whether the head of decode's answer has come, to this stream or to the
// one that reads the first events.
func (a *Answer) HeadCame() bool { return a.status != "" }

// Code returns the status of decode's answer, or 0 if no head has come.
func (a *Answer) Code() int { return StatusOf(a.status) }

// said tells what the leg of the worker that answers has met.
func (a *Answer) said(q *Request, what string) string {
	return said(a.Code(), q.Headers.Path, what)
}

// throughUs reports whether Envoy sends the answer's body to the plugin.
func (a *Answer) throughUs() bool { return a.carriage != pastUs }

// whole reports whether the answer's end has gone to the client.
func (a *Answer) whole() bool { return a.ending != goesOn }

// end returns how the answer ended, if its stream is over and no access log tells.
func (a *Answer) end() blame.Sight {
	switch {
	case a.throughUs() && !a.whole():
		return blame.Unfinished
	case a.throughUs() && a.sent == sentNothing:
		return blame.Empty
	default:
		return blame.Served
	}
}

// unlogged returns how the answer ended, if no access log has come in time. The flag
// elsewhere says that Envoy may have sent the log to another replica, which cannot know
// whose it is.
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

// sightOfHead returns what the head of decode's answer says. A 2xx answer that ends with
// its head is empty; only a request that passes ([Request.Passes]) may get one.
func (a *Answer) sightOfHead(passes bool) blame.Sight {
	if a.Code()/100 == 2 && a.ending == endedWithHead && !passes {
		return blame.Empty
	}
	return SightOfStatus(a.Code())
}

// sightOfStart returns what the beginning of the answer says: its first events if they do
// not serve the request, else its head.
func (a *Answer) sightOfStart(passes bool) blame.Sight {
	if a.unserved != "" {
		return a.unserved
	}
	if !a.HeadCame() { // the answer broke off before its head came
		return blame.Served
	}
	return a.sightOfHead(passes)
}

// read looks for first events in a piece of the answer until it has found something, and for what
// says that the engine has failed.
func (a *Answer) read(p piece) openai.Finding {
	found := openai.FoundNothing
	if a.reading {
		found = a.events.Read(p.body, p.last)
		a.reading = found == openai.FoundNothing
		a.follows = found != openai.FoundError && found != openai.FoundEnd
	}
	a.failed = a.later.Failed(p.body, a.follows && !a.reading) || a.failed
	return found
}

// maxHeldAnswer is how many bytes of an answer may be held. A decode that writes more has
// got what it needs from prefill.
const maxHeldAnswer = 1 << 20

// pieceCost is the memory of a held piece in addition to its buffer, in bytes.
const pieceCost = 64

// hold keeps a piece until the head has gone to the client.
func (a *Answer) hold(p piece) {
	a.held, a.heldBytes = append(a.held, p), a.heldBytes+cap(p.body)+pieceCost
}

// full reports whether more than maxHeldAnswer is held.
func (a *Answer) full() bool { return a.heldBytes > maxHeldAnswer }

// pass returns the effect that sends a piece on to the client.
func (a *Answer) pass(p piece) Effect {
	if p.last && a.ending == goesOn {
		a.ending = ended
	}
	if n := len(p.body); n > 0 && p.of == wire.ResponseBody {
		a.passed += uint64(n)
		switch {
		case bytes.HasSuffix(p.body, []byte("\n\n")):
			a.sent = sentEvents
		case p.body[n-1] == '\n':
			a.sent = sentLines
		default:
			a.sent = sentPart
		}
	}
	return Effect{Op: OpContinue, Of: p.of, Body: p.body, EndOfStream: p.last}
}

// release returns the held pieces, which are to follow the head, and holds none from then
// on.
func (a *Answer) release() []piece {
	held := a.held
	a.held, a.heldBytes = nil, 0
	return held
}

// cutWith returns what ends an event stream on the path that is cut: an event with the error f. It is
// no part of what was sent before: an empty line more says nothing.
func (a *Answer) cutWith(f *Failure, path string) []byte {
	var event []byte
	switch a.sent {
	case sentPart:
		event = append(event, "\n\n"...)
	case sentLines:
		event = append(event, '\n')
	case sentNothing, sentEvents:
	}
	return openai.AppendSSEErrorAt(event, path, f.Status, f.Kind, f.Code, f.Message, f.Param)
}

// SightOfStatus returns the sight that the status of a worker's answer gives.
func SightOfStatus(code int) blame.Sight {
	switch {
	case code/100 == 2:
		return blame.Served
	case code == 408 || code == 429:
		return blame.Busy
	case code/100 == 4:
		return blame.Rejected
	case code/100 == 3:
		return blame.Redirected
	default:
		return blame.Errored
	}
}

// SightOfEvents returns the sight of a worker whose first events do not serve the
// request. status is what an error event names.
func SightOfEvents(found openai.Finding, status int) blame.Sight {
	if found == openai.FoundEnd {
		return blame.Empty
	}
	return SightOfError(status)
}

// SightOfError returns the sight that the code of an error event gives. Code 0 means that
// the event has none.
func SightOfError(code int) blame.Sight {
	s := SightOfStatus(code)
	if s == blame.Served || s == blame.Redirected { // no error has such a code
		return blame.Errored
	}
	return s
}

// StatusOf parses a status. It returns 0 for anything else.
func StatusOf(s string) int {
	code, _ := strconv.Atoi(s)
	return code
}

// IsEventStream reports whether a content type is that of an event stream.
func IsEventStream(contentType string) bool {
	const name = "text/event-stream"
	return len(contentType) >= len(name) && strings.EqualFold(contentType[:len(name)], name)
}
