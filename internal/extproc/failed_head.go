package extproc

import (
	"encoding/base64"
	"time"

	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/pkg/prefill"
)

// A head of decode's answer that does not serve the request waits here for its body, in which
// the worker says why. The machine gets both as one event. Until then, to the machine, the
// head has not come. Where the first events are read, that stream has read the body already.

// failedHead is such a head. The zero value: none waits.
type failedHead struct {
	notice *notice
	whole  bool // Envoy sends the body whole, and waits for one reply to both
	told   bool // the head has prefill.HeaderError
}

// awaits takes a head that is to wait. Its body follows at once, since its length was said.
// Where bodies come in any case, a head waits only if a fresh attempt may follow: else the
// machine reads the worker's words as they pass.
func (f *failedHead) awaits(s *mainStream, ev *notice) bool {
	if ev.Kind != leg.EventResponseHeaders || !s.m.Awaits(leg.EventResponseHeaders) || s.filter.Plain() {
		return false
	}
	if ev.Headers.Error != "" {
		f.told = true
		ev.Error, _ = base64.StdEncoding.DecodeString(ev.Headers.Error)
		return false
	}
	switch {
	case ev.EndOfStream || !ev.Headers.SaysWhy() || !s.m.Request().Compares():
		return false
	case s.answerDuplex:
		s.send(wire.Extend(leg.Extension(time.Until(s.m.Request().Deadline))))
	case s.filter.shows && !s.fullDuplex:
		s.send(wire.Show())
		f.whole = true
	default:
		return false
	}
	f.notice = ev
	return true
}

// followedBy gives the machine a head that has waited, since its body has come or the stream
// is over. It returns whether nothing is left to do about ev.
func (f *failedHead) followedBy(s *mainStream, ev *notice) bool {
	head := f.notice
	if head == nil || ev.Kind != leg.EventResponseBody && ev.Kind != leg.EventResponseTrailers && ev.Kind != leg.EventClosed {
		return false
	}
	f.notice = nil
	if ev.Kind == leg.EventResponseBody {
		head.Error = ev.Body
	}
	s.step(head)
	if ev.Kind != leg.EventResponseBody || !f.whole {
		return false
	}
	s.srv.rules.Buffers.Return(ev.Body)
	return true
}

// relay lets decode's head go on, after such a wait or without one.
func (f *failedHead) relay(set []wire.Header, remove []string, gap string) wire.Reply {
	of := wire.ResponseHeaders
	if f.whole {
		of = wire.ResponseBody
	}
	if f.told {
		remove = append(remove, prefill.HeaderError)
	}
	return wire.Relay(of, set, remove, gap)
}
