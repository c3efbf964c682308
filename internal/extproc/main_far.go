package extproc

import (
	"context"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/internal/budget"
	"github.com/seed-60ae5743/baton/internal/leg"
)

// farLeg is what a main leg knows of its attempt's prefill leg: the stream of a mirrored one, how to
// end one that the plugin sends, and where it runs. Others than the main leg's own goroutine call it.
type farLeg struct {
	// mu guards the fields of this group. No other lock is taken while it is held.
	mu      sync.Mutex
	leg     *prefillStream          // the mirrored leg that has come to this process
	closed  bool                    // a prefill leg that comes is refused
	begun   bool                    // the plugin's own prefill leg has reached Envoy
	carrier carrier                 // the replica at which the leg runs; zero: here, or not known
	stop    context.CancelCauseFunc // ends the plugin's own prefill leg

	// Owned by the goroutine that handles an event.
	span   legSpan      // of a prefill leg that the plugin sends
	body   budget.Share // of bodies in flight: those of the plugin's own legs
	wellAt time.Time    // when prefill was well
}

// attach makes l the prefill leg of this attempt. It returns false if the attempt wants no
// leg any more, or has one already: a leg token is good for one leg.
func (f *farLeg) attach(l *prefillStream) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed || f.leg != nil {
		return false
	}
	f.leg = l
	return true
}

// admit notes that the attempt's own prefill leg has come. It returns false if the
// attempt wants no leg any more, or a leg has come before: a token is good for one.
func (f *farLeg) admit() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed || f.begun {
		return false
	}
	f.begun = true
	return true
}

// detach has legs that come refused.
func (f *farLeg) detach() {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
}

// send notes a leg that the plugin is about to send: what ends it, and its span.
func (f *farLeg) send(stop context.CancelCauseFunc, span legSpan) {
	f.mu.Lock()
	f.stop = stop
	f.mu.Unlock()
	f.span = span
}

// at returns the replica at which the leg runs.
func (f *farLeg) at() carrier {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.carrier
}

func (f *farLeg) carriedBy(at carrier) {
	f.mu.Lock()
	f.carrier = at
	f.mu.Unlock()
}

// well notes when prefill was well.
func (f *farLeg) well(now time.Time) { f.wellAt = now }

// abort ends the leg as far as it runs here. A leg that comes later is refused. It returns the
// replica at which the leg runs, which has to be told.
func (f *farLeg) abort() carrier {
	f.mu.Lock()
	f.closed = true
	l, stop, at := f.leg, f.stop, f.carrier
	f.mu.Unlock()
	if l != nil {
		l.post(just(leg.Event{Kind: leg.EventAbort}))
	}
	if stop != nil {
		stop(errLegAborted)
	}
	return at
}
