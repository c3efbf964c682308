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
	meet   *meeting // nil: its other half is not met in a room
	rank   *rank
	hold   *hold
	cached int // tokens
	full   int // blocks of prompt and answer that events have told; see grows
}

// meeting is the room and the address at which one prompt of a request meets its other
// half.
type meeting struct {
	room int64
	addr string // "host:port" of the prefill's bootstrap server
}

// call is one generation request, from its arrival to its answer.
type call struct {
	s       *Sim
	kind    api
	ctx     context.Context //nolint:containedctx // a call is one request
	w       http.ResponseWriter
	rec     *record
	seq     uint64 // of the request
	q       *genRequest
	items   []*item
	job     job
	handoff string // the id of the hand-off that a decode request brought; "": none
	fault   Fault
	lifted  <-chan struct{} // closes when the fault is changed
	started time.Time
	headers bool // the status line has been sent
	begun   bool // the roles have been sent, too
	events  int  // of a response, numbered
	leg     leg
	asked   int // the rank at whose own port the request came; -1: all ranks share a port

	// What the engine appends to a whole answer: after each choice's finish reason, and
	// after the usage. Set by the job's handOver.
	choiceTail, bodyTail []byte
}

// serve runs the call. The caller answers the client with the error, unless it is the
// context's, errTruncate, or that of a failed write.
func (c *call) serve(kind api, body []byte, h http.Header) error {
	q, err := c.s.pages.responses.parse(kind, body)
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
	if !c.s.names(q.model) {
		c.s.violate(Violation{Kind: "wrong_model", Seq: c.seq, Detail: fmt.Sprintf(
			"model %q was asked of a worker for %q", q.model, c.s.cfg.Models)})
	}
	if v := h.Get("X-Data-Parallel-Rank"); v != "" && c.asked >= 0 {
		return c.broken("rank_named", http.StatusBadRequest, "X-Data-Parallel-Rank %.40q at the port of rank %d: behind it there is no other", v, c.asked)
	}
	c.items, c.job, err = c.s.engine.plan(c, h)
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
	if c.fault.Mode == FaultEarly200 && c.s.cfg.decodes() {
		if err := c.sendHeaders(); err != nil {
			return err
		}
	}
	if c.q.stream && (c.s.engine.shape.begins || c.kind == apiResponse) && !c.headers {
		if err := c.sendRoles(); err != nil {
			c.job.abandon()
			return err
		}
	}
	if err := c.prepareAll(); err != nil {
		return err
	}
	if err := c.strike(After); err != nil {
		return err
	}
	out, reason := c.job.output()
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
			g.Go(func() error { return c.job.prepare(ctx, it) })
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

// admit waits until the item's rank has a slot, and blocks for the prompt and for out
// tokens of the answer.
func (c *call) admit(ctx context.Context, it *item, out int) error {
	page := c.s.page()
	need := (len(it.prompt) + out + page - 1) / page
	if has := c.s.usableBlocks(); need > has {
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

// output is how many tokens the request asks for.
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

// prepareWhole computes the prompt of a request that is served whole.
func (c *call) prepareWhole(ctx context.Context, it *item) error {
	if err := c.admit(ctx, it, c.output()); err != nil {
		return err
	}
	return c.compute(ctx, it, false)
}

// release leaves what the request has joined, and frees the blocks. It may be called
// several times.
func (c *call) release() {
	c.job.release()
	for _, it := range c.items {
		if it.hold != nil {
			it.hold.release()
		}
	}
}

// grows stores what has been generated of a streamed answer, if the engine shares and
// publishes a block as soon as it is full.
func (c *call) grows(out int) {
	if !c.s.engine.growing || out < 2 || c.leg == legPrefill {
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

// cachedTokens counts the last choice of each prompt, as the engines do.
func (c *call) cachedTokens() int {
	n := 0
	for i := c.q.n - 1; i < len(c.items); i += c.q.n {
		n += c.items[i].cached
	}
	return n
}

// newItems returns one item for each choice of each prompt.
func (c *call) newItems() ([]*item, error) {
	q, cfg := c.q, c.s.cfg
	if least := q.floor(); q.maxTokens >= 0 && least > q.maxTokens {
		return nil, badRequest("a minimum of %d tokens: expected at most the limit, %d", least, q.maxTokens)
	}
	items := make([]*item, 0, len(q.prompts)*q.n)
	for i, p := range q.prompts {
		space, err := c.s.spaceOf(q, i)
		if err != nil {
			return nil, err
		}
		if len(p)+max(q.maxTokens, 1) > cfg.MaxModelLen {
			return nil, badRequest("prompt of %d tokens and %d of output: expected at most %d together", len(p), max(q.maxTokens, 1), cfg.MaxModelLen)
		}
		for range q.n {
			items = append(items, &item{index: len(items), prompt: p, space: space, digest: digest(p)})
		}
	}
	return items, nil
}

// place gives the item a rank: that number, or the next rank for -1.
func (c *call) place(it *item, rank int) {
	if rank < 0 {
		rank = int(c.s.nextRank.Add(1)-1) % len(c.s.ranks)
	}
	it.rank = c.s.ranks[rank]
}

// name identifies the request among the requests of all workers.
func (c *call) name() string { return c.s.processID + "/" + strconv.FormatUint(c.seq, 10) }

// broken records a violation and returns the error that the client gets.
func (c *call) broken(kind string, status int, format string, a ...any) *apiError {
	msg := fmt.Sprintf(format, a...)
	c.s.violate(Violation{Kind: kind, Seq: c.seq, Detail: msg})
	reason := "handoff"
	if status < 500 {
		reason = "bad_request"
	}
	return &apiError{status: status, reason: reason, msg: msg}
}

// handedOver notes the id under which a prefill's KV is held.
func (c *call) handedOver(id string) { c.s.log.handedOver(c.rec, id) }

// mixedPair is the kind of violation that otherGroup tells of.
const mixedPair = "mixed_pair"

// otherGroup says why no KV goes between workers of two groups; "": it may.
func otherGroup(prefill, decode string) string {
	if prefill == decode || prefill == "" || decode == "" {
		return ""
	}
	return fmt.Sprintf("prefill is of group %q, decode of %q", prefill, decode)
}

// externalID is the id of the answer, for engines at which X-Request-Id sets it
// (docs/engines.md#vllm-request-id).
func externalID(q *genRequest, h http.Header) string {
	id := h.Get("X-Request-Id")
	if id == "" {
		id = drawnID()
	}
	switch q.api {
	case apiResponse: // its own member alone sets it
		return q.rid
	case apiTokens:
		return "generate-tokens-" + id
	case apiChat, apiMessage:
		return "chatcmpl-" + id
	default:
		return "cmpl-" + id
	}
}
