package route

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/prefill/handoff"
	"github.com/seed-60ae5743/baton/pkg/tokens"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Decision is who serves a request. Of one that is refused only Record and Prompt are
// set.
type Decision struct {
	// Record tells the decision with its reasons. It lies in the Scratch; the caller adds
	// what it knows of the request.
	Record *decision.Record
	// Prompt is what the request's prompt was taken to be; its slices lie in the Scratch.
	Prompt    tokens.Prompt
	BlockSize int // tokens of a KV block

	Key     worker.Key // of the pool
	Apart   bool       // prefill and decode are two workers
	Prefill Pick       // with Apart
	Decode  Pick       // of who answers, be it one worker
	Alone   SplitReason

	// Destination is where the request goes: the address of Decode, and behind it those
	// of Others, to be tried in turn.
	Destination string
	Others      []Destination
	Spare       Spare
	Answer      Answer

	// With Apart, of the hand-off.
	Kind      handoff.Kind
	Room      prefill.Room // of a rendezvous
	HandoffID uint64       // of one through prefill's answer
	Again     *Again       // the same: to pick decode again; nil: not
}

// Pick is a rank that is to do its part of a request, and its booking, which is the
// caller's to release. The zero value is nobody.
type Pick struct {
	picker.Decision
	Role    worker.Role
	Worker  *worker.Worker
	Booking *load.Reservation // nil: of a preview
	Named   bool              // the request names the worker: a fresh attempt would meet it again
	Alone   bool              // of Decode: it may do without a hand-off
}

// Made reports whether somebody was picked.
func (p *Pick) Made() bool { return p.Worker != nil }

// Address is where the rank is reached.
func (p *Pick) Address() string { return p.Worker.EndpointOf(p.Rank.DPRank).String() }

// Destination is an address where a request may be sent, and whom it reaches there.
type Destination struct {
	Address string
	Rank    worker.Rank
}

// Spare says for which leg somebody else could be tried.
type Spare struct{ Prefill, Decode bool }

// Cancel takes back what is booked, and whose turn it was, of a decision that nothing
// comes of.
func (d *Decision) Cancel(now time.Time) {
	b := bookings{d.Prefill.Booking, d.Decode.Booking}
	b.cancel(now)
}

// bookings are what a decision books, nil for nothing.
type bookings struct{ prefill, decode *load.Reservation }

func (b *bookings) of(role worker.Role) *load.Reservation {
	if role == worker.Prefill {
		return b.prefill
	}
	return b.decode
}

func (b *bookings) cancel(now time.Time) {
	b.decode.Cancel(now)
	b.prefill.Cancel(now)
}

// Decide picks and books who serves a request whose prompt is p. The Record is there
// also where it refuses. sc is not to be used for anything else until the decision is
// done with.
func (rt *Router) Decide(q *Question, p tokens.Prompt, sc *Scratch, now time.Time) (Decision, *Refusal) {
	d := decider{Router: rt, q: q, sc: sc}
	if !q.preview() {
		d.v.bookings = bookings{new(load.Reservation), new(load.Reservation)}
	}
	decided := false
	defer func() {
		if !decided { // a panic
			d.v.bookings.cancel(now)
		}
	}()
	q.now = now
	d.judgeInTime(p)
	out := Decision{Prompt: d.v.prompt, BlockSize: d.v.size, Key: d.q.pool.Key}
	if d.v.fail == nil {
		d.fill(&out)
	}
	out.Record = d.record()
	decided = true
	return out, d.v.fail
}

// decider makes one decision.
type decider struct {
	*Router
	q  *Question // in the world that is judged
	sc *Scratch
	v  verdict
}

// fill says who serves, and notes what is routed to them.
func (d *decider) fill(out *Decision) {
	q, v := d.q, &d.v
	out.Apart, out.Answer, out.Alone = q.apart, q.answer(), v.split.reason
	out.Decode = d.picked(&v.decode)
	out.Destination, out.Others = q.destinations(&v.decode)
	if out.Apart {
		out.Prefill = d.picked(&v.prefill)
		out.Kind = handoff.KindOf(out.Prefill.Worker.Engine)
	}
	if q.preview() {
		return
	}
	d.remember()
	if q.req.Passing == "" {
		out.Spare.Decode = !out.Decode.Named && d.spares(q, out.Decode.Role, out.Decode.Rank)
		out.Spare.Prefill = out.Apart && !out.Prefill.Named && d.spares(q, worker.Prefill, out.Prefill.Rank)
	}
	switch {
	case !out.Apart:
	case out.Kind.PrefillFirst():
		out.HandoffID, out.Again = handoff.DrawRequestID(d.sc.rng), d.again(out.Kind)
	default:
		out.Room = prefill.DrawRoom(d.sc.rng, out.Prefill.Rank.DPRank, out.Prefill.Worker.DPSize, q.req.Scan.Parallel())
	}
}

func (d *decider) picked(c *choice) Pick {
	q, v := d.q, &d.v
	w := q.world.Worker(c.decision.Rank.ID)
	return Pick{
		Decision: c.decision, Role: c.role, Worker: w, Booking: v.bookings.of(c.role), Named: q.placeOf(c.role) != nil,
		Alone: c.role == worker.Decode && d.servesAlone(w),
	}
}
