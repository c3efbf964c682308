package route

import (
	"fmt"

	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Conditional says when one worker serves a request, its prompt included, although the
// model has prefill workers (docs/behaviour.md#conditional): if that costs less, in seconds, than the
// prefill rank that would be picked and the hand-off do. That worker is an aggregated
// one, or a decode worker that takes requests without a prefill. The zero value is off.
// Enforced disaggregation turns it off.
type Conditional struct {
	Enabled bool // needs picks of both kinds with Params.InSeconds
}

// SplitReason says why one worker served a request although its model's prefill workers
// are known. The names are metric labels.
type SplitReason string

// The reasons why one worker serves.
const (
	LowerCost  SplitReason = "lower_cost"
	Fallback   SplitReason = "fallback"
	OneLeg     SplitReason = "one_leg"
	CutPrompt  SplitReason = "cut_prompt"
	FirstToken SplitReason = "one_token"
)

// split is the choice between one worker and two; the zero value if there was none to
// make.
type split struct {
	reason SplitReason // empty: two workers
	apart  float64     // seconds that prefill and the hand-off cost, if the cost decides; 0: it does not
	cause  string      // of a fallback: the failure that it replaces
}

// String returns the choice in words, "" if there was no choice.
func (s *split) String() string {
	switch {
	case s.reason == LowerCost:
		return fmt.Sprintf("one worker: it costs less than %.3f s, with which prefill would be picked and the prompt handed over", s.apart)
	case s.reason == Fallback:
		return "one worker: fallback for " + s.cause
	case s.reason == OneLeg:
		return "one worker: the gateway carries no prefill leg"
	case s.reason == CutPrompt:
		return "one worker: the prompt may be cut to what fits, which prefill and decode do differently"
	case s.reason == FirstToken:
		return "one worker: prefill makes the only token that is asked for"
	case s.apart > 0:
		return fmt.Sprintf("prefill apart: no worker with room costs less than %.3f s", s.apart)
	default:
		return ""
	}
}

// named reports whether the request names a worker itself. Then conditional
// disaggregation and the fallback leave it as it is.
func (q *Question) named() bool { return q.places.Prefill != nil || q.places.Decode != nil }

// alone picks and books one worker for the request if conditional disaggregation allows
// it. False means that nothing is booked.
func (d *decider) alone() bool {
	q, v := d.q, &d.v
	if !d.cfg.Conditional.Enabled || d.cfg.Policy.Rules.Enforced || len(q.pool.AggregatedRanks) == 0 || q.named() {
		return false
	}
	params := q.override.Apply(d.cfg.Aggregated)
	params.ServeOverloaded = false // its place is with prefill
	apart, most := d.costApart()
	if most == 0 || params.Mode != picker.KV {
		return false
	}
	v.split.apart = apart
	v.decode = choice{most: most}
	if d.choose(&v.decode, worker.Aggregated, params) != nil {
		v.decode = choice{}
		return false
	}
	v.split.reason, q.apart = LowerCost, false
	return true
}

// costApart returns what the cheapest prefill rank and the hand-off cost, in seconds, and by how much one
// worker has to cost less (picker.Decision.Ranked); 0: there is no such rank, the queue is full, or the
// request has its picks weigh blocks.
func (d *decider) costApart() (cost, most float64) {
	q := d.q
	c := choice{role: worker.Prefill, params: q.override.Apply(d.cfg.Prefill)}
	c.params.BlockSize = d.v.size
	if c.params.Mode != picker.KV || !c.params.InSeconds || d.queueIsFull() {
		return 0, 0
	}
	r := d.offer(&c)
	allowed, some := within(q.world.Snapshot, q.req.Subset, r.Ranks)
	if !some {
		return 0, 0
	}
	r.Within = allowed
	picked, err := d.cfg.Book.Preview(&r)
	if err != nil {
		return 0, 0
	}
	handOff := d.cfg.Book.HandOff(q.pool.Key, d.v.prompt.ISLTokens)
	return picked.Cost + handOff, picked.Ranked() + handOff
}

// queueIsFull reports whether a pick for prefill would be refused with 429.
func (d *decider) queueIsFull() bool {
	q := d.q
	limit := d.cfg.MaxQueuedISLTokens
	return limit > 0 && !q.req.Admitted && d.cfg.Book.QueuedISLTokens(q.pool.PrefillRanks, d.cfg.Health, q.now) >= limit
}

// mayFallBack reports whether one worker may serve the request after this failure
// (docs/behaviour.md#nobody-eligible). False for back-pressure (#full-queue), and for a
// model whose prefill is becoming ready (#becoming-ready).
func (d *decider) mayFallBack() bool {
	if !d.cfg.Policy.Rules.Fallback || len(d.q.pool.AggregatedRanks) == 0 {
		return false
	}
	switch d.v.fail.Reason {
	case NoPrefill, NoDecode, NoTaint, Outside, SidesDiffer:
		return true
	default:
		return false
	}
}

// fallBack picks one worker for a request that no pair can serve, if the configuration
// allows that and a worker can.
func (d *decider) fallBack() {
	q, pair := d.q, d.v
	if pair.fail == nil || !q.apart || q.named() || !d.mayFallBack() {
		return
	}
	d.v = verdict{bookings: pair.bookings, prompt: pair.prompt, rest: pair.rest, size: pair.size, blocks: pair.blocks}
	if d.choose(&d.v.decode, worker.Aggregated, q.override.Apply(d.cfg.Aggregated)) != nil {
		d.v = pair
		return
	}
	d.v.split = split{reason: Fallback, cause: string(pair.fail.Reason)}
	q.apart = false
}
