package route

import (
	"fmt"
	"math"

	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Conditional says when one worker serves a request, its prompt included, although the
// model has prefill workers (docs/behaviour.md#conditional). That worker is an aggregated
// one, or a decode worker that takes requests without a prefill. The zero value is off.
// Enforced disaggregation turns it off.
type Conditional struct {
	// ByCost has one worker serve a request if that costs less, in seconds, than the prefill rank that would
	// be picked and the hand-off do. Both picks need Params.InSeconds.
	ByCost bool
	// ByISL has one worker serve a request of which little is left to prefill there.
	ByISL bool
	// ISLTokens and ISLRatio say what is little: fewer uncached tokens of the prompt than
	// ISLTokens, and a smaller share of the prompt than ISLRatio. Higher values have more
	// requests served by one worker; their prompts then delay the answers that run there.
	ISLTokens int64
	ISLRatio  float64
	// ByLoad has one worker serve a request while prefill is busy: while every prefill
	// rank has more than PrefillBusyTokens prompt tokens queued. A higher number does
	// this later. A worker that has more queued itself gets no such prompt, by load or by
	// ISL.
	ByLoad            bool
	PrefillBusyTokens int64
	// DecodeBusyBlocks is the share of a worker's KV blocks up to which the worker is
	// given a prompt, by ISL or by load; 0: no limit. A higher share gives prompts to
	// fuller workers.
	DecodeBusyBlocks float64
}

func (c *Conditional) on() bool { return c.ByCost || c.ByISL || c.ByLoad }

// Faults returns an error for each value that is out of its range.
func (c Conditional) Faults() (errs []error) {
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf("conditional."+format, a...)) }
	if c.ByISL && c.ISLTokens < 1 {
		bad("isl_tokens %d: expected at least 1", c.ISLTokens)
	}
	if c.ByISL && !(c.ISLRatio > 0 && c.ISLRatio <= 1) {
		bad("isl_ratio %v: expected a number above 0, at most 1", c.ISLRatio)
	}
	if c.ByLoad && c.PrefillBusyTokens < 1 {
		bad("prefill_busy_tokens %d: expected at least 1", c.PrefillBusyTokens)
	}
	if !(c.DecodeBusyBlocks >= 0 && c.DecodeBusyBlocks <= 1) {
		bad("decode_busy_blocks %v: expected a number from 0 to 1", c.DecodeBusyBlocks)
	}
	return errs
}

// uncachedLimit returns the number of uncached tokens at which a prompt of isl tokens is
// too long for one worker; 0: there is no limit.
func (c *Conditional) uncachedLimit(isl int) int64 {
	if !c.ByISL {
		return 0
	}
	return min(c.ISLTokens, int64(math.Ceil(c.ISLRatio*float64(isl))))
}

// spare returns p with the lower limits that hold for a worker that gets a prompt
// although the model has prefill workers.
func (c *Conditional) spare(p picker.Params) picker.Params {
	if c.DecodeBusyBlocks > 0 && (p.DecodeBlocksThreshold == 0 || p.DecodeBlocksThreshold > c.DecodeBusyBlocks) {
		p.DecodeBlocksThreshold = c.DecodeBusyBlocks
	}
	if !c.ByCost && c.PrefillBusyTokens > 0 && (p.PrefillTokensThreshold == 0 || p.PrefillTokensThreshold > c.PrefillBusyTokens) {
		p.PrefillTokensThreshold = c.PrefillBusyTokens
	}
	p.ServeOverloaded = false
	return p
}

// SplitReason says why one worker served a request although its model's prefill workers
// are known. The names are metric labels.
type SplitReason string

// The reasons why one worker serves.
const (
	ShortPrompt SplitReason = "short_prompt"
	LowerCost   SplitReason = "lower_cost"
	PrefillBusy SplitReason = "prefill_busy"
	Fallback    SplitReason = "fallback"
	OneLeg      SplitReason = "one_leg"
	CutPrompt   SplitReason = "cut_prompt"
	FirstToken  SplitReason = "one_token"
)

// split is the choice between one worker and two; the zero value if there was none to
// make.
type split struct {
	reason          SplitReason // empty: two workers
	asked           bool        // conditional disaggregation was considered
	uncached, limit int64       // tokens of the prompt, at the worker that was considered; limit 0: none was
	apart           float64     // seconds that prefill and the hand-off cost, if the cost decided
	queued          int64       // prompt tokens at the least busy prefill rank, if load was considered
	cause           string      // of a fallback: the failure that it replaces
}

// String returns the choice in words, "" if there was no choice.
func (s *split) String() string {
	switch {
	case s.reason == ShortPrompt:
		return fmt.Sprintf("one worker: %d tokens of the prompt are not cached there, fewer than %d", s.uncached, s.limit)
	case s.reason == LowerCost:
		return fmt.Sprintf("one worker: it costs less than %.3f s, with which prefill would be picked and the prompt handed over", s.apart)
	case s.reason == PrefillBusy:
		return fmt.Sprintf("one worker: every prefill rank has at least %d prompt tokens queued", s.queued)
	case s.reason == Fallback:
		return "one worker: fallback for " + s.cause
	case s.reason == OneLeg:
		return "one worker: the gateway carries no prefill leg"
	case s.reason == CutPrompt:
		return "one worker: the prompt may be cut to what fits, which prefill and decode do differently"
	case s.reason == FirstToken:
		return "one worker: prefill makes the only token that is asked for"
	case !s.asked:
		return ""
	case s.apart > 0:
		return fmt.Sprintf("prefill apart: no worker with room costs less than %.3f s", s.apart)
	case s.limit > 0:
		return fmt.Sprintf("prefill apart: no worker with room has fewer than %d tokens of the prompt to prefill", s.limit)
	default:
		return "prefill apart: it is not busy or refuses more, or no worker with room can do without"
	}
}

// named reports whether the request names a worker itself. Then conditional
// disaggregation and the fallback leave it as it is.
func (q *Question) named() bool { return q.places.Prefill != nil || q.places.Decode != nil }

// alone picks and books one worker for the request if conditional disaggregation allows
// it. False means that nothing is booked.
func (d *decider) alone() bool {
	q, v := d.q, &d.v
	c := &d.cfg.Conditional
	if !c.on() || d.cfg.Policy.Rules.Enforced || len(q.pool.AggregatedRanks) == 0 || q.named() {
		return false
	}
	v.split.asked = true
	params := c.spare(q.override.Apply(d.cfg.Aggregated))
	try := func(limit int64, reason SplitReason) bool {
		v.decode = choice{limit: limit, most: v.split.apart}
		if d.choose(&v.decode, worker.Aggregated, params) != nil {
			v.decode = choice{}
			return false
		}
		v.split.reason, v.split.uncached = reason, v.decode.decision.UncachedTokens
		q.apart = false
		return true
	}
	if c.ByCost {
		v.split.apart = d.costApart()
		return v.split.apart > 0 && try(0, LowerCost)
	}
	v.split.limit = c.uncachedLimit(v.prompt.ISLTokens)
	if v.split.limit > 0 && try(v.split.limit, ShortPrompt) {
		return true
	}
	if !c.ByLoad {
		return false
	}
	least, known := d.cfg.Book.LeastQueuedISLTokens(q.pool.PairedRanks, d.cfg.Health, q.now)
	v.split.queued = least
	if d.queueIsFull() {
		return false // a full queue is answered with back-pressure: docs/behaviour.md#full-queue
	}
	return known && least > c.PrefillBusyTokens && try(0, PrefillBusy)
}

// costApart returns what the cheapest prefill rank and the hand-off cost, in seconds; 0: there is none, the
// queue is full, or the request has its picks weigh blocks.
func (d *decider) costApart() float64 {
	q := d.q
	c := choice{role: worker.Prefill, params: q.override.Apply(d.cfg.Prefill)}
	c.params.BlockSize = d.v.size
	if !c.params.InSeconds || d.queueIsFull() {
		return 0
	}
	r := d.offer(&c)
	picked, err := d.cfg.Book.Preview(&r)
	if err != nil {
		return 0
	}
	return picked.Cost + d.cfg.Book.HandOff(q.pool.Key, d.v.prompt.ISLTokens)
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
