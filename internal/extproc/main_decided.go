package extproc

import (
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/internal/journal"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/route"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/pkg/tokens"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// booked is what a decision gives to its stream beside the plan.
type booked struct {
	prefill, decode *load.Reservation
	note            journal.Handle
	span            trace.Span // of the decode leg
	prompt          telemetry.PromptTokens
	belief          belief
	claim           tokens.Claim // of the prompt's tokens
	compared        *comparison  // of what its two workers count; nil: of nothing
	answer          route.Answer
	others          []route.Destination // other endpoints that decode's address names
	recorded        uint64              // number of the decision at the recorder; 0: none, or its end is recorded
	again           *route.Again        // to pick decode again if it leaves while prefill runs; nil: it is not picked again
	limits          legLimits
}

// decided is what was decided for a main leg, and what the decision holds until the end. Its
// fields are owned by the goroutine that handles an event, unless they say otherwise.
type decided struct {
	booked
	nonce uint64

	losing atomic.Int32 // how many workers the request has lost, if the one that was sent it is lost; 0: none was

	mu     sync.Mutex     // no other lock is taken while it is held
	picked [2]worker.Rank // guarded by mu: for prefill and for decode; ID 0: none
}

// ranks returns the ranks picked for prefill and for decode. ID 0 means none.
func (d *decided) ranks() [2]worker.Rank {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.picked
}

// pick notes the picked ranks, before the decision is taken.
func (d *decided) pick(prefill, decode worker.Rank) {
	d.mu.Lock()
	d.picked = [2]worker.Rank{prefill, decode}
	d.mu.Unlock()
}

// take takes what the decision has booked and noted. Of one worker in place of a pair, the limits of
// the pair's prefill leg stay: that leg may still be told of.
func (d *decided) take(b *booked, nonce uint64) {
	before := d.limits
	d.booked, d.nonce = *b, nonce
	if b.limits.start == (limited{}) {
		d.limits.start, d.limits.prefill = before.start, before.prefill
	}
}

// tell takes the record of a request for which nothing was booked. If b is nil, there is no
// record yet.
func (d *decided) tell(b *booked) {
	if b != nil {
		d.note = b.note
	}
}

// tooLate ends the record of a decision that came after its attempt had ended.
func (d *decided) tooLate(s *mainStream, now time.Time) {
	s.srv.cfg.Journal.End(d.note, decision.ClientLeft, "before the decision", 0, now)
	recordEnd(s, now, blame.Left)
	telemetry.End(d.span, now, "too late")
}

// refused gives an attempt that was refused before anything was decided a record.
func (d *decided) refused(s *mainStream, e *leg.Effect) {
	if d.note.IsZero() {
		d.note = s.srv.noteRefusal(s, e)
	}
}

// replace puts another decode worker into the place of the one that was picked.
func (d *decided) replace(by *route.Pick, now time.Time) {
	d.decode.Release(now)
	d.decode, d.others = by.Booking, nil
	d.limits.decode.subject.Worker = by.Rank.ID
	d.mu.Lock()
	d.picked[1] = by.Rank
	d.mu.Unlock()
}

// recording returns the number of the decision at the recorder, once; 0: there is none.
func (d *decided) recording() uint64 {
	n := d.recorded
	d.recorded = 0
	return n
}

// delivered adds to the prompt's tokens how many of them the worker had cached.
func (d *decided) delivered(c *tokenCounts) *telemetry.PromptTokens {
	d.prompt.Delivered, d.prompt.Told = c.cached, c.known
	return &d.prompt
}

// giveBack gives back what is still booked, after a panic of the machine.
func (b *booked) giveBack(now time.Time) {
	b.prefill.ReleaseIfHeld(now)
	b.decode.ReleaseIfHeld(now)
}
