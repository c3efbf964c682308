package route

import (
	"fmt"
	"math"

	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Conditional says when a request whose model has prefill workers is served by
// one worker all the same, its prompt included (docs/behaviour.md#conditional): a
// decode worker that takes requests without a prefill, or an aggregated one. The zero
// value is off; where disaggregation is enforced it always is.
type Conditional struct {
	// ByISL serves by one worker what has little left to prefill there.
	ByISL bool
	// ISLTokens and ISLRatio are what is little: fewer tokens of the prompt not
	// cached on the worker than ISLTokens, and a smaller share of the prompt
	// than ISLRatio. Higher serves more requests so, whose prompts then hold up
	// the answers that run there.
	ISLTokens int64
	ISLRatio  float64
	// ByLoad serves by one worker while prefill is busy: every prefill rank has
	// more than PrefillBusyTokens prompt tokens queued. Higher does so later.
	ByLoad            bool
	PrefillBusyTokens int64
	// DecodeBusyBlocks is the share of a worker's KV blocks that may be booked
	// for it to be given a prompt in either case; 0: any. Higher gives prompts
	// to fuller workers.
	DecodeBusyBlocks float64
}

func (c *Conditional) on() bool { return c.ByISL || c.ByLoad }

// Faults returns what is wrong with c.
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

// uncachedLimit returns how many tokens of the prompt are too many to prefill
// where it is answered; 0 where any are.
func (c *Conditional) uncachedLimit(isl int) int64 {
	if !c.ByISL {
		return 0
	}
	return min(c.ISLTokens, int64(math.Ceil(c.ISLRatio*float64(isl))))
}

// spare returns p with the limits of a worker that a prompt is given to although
// others are there for prompts.
func (c *Conditional) spare(p picker.Params) picker.Params {
	if c.DecodeBusyBlocks > 0 && (p.DecodeBlocksThreshold == 0 || p.DecodeBlocksThreshold > c.DecodeBusyBlocks) {
		p.DecodeBlocksThreshold = c.DecodeBusyBlocks
	}
	if c.PrefillBusyTokens > 0 && (p.PrefillTokensThreshold == 0 || p.PrefillTokensThreshold > c.PrefillBusyTokens) {
		p.PrefillTokensThreshold = c.PrefillBusyTokens
	}
	p.ServeOverloaded = false
	return p
}

// SplitReason says why a request was not served with prefill and decode apart
// although its model's prefill workers are known. The names are metric labels.
type SplitReason string

// The reasons why one worker serves.
const (
	ShortPrompt SplitReason = "short_prompt"
	PrefillBusy SplitReason = "prefill_busy"
	Fallback    SplitReason = "fallback"
	OneLeg      SplitReason = "one_leg"
)

// split is a choice between one worker and two, where there was one.
type split struct {
	reason          SplitReason // empty: two
	asked           bool        // whether conditional disaggregation was
	uncached, limit int64       // of the prompt, at the worker looked at; limit 0: not looked at
	queued          int64       // at the least busy prefill rank, by load
	cause           string      // of a fallback: the failure in its place
}

// String says it for people, "" where there was no choice.
func (s *split) String() string {
	switch {
	case s.reason == ShortPrompt:
		return fmt.Sprintf("one worker: %d tokens of the prompt are not cached there, fewer than %d", s.uncached, s.limit)
	case s.reason == PrefillBusy:
		return fmt.Sprintf("one worker: every prefill rank has at least %d prompt tokens queued", s.queued)
	case s.reason == Fallback:
		return "one worker: fallback for " + s.cause
	case s.reason == OneLeg:
		return "one worker: the gateway carries no prefill leg"
	case !s.asked:
		return ""
	case s.limit > 0:
		return fmt.Sprintf("prefill apart: no worker with room has fewer than %d tokens of the prompt to prefill", s.limit)
	default:
		return "prefill apart: it is not busy or refuses more, or no worker with room can do without"
	}
}

// named reports whether the request names a worker itself: then nobody else
// decides how many serve it.
func (q *Question) named() bool { return q.places.Prefill != nil || q.places.Decode != nil }

// alone serves the request by one worker if that is what conditional
// disaggregation says. Otherwise nothing is booked.
func (d *decider) alone() bool {
	q, v := d.q, &d.v
	c := &d.cfg.Conditional
	if !c.on() || d.cfg.Policy.Rules.Enforced || len(q.pool.AggregatedRanks) == 0 || q.named() {
		return false
	}
	v.split.asked = true
	params := c.spare(q.override.Apply(d.cfg.Aggregated))
	try := func(limit int64, reason SplitReason) bool {
		v.decode = choice{limit: limit}
		if d.choose(&v.decode, worker.Aggregated, params) != nil {
			v.decode = choice{}
			return false
		}
		v.split.reason, v.split.uncached = reason, v.decode.decision.UncachedTokens
		q.apart = false
		return true
	}
	v.split.limit = c.uncachedLimit(v.prompt.ISLTokens)
	if v.split.limit > 0 && try(v.split.limit, ShortPrompt) {
		return true
	}
	if !c.ByLoad {
		return false
	}
	least, known := d.cfg.Book.LeastQueuedISLTokens(q.pool.PrefillRanks, d.cfg.Health, q.now)
	v.split.queued = least
	if d.queueIsFull() {
		return false // back-pressure is the answer to that: docs/behaviour.md#full-queue
	}
	return known && least > c.PrefillBusyTokens && try(0, PrefillBusy)
}

// queueIsFull reports whether a pick for prefill would be refused with 429.
func (d *decider) queueIsFull() bool {
	q := d.q
	limit := d.cfg.MaxQueuedISLTokens
	return limit > 0 && !q.req.Admitted && d.cfg.Book.QueuedISLTokens(q.pool.PrefillRanks, d.cfg.Health, q.now) >= limit
}

// mayFallBack reports whether what has failed may be served by one worker instead
// (docs/behaviour.md#nobody-eligible). Back-pressure may not (#full-queue), nor may a
// model whose prefill is becoming ready (#becoming-ready).
func (d *decider) mayFallBack() bool {
	if !d.cfg.Policy.Rules.Fallback || len(d.q.pool.AggregatedRanks) == 0 {
		return false
	}
	switch d.v.fail.Reason {
	case NoPrefill, NoDecode, NoTaint, Outside:
		return true
	default:
		return false
	}
}

// fallBack turns a verdict that nobody can serve the request with prefill and
// decode apart into one for a single worker, where that is wanted and possible.
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
