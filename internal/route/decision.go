package route

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/internal/engine/handoff"
	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/sides"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/tokens"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Decision says which workers serve a request. With a refusal only BlockSize, Key, Record
// and Prompt are set.
type Decision struct {
	// Record holds the decision with its reasons. Its memory is the Scratch's. The caller
	// adds to it the facts about the request that the router is not told.
	Record *decision.Record
	// Prompt is the prompt that the picks were made for; its slices are the Scratch's
	// memory.
	Prompt    tokens.Prompt
	BlockSize int // tokens of a KV block

	Key     worker.Key // the pool's
	Apart   bool       // prefill and decode are two workers
	Prefill Pick       // only with Apart
	Decode  Pick       // the worker that answers, also if it is the only one
	Alone   SplitReason

	// Destination is where the request is sent: the address of Decode, then those of
	// Others, in the order in which they are tried.
	Destination string
	Others      []Destination
	Spare       Spare
	Answer      Answer

	// The rest is about the hand-off, and is set only with Apart.
	Kind      handoff.Kind
	Room      prefill.Room // with a rendezvous
	HandoffID uint64       // with a hand-off through prefill's answer
	Again     *Again       // with a hand-off through prefill's answer: to pick decode again
}

// Pick is a rank that serves one leg of a request, with its booking, which the caller
// must release. The zero value is no pick.
type Pick struct {
	picker.Decision
	Role    worker.Role
	Worker  *worker.Worker
	Booking *load.Reservation // nil in a preview
	Named   bool              // the request names the worker: a fresh attempt would get the same one
	Alone   bool              // of Decode: the worker may serve without a hand-off
	Held    Held              // of the pick whose rank computes the prompt
}

// Made reports whether a rank was picked.
func (p *Pick) Made() bool { return p.Worker != nil }

// Address returns the endpoint of the picked rank.
func (p *Pick) Address() string { return p.Worker.EndpointOf(p.Rank.DPRank).String() }

// Destination is an address where a request may be sent, and the rank behind that
// address.
type Destination struct {
	Address string
	Rank    worker.Rank
}

// Spare says for which leg another worker could be tried.
type Spare struct{ Prefill, Decode bool }

// Cancel takes back the bookings of a decision that is not carried out, and gives back
// the turns of round robin that its picks took.
func (d *Decision) Cancel(now time.Time) {
	b := bookings{d.Prefill.Booking, d.Decode.Booking}
	b.cancel(now)
}

// bookings are the two bookings of a decision. A nil one books nothing.
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

// Decide picks and books the workers that serve a request with the prompt p. The Decision
// has its Record also if it is a refusal. The caller must not use sc for anything else
// until it needs the Decision no more.
func (rt *Router) Decide(q *Question, p tokens.Prompt, sc *Scratch, now time.Time) (Decision, *Refusal) {
	d := decider{Router: rt, q: q, sc: sc, sides: rt.apart()}
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
	out.Record = recording{&d}.record()
	decided = true
	return out, d.v.fail
}

// decider makes one decision.
type decider struct {
	*Router
	q  *Question // the question in the world that is judged
	sc *Scratch
	v  verdict

	sides *sides.Apart
}

// fill writes the picks into out, and records that the prompt was routed to them.
func (d *decider) fill(out *Decision) {
	q, v := d.q, &d.v
	out.Apart, out.Answer, out.Alone = q.apart, q.answer(), v.split.reason
	out.Answer.Late = v.prefill.decision.Late || v.decode.decision.Late
	out.Decode = d.picked(&v.decode)
	out.Destination, out.Others = destinations(q.world, &v.decode), v.decode.others
	if out.Apart {
		out.Prefill = d.picked(&v.prefill)
		out.Kind = engines.HandOff(out.Prefill.Worker.Engine)
		if q.req.Sidecar {
			out.Kind = engines.Sidecar
		}
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
	case !out.Apart, out.Kind.ByOthers():
	case out.Kind.PrefillFirst():
		out.HandoffID, out.Again = handoff.DrawRequestID(d.sc.rng), d.again()
	default:
		out.Room = prefill.DrawRoom(d.sc.rng, out.Prefill.Rank.DPRank, out.Prefill.Worker.DPSize, q.req.Scan.Parallel())
	}
}

func (d *decider) picked(c *choice) Pick {
	q, v := d.q, &d.v
	w := q.world.Worker(c.decision.Rank.ID)
	return Pick{
		Decision: c.decision, Role: c.role, Worker: w, Booking: v.bookings.of(c.role), Named: q.placeOf(c.role) != nil,
		Alone: c.role == worker.Decode && d.servesAlone(w), Held: c.held,
	}
}
