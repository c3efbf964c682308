package extproc

import (
	"runtime/debug"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/internal/extproc/wire"
	"github.com/seed-60ae5743/baton/internal/leg"
)

// stream is the part that all kinds of stream share: the gRPC stream, the
// one-at-a-time inbox and the timer.
type stream struct {
	srv  *Server
	grpc *wire.Stream
	act  actor

	over     chan struct{} // closed once the gRPC handler may return
	overOnce sync.Once

	// Owned by whoever handles an event.
	fullDuplex   bool
	answerDuplex bool
	deaf         bool // the gRPC stream is over, or an ImmediateResponse ended it
	broken       bool // a panic ended this stream
	timer        *time.Timer
	timerAt      time.Time
}

// finishStream lets the gRPC handler return with OK.
func (w *stream) finishStream() { w.overOnce.Do(func() { close(w.over) }) }

// send sends one message. A failed send is the stream's end, of which the
// reader hears too: there is nothing more to do here.
func (w *stream) send(r wire.Reply) {
	if w.deaf {
		r.Drop()
		return
	}
	if err := w.grpc.Send(r); err != nil {
		w.deaf = true
	}
}

// read is the only reader of the stream. It posts each message and, at last,
// leg.EventClosed.
func (w *stream) read() {
	defer w.srv.readers.Done()
	defer w.finishStream()
	var m wire.Message
	for {
		if err := w.grpc.Recv(&m); err != nil {
			// Envoy ends a stream by half-closing or by cancelling it, at an
			// answer's end as when the client vanishes (measured on 1.40): how it
			// ended, only the access log tells.
			w.act.post(just(leg.Event{Kind: leg.EventClosed}))
			return
		}
		if m.Kind != 0 { // else a flow-control note of newer proxies
			w.act.post(noticeOf(&m))
		}
	}
}

// arm sets the timer to at, or stops it. fired says that it has gone off: then it is set
// anew, though to the same time, for of two clocks that were due one has still to go off.
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

// recovered ends this stream, and only this one, after a panic in its machine. The
// answer carries the headers besides.
func (w *stream) recovered(where string, r any, set ...wire.Header) {
	w.broken = true
	w.srv.panicked(where, r)
	im := leg.ImmediateOf(&leg.FailInternal, false)
	im.Headers = append(im.Headers, set...)
	w.sendImmediate(im)
	w.finishStream()
}

// panicked counts and logs a recovered panic.
func (srv *Server) panicked(where string, r any) {
	srv.cfg.Telemetry.Panic(where)
	srv.log.Error("a stream panicked; it was ended", "leg", where, "panic", r, "stack", string(debug.Stack()))
}

// sendRoute answers the request's end in the stream's own mode.
func (w *stream) sendRoute(e *leg.Effect) {
	r := wire.Route{Set: e.Set, Remove: e.Remove, Body: e.Body, Token: e.Token, NewRoute: e.NewRoute}
	if !w.fullDuplex {
		w.send(w.srv.replies.Route(&r))
		return
	}
	w.send(w.srv.replies.RouteHeaders(&r))
	w.srv.replies.Chunks(wire.RequestBody, e.Body, !e.Trailers, w.send)
	if e.Trailers {
		w.send(wire.Continue(wire.RequestTrailers))
	}
}

// sendContinue lets a message pass. A full-duplex body must be sent back.
func (w *stream) sendContinue(e *leg.Effect) {
	switch {
	case e.Of == wire.ResponseHeaders:
		w.send(wire.Relay(e.Set, nil))
	case e.Of == wire.ResponseBody && w.answerDuplex, e.Of == wire.RequestBody && w.fullDuplex:
		w.srv.replies.Chunks(e.Of, e.Body, e.EndOfStream, w.send)
	default:
		w.srv.rules.Buffers.Return(e.Body)
		w.send(wire.Continue(e.Of))
	}
}

// sendImmediate ends the exchange with an answer of ours.
func (w *stream) sendImmediate(im *wire.Immediate) {
	w.send(im.Reply())
	w.deaf = true
}
