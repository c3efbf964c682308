package extproc

import (
	"runtime/debug"
	"sync"
	"time"

	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
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
	fullDuplex bool
	deaf       bool // the gRPC stream is over, or an ImmediateResponse ended it
	broken     bool // a panic ended this stream
	timer      *time.Timer
	timerAt    time.Time
}

// finishStream lets the gRPC handler return with OK.
func (w *wire) finishStream() { w.overOnce.Do(func() { close(w.over) }) }

// send sends one message. A failed send is the stream's end, of which the
// reader hears too: there is nothing more to do here.
func (w *wire) send(r *extprocv3.ProcessingResponse) {
	if w.deaf {
		return
	}
	if err := w.grpc.Send(r); err != nil {
		w.deaf = true
	}
}

// read is the only reader of the stream. It posts each message and, at last,
// evClosed.
func (w *wire) read() {
	defer w.srv.readers.Done()
	defer w.finishStream()
	first := true
	for {
		req, err := w.grpc.Recv()
		if err != nil {
			// Envoy ends a stream by half-closing or by cancelling it, at an
			// answer's end as when the client vanishes (measured on 1.40): how it
			// ended, only the access log tells.
			w.act.post(&event{kind: evClosed})
			return
		}
		ev, ok := eventOf(req, w.srv.cfg.TimeoutHeader)
		if !ok {
			continue // flow-control notes of newer proxies
		}
		if first {
			first = false
			ev.fullDuplex = req.GetProtocolConfig().GetRequestBodyMode() == extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED
		}
		w.act.post(ev)
	}
}

// arm sets the timer to at, or stops it.
func (w *wire) arm(at time.Time, fire func()) {
	if at.Equal(w.timerAt) {
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

// recovered ends this stream, and only this one, after a panic in its machine.
func (w *wire) recovered(where string, r any) {
	w.broken = true
	w.srv.panicked(where, r)
	w.send(immediateResponseOf(immediateOf(&failInternal, false)))
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
	if e.lent {
		defer w.srv.rules.buffers.put(e.body)
	}
	if !w.fullDuplex {
		w.send(bufferedRouteOf(e, w.srv.metadataOf(e.set)))
		return
	}
	w.send(streamedHeadersOf(e, w.srv.metadataOf(e.set)))
	w.sendChunks(false, e.body, !e.trailers)
	if e.trailers {
		w.send(continueOf(ofRequestTrailers))
	}
}

func (w *wire) sendChunks(response bool, body []byte, last bool) {
	for len(body) > chunkBytes {
		w.send(chunkOf(response, body[:chunkBytes], false))
		body = body[chunkBytes:]
	}
	w.send(chunkOf(response, body, last))
}

// sendContinue lets a message pass. A full-duplex body must be sent back.
func (w *wire) sendContinue(e *effect) {
	if w.fullDuplex && e.of == ofResponseBody {
		w.sendChunks(true, e.body, e.endOfStream)
		return
	}
	w.send(continueOf(e.of))
}

// sendImmediate ends the exchange with an answer of ours.
func (w *wire) sendImmediate(im *immediate) {
	w.send(immediateResponseOf(im))
	w.deaf = true
}
