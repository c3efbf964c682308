package core

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
)

// Item is one choice of one prompt, which is computed and answered, and may have to meet
// its other half. Owned by the request's goroutines.
type Item struct {
	Index  int
	Prompt []uint32
	space  Namespace
	Digest uint64
	Sums   []blockSum
	Meet   *Meeting // nil: its other half is not met in a room
	Rank   *Rank
	Hold   *hold
	Cached int // tokens
	full   int // blocks of prompt and answer that events have told; see grows
}

// Call is one generation request, from its arrival to its answer.
type Call struct {
	s       *Sim
	kind    API
	ctx     context.Context //nolint:containedctx // a call is one request
	w       http.ResponseWriter
	rec     *record
	Seq     uint64 // of the request
	Q       *GenRequest
	Items   []*Item
	job     Job
	Handoff string // the id of the hand-off that a decode request brought; "": none
	Fault   Fault
	lifted  <-chan struct{} // closes when the fault is changed
	started time.Time
	headers bool // the status line has been sent
	begun   bool // the roles have been sent, too
	events  int  // of a response, numbered
	Leg     Leg
	Asked   int // the rank at whose own port the request came; -1: all ranks share a port

	// What the engine appends to a whole answer: after each choice's finish reason, and
	// after the usage. Set by [Job.HandOver].
	ChoiceTail, BodyTail []byte
}

// serve runs the call. The caller answers the client with the error, unless it is the
// context's, errTruncate, or that of a failed write.
func (c *Call) serve(kind API, body []byte, h http.Header) error {
	q, err := c.s.Pages.Responses.Parse(kind, body)
	if err != nil {
		return err
	}
	c.Q = q
	if t := c.s.cfg.Published; t != nil {
		p, err := t.find(body)
		if err != nil {
			return err
		}
		q.Prompts = [][]uint32{p.Tokens}
	}
	if !c.s.Serves(q.Model) {
		c.s.Violate(Violation{Kind: "wrong_model", Seq: c.Seq, Detail: fmt.Sprintf(
			"model %q was asked of a worker for %q", q.Model, c.s.cfg.Models)})
	}
	if v := h.Get("X-Data-Parallel-Rank"); v != "" && c.Asked >= 0 {
		return c.Broken("rank_named", http.StatusBadRequest, "X-Data-Parallel-Rank %.40q at the port of rank %d: behind it there is no other", v, c.Asked)
	}
	c.Items, c.job, err = c.s.engine.Plan(c, h)
	if err != nil {
		return err
	}
	if p := c.s.cfg.Poison; p != "" && bytes.Contains(body, []byte(p)) {
		return &APIError{Status: http.StatusInternalServerError, Reason: "poison", Msg: "this request is more than the engine can take"}
	}
	q.endsAtOnce = q.endsAtOnce || rand.Float64() < c.s.cfg.EndShare //nolint:gosec // a draw of a model's
	c.s.log.planned(c.rec, c)
	defer c.release()
	c.Fault, c.lifted = c.s.fault.claim(body)
	if err := c.run(); err != nil {
		if errors.Is(err, errFinishAbort) {
			c.release()
			return c.answer(0, "abort")
		}
		return err
	}
	return nil
}

func (c *Call) run() error {
	if c.Fault.Mode == FaultSlow {
		if err := Pause(c.ctx, time.Duration(c.Fault.DelayMS)*time.Millisecond); err != nil {
			return err
		}
	}
	for _, when := range []Moment{Before, Begun} {
		if err := c.strike(when); err != nil {
			return err
		}
	}
	if c.Fault.Mode == FaultEarly200 && c.s.cfg.Decodes() {
		if err := c.sendHeaders(); err != nil {
			return err
		}
	}
	if c.Q.Stream && (c.s.engine.Shape.Begins || c.kind == APIResponse) && !c.headers {
		if err := c.sendRoles(); err != nil {
			c.job.Abandon()
			return err
		}
	}
	if err := c.prepareAll(); err != nil {
		return err
	}
	if err := c.strike(After); err != nil {
		return err
	}
	out, reason := c.job.Output()
	if c.Fault.Mode == FaultFinish && !(c.Fault.Reason == "stop" && c.Q.floor() >= out) {
		reason = c.Fault.Reason
	}
	if c.Aborted() {
		out, reason = 0, "length"
	}
	return c.answer(out, reason)
}

// Limit returns the number of output tokens that the request asks for, and the finish
// reason.
func (c *Call) Limit() (int, string) {
	if c.Q.endsAtOnce && c.Q.floor() == 0 && !c.Q.ignoresEnd {
		return 1, "stop"
	}
	if c.Q.MaxTokens < 0 {
		return DefaultOutput, "stop"
	}
	return c.Q.MaxTokens, "length"
}

// floor is the number of tokens that an answer must have before the engine may end it.
func (q *GenRequest) floor() int {
	n, err := strconv.Atoi(string(q.MinTokens))
	if err != nil {
		return 0
	}
	return n
}

// prepareAll computes or fetches the KV of every item, up to its first token.
func (c *Call) prepareAll() error {
	for i, it := range c.Items {
		if i > 0 && &it.Prompt[0] == &c.Items[i-1].Prompt[0] && it.space == c.Items[i-1].space {
			it.Sums = c.Items[i-1].Sums
			continue
		}
		it.Sums = chainBlocks(nil, it.Prompt, c.s.Page(), it.space)
	}
	// The other choices of a prompt find its blocks in the cache, since the first choice
	// put them there.
	first := func(it *Item) bool { return it.Index%c.Q.N == 0 }
	if c.Leg != LegWhole {
		first = func(*Item) bool { return true }
	}
	for _, turn := range []bool{true, false} {
		var now []*Item
		for _, it := range c.Items {
			if first(it) == turn {
				now = append(now, it)
			}
		}
		g, ctx := errgroup.WithContext(c.ctx)
		for _, it := range now {
			g.Go(func() error { return c.job.Prepare(ctx, it) })
		}
		if err := g.Wait(); err != nil {
			return err
		}
		if c.Leg == LegWhole {
			storeTogether(now)
		}
	}
	return nil
}

// storeTogether puts prompts into the caches of their ranks, and publishes all changes of
// a rank at once.
func storeTogether(items []*Item) {
	ranks := map[*Rank]bool{}
	for _, it := range items {
		it.Hold.storeUntold(it.Sums, it.Prompt)
		ranks[it.Rank] = true
	}
	for r := range ranks {
		r.flush()
	}
}

// Admit waits until the item's rank has a slot, and blocks for the prompt and for out
// tokens of the answer.
func (c *Call) Admit(ctx context.Context, it *Item, out int) error {
	page := c.s.Page()
	need := (len(it.Prompt) + out + page - 1) / page
	if has := c.s.usableBlocks(); need > has {
		return BadRequest("the request needs %d KV blocks, the worker has %d", need, has)
	}
	hold, err := it.Rank.admit(ctx, it.Sums, need)
	if err != nil {
		return err
	}
	hold.space = it.space
	hold.expects(len(it.Prompt), out)
	it.Hold = hold
	return nil
}

// Output is how many tokens the request asks for.
func (c *Call) Output() int {
	out, _ := c.Limit()
	return out
}

// compute waits as long as computing the uncached part of the prompt takes. With mid, the
// moment Mid comes halfway.
func (c *Call) compute(ctx context.Context, it *Item, mid bool) error {
	page := c.s.Page()
	it.Cached = min(it.Hold.Cached, (len(it.Prompt)-1)/page) * page // the last token is always computed
	d := c.s.cfg.PrefillBase + time.Duration(len(it.Prompt)-it.Cached)*c.s.cfg.PrefillPerToken
	d = it.Rank.computeFor(c.scale(d), c.s.cfg.SerialPrefill)
	if mid && c.Fault.When == Mid && c.Fault.Mode != FaultTruncate {
		if err := it.Rank.compute(ctx, d/2); err != nil {
			return err
		}
		if err := c.strike(Mid); err != nil {
			return err
		}
		d -= d / 2
	}
	return it.Rank.compute(ctx, d)
}

// ComputeNow computes the prompt and puts it into the cache.
func (c *Call) ComputeNow(ctx context.Context, it *Item, mid bool) error {
	if err := c.compute(ctx, it, mid); err != nil {
		return err
	}
	it.Hold.Store(it.Sums, it.Prompt)
	return nil
}

// PrepareWhole computes the prompt of a request that is served whole.
func (c *Call) PrepareWhole(ctx context.Context, it *Item) error {
	if err := c.Admit(ctx, it, c.Output()); err != nil {
		return err
	}
	return c.compute(ctx, it, false)
}

// release leaves what the request has joined, and frees the blocks. It may be called
// several times.
func (c *Call) release() {
	c.job.Release()
	for _, it := range c.Items {
		if it.Hold != nil {
			it.Hold.Release()
		}
	}
}

// grows stores what has been generated of a streamed answer, if the engine shares and
// publishes a block as soon as it is full.
func (c *Call) grows(out int) {
	if !c.s.engine.Growing || out < 2 || c.Leg == LegPrefill {
		return
	}
	page := c.s.Page()
	for _, it := range c.Items {
		if full := (len(it.Prompt) + out - 1) / page; it.Hold != nil && full > it.full {
			it.full = full
			it.store(out, page)
		}
	}
}

// store keeps the full blocks of the prompt and of the answer. The answer's last token
// does not count: no step has computed its KV yet.
func (it *Item) store(out, page int) {
	tokens := slices.Concat(it.Prompt, AnswerTokens(it.Digest, 0, out-1))
	it.Hold.Store(chainBlocks(slices.Clip(it.Sums), tokens, page, it.space), tokens)
}

// complete stores what was generated, releases everything and closes the record. This
// happens before the last byte is sent, so that a client with the whole answer finds
// nothing held.
func (c *Call) complete(out int, reason string) {
	for _, it := range c.Items {
		if out > 1 && it.Hold != nil && c.Leg != LegPrefill {
			it.store(out, c.s.Page())
		}
		it.Rank.account(len(it.Prompt), it.Cached, out)
	}
	c.release()
	o := outcome{outcome: OutcomeOK, status: http.StatusOK, cached: c.cachedTokens(), output: out * len(c.Items)}
	if reason == "abort" {
		o.outcome = OutcomeAborted
	}
	c.s.log.finish(c.rec, o)
}

// cachedTokens counts the last choice of each prompt, as the engines do.
func (c *Call) cachedTokens() int {
	n := 0
	for i := c.Q.N - 1; i < len(c.Items); i += c.Q.N {
		n += c.Items[i].Cached
	}
	return n
}

// NewItems returns one item for each choice of each prompt.
func (c *Call) NewItems() ([]*Item, error) {
	q, cfg := c.Q, c.s.cfg
	if least := q.floor(); q.MaxTokens >= 0 && least > q.MaxTokens {
		return nil, BadRequest("a minimum of %d tokens: expected at most the limit, %d", least, q.MaxTokens)
	}
	items := make([]*Item, 0, len(q.Prompts)*q.N)
	for i, p := range q.Prompts {
		space, err := c.s.spaceOf(q, i)
		if err != nil {
			return nil, err
		}
		if len(p)+max(q.MaxTokens, 1) > cfg.MaxModelLen {
			return nil, BadRequest("prompt of %d tokens and %d of output: expected at most %d together", len(p), max(q.MaxTokens, 1), cfg.MaxModelLen)
		}
		for range q.N {
			items = append(items, &Item{Index: len(items), Prompt: p, space: space, Digest: digest(p)})
		}
	}
	return items, nil
}

// Place gives the item a rank: that number, or the next rank for -1.
func (c *Call) Place(it *Item, rank int) {
	if rank < 0 {
		rank = int(c.s.nextRank.Add(1)-1) % len(c.s.Ranks)
	}
	it.Rank = c.s.Ranks[rank]
}
