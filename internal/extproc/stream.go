package extproc

import (
	"runtime/debug"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
	"github.com/seed-60ae5743/baton/internal/wire"
)

// stream is what all kinds of streams have: the gRPC stream, the actor that handles one
// event at a time, and the timer.
type stream struct {
	srv  *Server
	grpc *wire.Stream
	act  actor

	over     chan struct{} // closed once the gRPC handler may return
	overOnce sync.Once

	// Owned by the goroutine that handles an event.
	fullDuplex   bool
	answerDuplex bool
	deaf         bool // nothing may be sent: the stream is over, left, or ended by an ImmediateResponse
	broken       bool // a panic ended this stream
	timer        *time.Timer
	timerAt      time.Time
}

// finishStream lets the gRPC handler return with OK.
func (w *stream) finishStream() { w.overOnce.Do(func() { close(w.over) }) }

// send sends one message. A send fails only if the stream has ended. The reader sees that
// end, too, and posts leg.EventClosed, so send returns no error.
func (w *stream) send(r wire.Reply) {
	if w.deaf {
		r.Drop()
		return
	}
	if err := w.grpc.Send(r); err != nil {
		w.deaf = true
	}
}

// ended reports whether the stream has ended. That is known here before the reader reads it.
func (w *stream) ended() bool { return w.grpc.Context().Err() != nil }

// readAside has another goroutine read the stream, and returns when the stream is over, or
// when the plugin leaves it.
func (w *stream) readAside() error {
	if !w.srv.readers.run(w.read) {
		return status.Error(codes.Unavailable, "this process is about to end")
	}
	<-w.over
	return nil
}

// read is the only reader of the stream. It posts each message and, at last,
// leg.EventClosed.
func (w *stream) read() {
	defer w.finishStream()
	var m wire.Message
	for {
		if err := w.grpc.Recv(&m); err != nil {
			// Envoy half-closes or cancels a stream, both at an answer's end and
			// when the client vanishes (measured on 1.40). Only the access log
			// tells how the answer ended.
			w.act.post(just(leg.Event{Kind: leg.EventClosed}))
			return
		}
		if m.Kind != 0 { // 0: a message about flow control, from a newer proxy
			w.act.post(noticeOf(&m))
		}
	}
}

// arm sets the timer to at; the zero time stops the timer. If fired is true, the timer has
// just gone off. Then arm sets it again, also to the same time: two times of the machine may
// be due at once, and each event handles one.
func (w *stream) arm(at time.Time, fire func(), fired bool) {
	if at.Equal(w.timerAt) && !fired {
		return
	}
	w.timerAt = at
	switch {
	case at.IsZero():
		if w.timer != nil {
			w.timer.Stop()
		}
	case w.timer == nil:
		w.timer = time.AfterFunc(time.Until(at), fire)
	default:
		w.timer.Reset(time.Until(at))
	}
}

// recovered ends this stream, and no other, after a panic in its machine. The answer gets the
// headers in set, too.
func (w *stream) recovered(where string, r any, set ...wire.Header) {
	w.broken = true
	w.srv.panicked(where, r)
	im := leg.ImmediateOf(&leg.FailInternal, "", false)
	im.Headers = append(im.Headers, set...)
	w.sendImmediate(im)
	w.finishStream()
}

// panicked counts and logs a recovered panic.
func (srv *Server) panicked(where string, r any) {
	srv.cfg.Telemetry.Panic(where)
	srv.log.Error("a stream panicked; it was ended, and the others go on: a fault of Baton's; please report it with the stack", logkey.Leg, where, logkey.Panic, r, logkey.Stack, string(debug.Stack()))
}

// sendRoute replies to the end of the request, in the body mode of the stream. It returns false
// if the hand-off in the body has become too old: then decode cannot have the whole of it, since
// the last message was not sent. Each message is preceded by a look at the clock, because the
// process may have stood still since the machine's.
func (w *stream) sendRoute(e *leg.Effect) (whole bool) {
	r := wire.Route{Set: e.Set, Remove: e.Remove, Body: e.Body, Token: e.Token, NewRoute: e.NewRoute}
	whole = true
	send := func(r wire.Reply) {
		whole = whole && !e.Late(time.Now())
		if whole {
			w.send(r)
		} else {
			r.Drop()
		}
	}
	if !w.fullDuplex {
		send(w.srv.replies.Route(&r))
		return whole
	}
	send(w.srv.replies.RouteHeaders(&r))
	w.srv.replies.Chunks(wire.RequestBody, e.Body, !e.Trailers, send)
	if e.Trailers {
		send(wire.Continue(wire.RequestTrailers))
	}
	return whole
}

// sendContinue lets a message pass. In full duplex, this means to send the body back.
func (w *stream) sendContinue(e *leg.Effect) {
	switch {
	case e.Of == wire.ResponseHeaders:
		w.send(wire.Relay(e.Of, e.Set, nil, ""))
	case e.Of == wire.ResponseBody && w.answerDuplex, e.Of == wire.RequestBody && w.fullDuplex:
		w.srv.replies.Chunks(e.Of, e.Body, e.EndOfStream, w.send)
	default:
		w.srv.rules.Buffers.Return(e.Body)
		w.send(wire.Continue(e.Of))
	}
}

// sendImmediate ends the stream with an answer of the plugin's own.
func (w *stream) sendImmediate(im *wire.Immediate) {
	w.send(im.Reply())
	w.deaf = true
}
