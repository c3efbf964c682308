package enginesim

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

// item is one choice of one prompt, which is computed and answered, and may have to meet
// its other half. Owned by the request's goroutines.
type item struct {
	index  int
	prompt []uint32
	space  namespace
	digest uint64
	sums   []blockSum
	meet   *meeting // nil: no other half
	rank   *rank
	hold   *hold
	half   *prefillHalf
	cached int // tokens
	full   int // blocks of prompt and answer that events have told; see grows
}

// call is one generation request, from its arrival to its answer.
type call struct {
	s       *Sim
	kind    api
	ctx     context.Context //nolint:containedctx // a call is one request
	w       http.ResponseWriter
	rec     *record
	q       *genRequest
	items   []*item
	fault   Fault
	lifted  <-chan struct{} // closes when the fault is changed
	started time.Time
	headers bool // the status line has been sent
	begun   bool // the roles have been sent, too
	events  int  // of a response, numbered
	leg     leg
	asked   int // the rank at whose own port the request came; -1: all ranks share a port

	// What the engine appends to a whole answer: after each choice's finish reason, and
	// after the usage. Set by the engine's handOver.
	choiceTail, bodyTail []byte
	transfer             *transfer // the hand-off that a decode request brought; nil: none
	transferID           string    // of a prefill request with MooncakeConnector
	disaggID             int64     // of a context request of TensorRT-LLM
}

// serve runs the call. The caller answers the client with the error, unless it is the
// context's, errTruncate, or that of a failed write.
func (c *call) serve(kind api, body []byte, h http.Header) error {
	q, err := c.s.responses.parse(kind, body)
	if err != nil {
		return err
	}
	c.q = q
	if t := c.s.cfg.Published; t != nil {
		p, err := t.find(body)
		if err != nil {
			return err
		}
		q.prompts = [][]uint32{p.Tokens}
	}
	if !c.s.names(q) {
		c.s.violate(Violation{Kind: "wrong_model", Seq: c.rec.req.Seq, Detail: fmt.Sprintf(
			"model %q was asked of a worker for %q", q.model, c.s.cfg.Models)})
	}
	if v := h.Get("X-Data-Parallel-Rank"); v != "" && c.asked >= 0 {
		return c.broken("rank_named", http.StatusBadRequest, "X-Data-Parallel-Rank %.40q at the port of rank %d: behind it there is no other", v, c.asked)
	}
	c.items, err = c.s.engine.plan(c, h)
	if err != nil {
		return err
	}
	if p := c.s.cfg.Poison; p != "" && bytes.Contains(body, []byte(p)) {
		return &apiError{status: http.StatusInternalServerError, reason: "poison", msg: "this request is more than the engine can take"}
	}
	q.endsAtOnce = q.endsAtOnce || rand.Float64() < c.s.cfg.EndShare //nolint:gosec // a draw of a model's
	c.s.log.planned(c.rec, c)
	defer c.release()
	c.fault, c.lifted = c.s.fault.claim(body)
	if err := c.run(); err != nil {
		if errors.Is(err, errFinishAbort) {
			c.release()
			return c.answer(0, "abort")
		}
		return err
	}
	return nil
}

func (c *call) run() error {
	if c.fault.Mode == FaultSlow {
		if err := pause(c.ctx, time.Duration(c.fault.DelayMS)*time.Millisecond); err != nil {
			return err
		}
	}
	for _, when := range []Moment{Before, Begun} {
		if err := c.strike(when); err != nil {
			return err
		}
	}
	if c.fault.Mode == FaultEarly200 && c.s.decodes() {
		if err := c.sendHeaders(); err != nil {
			return err
		}
	}
	// vLLM sends the roles before anything of the answer is known, and so does SGLang of a response.
	if c.q.stream && (c.s.vllm() || c.kind == apiResponse) && !c.headers {
		if err := c.sendRoles(); err != nil {
			c.s.dropTransfer(c.transfer) // the engine already has the request, and ends it
			return err
		}
	}
	if err := c.prepareAll(); err != nil {
		return err
	}
	if err := c.strike(After); err != nil {
		return err
	}
	out, reason := c.s.engine.output(c)
	if c.fault.Mode == FaultFinish && !(c.fault.Reason == "stop" && c.q.floor() >= out) {
		reason = c.fault.Reason
	}
	if c.aborted() {
		out, reason = 0, "length"
	}
	return c.answer(out, reason)
}

// limit returns the number of output tokens that the request asks for, and the finish
// reason.
func (c *call) limit() (int, string) {
	if c.q.endsAtOnce && c.q.floor() == 0 && !c.q.ignoresEnd {
		return 1, "stop"
	}
	if c.q.maxTokens < 0 {
		return defaultOutput, "stop"
	}
	return c.q.maxTokens, "length"
}

// floor is the number of tokens that an answer must have before the engine may end it.
func (q *genRequest) floor() int {
	n, err := strconv.Atoi(string(q.minTokens))
	if err != nil {
		return 0
	}
	return n
}

// prepareAll computes or fetches the KV of every item, up to its first token.
func (c *call) prepareAll() error {
	prepare := c.s.engine.prepare
	for i, it := range c.items {
		if i > 0 && &it.prompt[0] == &c.items[i-1].prompt[0] && it.space == c.items[i-1].space {
			it.sums = c.items[i-1].sums
			continue
		}
		it.sums = chainBlocks(nil, it.prompt, c.s.page(), it.space)
	}
	// The other choices of a prompt find its blocks in the cache, since the first choice
	// put them there.
	first := func(it *item) bool { return it.index%c.q.n == 0 }
	if c.leg != legWhole {
		first = func(*item) bool { return true }
	}
	for _, turn := range []bool{true, false} {
		var now []*item
		for _, it := range c.items {
			if first(it) == turn {
				now = append(now, it)
			}
		}
		g, ctx := errgroup.WithContext(c.ctx)
		for _, it := range now {
			g.Go(func() error { return prepare(ctx, c, it) })
		}
		if err := g.Wait(); err != nil {
			return err
		}
		if c.leg == legWhole {
			storeTogether(now)
		}
	}
	return nil
}

// storeTogether puts prompts into the caches of their ranks, and publishes all changes of
// a rank at once.
func storeTogether(items []*item) {
	ranks := map[*rank]bool{}
	for _, it := range items {
		it.hold.storeUntold(it.sums, it.prompt)
		ranks[it.rank] = true
	}
	for r := range ranks {
		r.flush()
	}
}

// blocks returns how many KV blocks the item needs with so many output tokens.
func (c *call) blocks(it *item, out int) int {
	page := c.s.page()
	return (len(it.prompt) + out + page - 1) / page
}

func (c *call) admit(ctx context.Context, it *item, out int) error {
	need := c.blocks(it, out)
	if has := c.s.cfg.usableBlocks(); need > has {
		return badRequest("the request needs %d KV blocks, the worker has %d", need, has)
	}
	hold, err := it.rank.admit(ctx, it.sums, need)
	if err != nil {
		return err
	}
	hold.space = it.space
	hold.expects(len(it.prompt), out)
	it.hold = hold
	return nil
}

func (c *call) output() int {
	out, _ := c.limit()
	return out
}

// compute waits as long as computing the uncached part of the prompt takes. With mid, the
// moment Mid comes halfway.
func (c *call) compute(ctx context.Context, it *item, mid bool) error {
	page := c.s.page()
	it.cached = min(it.hold.cached, (len(it.prompt)-1)/page) * page // the last token is always computed
	d := c.s.cfg.PrefillBase + time.Duration(len(it.prompt)-it.cached)*c.s.cfg.PrefillPerToken
	d = it.rank.computeFor(c.scale(d), c.s.cfg.SerialPrefill)
	if mid && c.fault.When == Mid && c.fault.Mode != FaultTruncate {
		if err := it.rank.compute(ctx, d/2); err != nil {
			return err
		}
		if err := c.strike(Mid); err != nil {
			return err
		}
		d -= d / 2
	}
	return it.rank.compute(ctx, d)
}

// computeNow computes the prompt and puts it into the cache.
func (c *call) computeNow(ctx context.Context, it *item, mid bool) error {
	if err := c.compute(ctx, it, mid); err != nil {
		return err
	}
	it.hold.store(it.sums, it.prompt)
	return nil
}

func (s *Sim) prepareAggregated(ctx context.Context, c *call, it *item) error {
	if err := c.admit(ctx, it, c.output()); err != nil {
		return err
	}
	return c.compute(ctx, it, false)
}

// runPrefill enters the room, computes the prompt and returns when the KV has been taken.
func (s *Sim) runPrefill(ctx context.Context, c *call, it *item) error {
	it.half = &prefillHalf{
		room: it.meet.room, seq: c.rec.req.Seq, digest: it.digest, rank: it.rank.id, aborted: c.aborted(),
		arrived: make(chan struct{}, 1), done: make(chan error, 1),
	}
	if err := s.rooms.enter(it.half); err != nil {
		it.half = nil
		return err
	}
	timeout := time.NewTimer(s.cfg.BootstrapTimeout)
	defer timeout.Stop()
	if s.cfg.HandshakeFirst {
		met := func() bool { return s.rooms.decodeHere(it.half) }
		if over, err := s.awaitDecode(ctx, it.half, timeout.C, met); over || err != nil {
			return err
		}
	}
	if err := c.admit(ctx, it, 0); err != nil {
		return err
	}
	if err := c.computeNow(ctx, it, true); err != nil {
		return err
	}
	it.hold.leaveSlot()
	s.rooms.setReady(it.half, it.cached)
	_, err := s.awaitDecode(ctx, it.half, timeout.C, func() bool { return false })
	return err
}

// awaitDecode waits until the function enough returns true, or the half is over. In the
// second case over is true, and the error says how it ended. A half that has no decode at
// the timeout fails.
func (s *Sim) awaitDecode(
	ctx context.Context, p *prefillHalf, timeout <-chan time.Time, enough func() bool,
) (over bool, err error) {
	for expired := false; ; {
		if enough() {
			return false, nil
		}
		select {
		case err := <-p.done:
			return true, err
		case <-ctx.Done():
			return true, ctx.Err()
		case <-timeout:
			expired = true
		case <-p.arrived:
		}
		if expired && s.rooms.leaveAlone(p) {
			return true, &apiError{status: http.StatusInternalServerError, reason: "bootstrap_timeout", msg: fmt.Sprintf(
				"Prefill bootstrap failed: no decode came to bootstrap room %d within %s", p.room, s.cfg.BootstrapTimeout)}
		}
	}
}

// runDecode allocates blocks and waits for the KV; the first token then exists.
func (s *Sim) runDecode(ctx context.Context, c *call, it *item) error {
	if err := c.admit(ctx, it, c.output()); err != nil {
		return err
	}
	s.decodeWaiting.Add(1)
	defer s.decodeWaiting.Add(-1)
	cached, err := s.awaitKV(ctx, it, c.rec.req.Seq)
	if err != nil {
		return err
	}
	it.cached = cached
	it.hold.store(it.sums, it.prompt)
	return nil
}

// release leaves the rooms and frees the blocks. It may be called several times.
func (c *call) release() {
	for _, it := range c.items {
		if it.half != nil {
			c.s.rooms.leave(it.half)
			it.half = nil
		}
		if it.hold != nil {
			it.hold.release()
		}
	}
}

// grows stores what has been generated of a streamed answer. vLLM shares and publishes a
// block as soon as it is full. SGLang puts an answer into its radix tree when it ends.
func (c *call) grows(out int) {
	if !c.s.vllm() || out < 2 || c.leg == legPrefill {
		return
	}
	page := c.s.page()
	for _, it := range c.items {
		if full := (len(it.prompt) + out - 1) / page; it.hold != nil && full > it.full {
			it.full = full
			it.store(out, page)
		}
	}
}

// store keeps the full blocks of the prompt and of the answer. The answer's last token
// does not count: no step has computed its KV yet.
func (it *item) store(out, page int) {
	tokens := slices.Concat(it.prompt, answerTokens(it.digest, 0, out-1))
	it.hold.store(chainBlocks(slices.Clip(it.sums), tokens, page, it.space), tokens)
}

// complete stores what was generated, releases everything and closes the record. This
// happens before the last byte is sent, so that a client with the whole answer finds
// nothing held.
func (c *call) complete(out int, reason string) {
	for _, it := range c.items {
		if out > 1 && it.hold != nil && c.leg != legPrefill {
			it.store(out, c.s.page())
		}
		it.rank.account(len(it.prompt), it.cached, out)
	}
	c.release()
	o := outcome{outcome: OutcomeOK, status: http.StatusOK, cached: c.cachedTokens(), output: out * len(c.items)}
	if reason == "abort" {
		o.outcome = OutcomeAborted
	}
	c.s.log.finish(c.rec, o)
}

// promptTokens counts each prompt once, however many choices it has.
func (c *call) promptTokens() int {
	n := 0
	for i := 0; i < len(c.items); i += c.q.n {
		n += c.told(len(c.items[i].prompt))
	}
	return n
}

// cachedTokens counts the last choice of each prompt, as the engines do.
func (c *call) cachedTokens() int {
	n := 0
	for i := c.q.n - 1; i < len(c.items); i += c.q.n {
		n += c.items[i].cached
	}
	return n
}
