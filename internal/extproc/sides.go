package extproc

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/route"
	"github.com/seed-60ae5743/baton/internal/sides"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
	"github.com/seed-60ae5743/baton/pkg/tokens"
)

// pairs gives what attempts tell of their two workers' counts to a book of internal/sides. Safe for
// concurrent use.
type pairs struct {
	counts *telemetry.Instruments
	log    *slog.Logger
	apart  atomic.Pointer[sides.Apart] // of book

	mu   sync.Mutex
	book sides.Book // guarded by mu
}

// do changes the book, and publishes what has become of it.
func (p *pairs) do(change func(*sides.Book)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.book)
	p.apart.Store(p.book.Apart())
}

// Differences returns the pairs of workers that are not used since they have counted the tokens of one
// prompt differently.
func Differences(srv *Server) []sides.Difference {
	if a := srv.pairs.apart.Load(); a != nil {
		return a.Differences
	}
	return nil
}

// comparison is of the tokens of one attempt's prompt. Safe for concurrent use.
type comparison struct {
	by    *pairs
	pair  sides.Pair
	model string

	mu            sync.Mutex
	ours, prefill int64
	decode        [sources]int64 // guarded by mu, as prefill; 0: not told
	over          [sources]bool  // guarded by mu: compared
}

// source says how decode's count is known. Each is compared by itself: a prompt that is cut is cut where
// it is computed, and not at /tokenize.
type source uint8

const (
	byTokenizer source = iota
	byUsage
	sources
)

// compare begins the comparison of an attempt, and has decode's tokenizer asked if that is due. It
// returns nil if the two counts need not be equal: several prompts or generations are added up in
// several ways.
func (p *pairs) compare(d *route.Decision, q tokens.Query, of *tokens.Resolver) *comparison {
	switch {
	case !d.Apart || d.Kind.ByOthers() || q.Request == nil || q.Request.Parallel() != 1:
		return nil
	case q.Request.PromptKind != openai.PromptString && q.Request.PromptKind != openai.PromptIDs && q.Request.PromptKind != openai.PromptMessages:
		return nil
	}
	c := &comparison{by: p, model: d.Key.Model}
	if d.Prompt.Exact {
		c.ours = int64(d.Prompt.ISLTokens)
	}
	now, due := time.Now(), false
	p.do(func(b *sides.Book) {
		c.pair = b.Begin(d.Prefill.Rank.ID, d.Decode.Rank.ID)
		due = b.Due(c.pair, now)
	})
	answered := func(n int) {
		p.do(func(b *sides.Book) { b.Answered(c.pair, n > 0, time.Now()) })
		c.told(byTokenizer, int64(n))
	}
	if due && !of.Count(q, d.Decode.Worker.EndpointOf(d.Decode.Rank.DPRank), answered) {
		p.do(func(b *sides.Book) { b.Unasked(c.pair) })
	}
	return c
}

// computed takes what prefill has counted; 0: nothing. c may be nil.
func (c *comparison) computed(n int64) {
	if c == nil || n <= 0 {
		return
	}
	c.mu.Lock()
	c.prefill = n
	c.mu.Unlock()
	for of := range sources {
		c.told(of, 0)
	}
}

// told takes what decode has counted; 0: nothing new. c may be nil.
func (c *comparison) told(of source, n int64) {
	if c == nil {
		return
	}
	c.mu.Lock()
	if n > 0 {
		c.decode[of] = n
	}
	counts := sides.Counts{Ours: c.ours, Prefill: c.prefill, Decode: c.decode[of]}
	ready := !c.over[of] && counts.Prefill > 0 && counts.Decode > 0
	c.over[of] = c.over[of] || ready
	c.mu.Unlock()
	if !ready {
		return
	}
	var d sides.Difference
	var first bool
	c.by.do(func(b *sides.Book) { d, first = b.Heard(c.pair, counts) })
	c.by.counts.PairCounted(counts.Prefill == counts.Decode)
	if !first {
		return
	}
	c.by.log.Warn("a prefill and a decode worker count the tokens of one prompt differently: decode would use the KV of another prompt, so they are no pair from now on; "+
		"check that both have the same chat template, tokenizer and limit of the prompt's length (--max-model-len, truncation)",
		logkey.Model, c.model, logkey.Prefill, d.Prefill.String(), logkey.Decode, d.Decode.String(),
		logkey.PrefillTokens, counts.Prefill, logkey.DecodeTokens, counts.Decode, logkey.ISLTokens, counts.Ours, logkey.Alone, aloneOf(&d))
}

func aloneOf(d *sides.Difference) string {
	if d.Alone == 0 {
		return "unknown"
	}
	return d.Alone.String()
}

// hear takes what the event says of the two workers' counts, as counts has read it.
func (c *comparison) hear(ev *notice, counts *tokenCounts) {
	switch ev.Kind {
	case leg.EventLeg, leg.EventPrefilled:
		c.computed(counts.prompt)
	case leg.EventResponseBody, leg.EventLogged:
		c.told(byUsage, counts.usage.Prompt)
	}
}
