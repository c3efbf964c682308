package extproc

import (
	"runtime/debug"
	"sync"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// wire is the part that both kinds of stream share: the gRPC stream, the
// one-at-a-time inbox and the timer.
type wire struct {
	srv  *Server
	grpc extprocv3.ExternalProcessor_ProcessServer
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
func (w *wire) finishStream() { w.overOnce.Do(func() { close(w.over) }) }

// send sends one message. A failed send is the stream's end, of which the
// reader hears too: there is nothing more to do here.
func (w *wire) send(o *outgoing) {
	if w.deaf {
		if o.body != nil {
			o.body.Free()
		}
		return
	}
	if err := w.grpc.SendMsg(o); err != nil {
		w.deaf = true
	}
}

// sendProto sends one of the rare messages.
func (w *wire) sendProto(r *extprocv3.ProcessingResponse) {
	o, err := protoMessage(r)
	if err != nil {
		panic("extproc: our own message cannot be written: " + err.Error())
	}
	w.send(o)
}

// read is the only reader of the stream. It posts each message and, at last,
// evClosed.
func (w *wire) read() {
	defer w.srv.readers.Done()
	defer w.finishStream()
	for {
		var in incoming
		if err := w.grpc.RecvMsg(&in); err != nil {
			// Envoy ends a stream by half-closing or by cancelling it, at an
			// answer's end as when the client vanishes (measured on 1.40): how it
			// ended, only the access log tells.
			w.act.post(&event{kind: evClosed})
			return
		}
		if in.ev.kind != 0 { // else a flow-control note of newer proxies
			w.act.post(in.ev)
		}
	}
}

// arm sets the timer to at, or stops it. fired says that it has gone off: then it is set
// anew, though to the same time, for of two clocks that were due one has still to go off.
func (w *wire) arm(at time.Time, fire func(), fired bool) {
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
func (w *wire) recovered(where string, r any, set ...kv) {
	w.broken = true
	w.srv.panicked(where, r)
	im := immediateOf(&failInternal, false)
	im.set = append(im.set, set...)
	w.sendProto(immediateResponseOf(im))
	w.deaf = true
	w.finishStream()
}

// panicked counts and logs a recovered panic.
func (srv *Server) panicked(where string, r any) {
	srv.cfg.Telemetry.Panic(where)
	srv.log.Error("a stream panicked; it was ended", "leg", where, "panic", r, "stack", string(debug.Stack()))
}

// sendRoute answers the request's end in the stream's own mode.
func (w *wire) sendRoute(e *effect) {
	x := extrasOf(e, w.srv.metadataOf(e.set))
	if !w.fullDuplex {
		var body mem.Buffer
		if e.body != nil {
			body = w.srv.rules.buffers.lend(e.body)
		}
		w.send(bodyAnswer(e.set, e.remove, body, x))
		return
	}
	w.send(headersAnswer(fieldAnswerRequestHeaders, e.set, e.remove, x))
	w.sendChunks(fieldAnswerRequestBody, e.body, !e.trailers)
	if e.trailers {
		w.sendProto(continueOf(ofRequestTrailers))
	}
}

// sendChunks sends a full-duplex body in pieces of the portable size.
func (w *wire) sendChunks(field protowire.Number, body []byte, last bool) {
	rest := w.srv.rules.buffers.lend(body)
	for rest.Len() > chunkBytes {
		var piece mem.Buffer
		piece, rest = mem.SplitUnsafe(rest, chunkBytes)
		w.send(chunkAnswer(field, piece, false))
	}
	w.send(chunkAnswer(field, rest, last))
}

// sendContinue lets a message pass. A full-duplex body must be sent back.
func (w *wire) sendContinue(e *effect) {
	switch {
	case e.of == ofRequestHeaders:
		w.send(headersAnswer(fieldAnswerRequestHeaders, nil, nil, extras{}))
	case e.of == ofResponseHeaders:
		w.send(headersAnswer(fieldAnswerResponseHeaders, e.set, nil, extras{}))
	case e.of == ofResponseBody && w.answerDuplex:
		w.sendChunks(fieldAnswerResponseBody, e.body, e.endOfStream)
	case e.of == ofRequestBody && w.fullDuplex:
		w.sendChunks(fieldAnswerRequestBody, e.body, e.endOfStream)
	default:
		w.srv.rules.buffers.put(e.body)
		w.sendProto(continueOf(e.of))
	}
}

// sendImmediate ends the exchange with an answer of ours.
func (w *wire) sendImmediate(im *immediate) {
	w.sendProto(immediateResponseOf(im))
	w.deaf = true
}
