package extproc

import (
	"cmp"
	"sync/atomic"
	"time"

	"github.com/seed-60ae5743/baton/internal/wire"
)

// answered is what a main leg knows of its answer beside the machine. Its fields are owned by the
// goroutine that handles an event, unless they say otherwise.
type answered struct {
	servedBy   string   // endpoint that has served, as the data plane names it
	told       string   // the same, but only from the protocol's metadata
	strange    []string // headers of the answer that its worker may not set
	failed     failedHead
	pass       func()      // lets the answer go on after its first events; nil: no stream waits
	looked     atomic.Bool // a stream of this process reads the first events; written by that stream
	tokenAt    time.Time   // when this stream read the first events; zero: it did not
	heldBlocks int64       // KV blocks of decode's rank when the answer began, its own included
	counts     tokenCounts // as engines tell them
	still      still
	sent       sent
	endedAt    time.Time // when the gRPC stream ended, if an answer was on its way then; else zero
}

// by notes which endpoint has served, and returns it; "": none is named.
func (a *answered) by(h *wire.Hints) string {
	a.told, a.servedBy = h.Served, cmp.Or(h.Served, h.Upstream)
	return a.servedBy
}

// began notes how many blocks decode's rank holds as the answer begins.
func (a *answered) began(held int64) { a.heldBlocks = held }

// head notes which headers of the answer its worker may not set.
func (a *answered) head(strange []string) { a.strange = strange }

// found notes how the answer goes on after its first events.
func (a *answered) found(pass func()) { a.pass = pass }

// firstEvents notes when the first events were read here.
func (a *answered) firstEvents(now time.Time) { a.tokenAt = now }

// goOn lets the answer go on after its first events.
func (a *answered) goOn() {
	if a.pass != nil {
		a.pass()
	}
}

// logged notes when Envoy sent the answer on.
func (a *answered) logged(at sent) { a.sent = at }

// ended notes when the gRPC stream ended while an answer was on its way.
func (a *answered) ended(now time.Time) { a.endedAt = now }

// end returns when the answer ended, of which the access log tells later.
func (a *answered) end(now time.Time) time.Time {
	if a.endedAt.IsZero() {
		return now
	}
	return a.endedAt
}
