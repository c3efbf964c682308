package tokens

import (
	"encoding/binary"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/recent"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
)

// cacheKey identifies a prompt: it covers all that the prompt's tokens and hashes depend
// on. A client that seeks collisions can find some, but misleads only the routing of its
// own requests.
type cacheKey xxh3.Uint128

// besideMessages are the members, besides the messages, on which the tokens of messages
// and the names of their pictures depend (docs/engines.md#render). The tokenizer is given
// them, and the cache key covers them.
func besideMessages() [11]openai.Field {
	return [...]openai.Field{openai.Tools, openai.ToolChoice, openai.ChatTemplateKwargs,
		openai.ReasoningEffort, openai.ContinueFinalMessage, openai.AddGenerationPrompt,
		openai.ChatTemplate, openai.Documents, openai.AddSpecialTokens,
		openai.MMProcessorKwargs, openai.MediaIOKwargs}
}

// beyondPrompt yields the members beside the prompt's own that its tokens depend on.
func (q *Query) beyondPrompt(yield func(openai.Field) bool) {
	if q.Request.PromptKind == openai.PromptMessages {
		for _, f := range besideMessages() {
			if !yield(f) {
				return
			}
		}
	}
	if q.truncates() {
		for _, f := range truncation() {
			if !yield(f) {
				return
			}
		}
	}
}

// key hashes each part that q's prompt depends on, and then the list of these hashes. It
// allocates nothing.
func (q *Query) key(h hashing) cacheKey {
	var buf [19 * 17]byte
	b := buf[:0]
	part := func(tag byte, h xxh3.Uint128) {
		b = append(b, tag)
		b = binary.LittleEndian.AppendUint64(b, h.Hi)
		b = binary.LittleEndian.AppendUint64(b, h.Lo)
	}
	r := q.Request
	form := byte(0)
	if h.eagle {
		form = 1
	}
	if q.Renders {
		form |= 2
	}
	part(form, xxh3.Uint128{Hi: uint64(h.blockSize)<<8 | uint64(r.PromptKind), Lo: h.seed})
	part(0, xxh3.HashString128(q.Key.Model))
	part(0, xxh3.HashString128(q.Key.Namespace))
	part(byte(r.PromptField), xxh3.Hash128(r.Value(r.PromptField).Of(q.Body)))
	if q.unread() {
		part(byte(r.Path), xxh3.Hash128(q.Body))
		return cacheKey(xxh3.Hash128(b))
	}
	for f := range q.beyondPrompt {
		if r.Has(f) {
			part(byte(f), xxh3.Hash128(r.Value(f).Of(q.Body)))
		}
	}
	return cacheKey(xxh3.Hash128(b))
}

// entry is one tokenized prompt, immutable once it is in the cache.
type entry struct {
	key    cacheKey
	tokens []uint32
	hashes []kvindex.LocalHash
	isl    int

	reason   Reason            // see Prompt.Reason
	partial  bool              // see Prompt.Partial
	pictures []kvindex.Picture // nil once hashes are made
	longest  int               // tokens of the longest prompt in a tokenizer's answer; see Query.keeps
	until    time.Time         // not used after this time; zero: no limit
}

// entryOverhead is what an entry costs besides its slices, in bytes.
const entryOverhead = 200

func (e *entry) bytes() int { return entryOverhead + 4*cap(e.tokens) + 8*cap(e.hashes) }

func (e *entry) prompt(cached bool) Prompt {
	p := Prompt{Tokens: e.tokens, Hashes: e.hashes, ISLTokens: e.isl, Source: FromEngine,
		Cached: cached, Reason: e.reason, Partial: e.partial}
	if cached && e.reason == ReasonTokenized {
		p.Reason = ReasonCached
	}
	return p
}

// cache remembers the prompts used last. Safe for concurrent use.
type cache struct {
	maxEntries, maxBytes int // set at construction, read-only

	mu    sync.Mutex                   // guards the fields below; no function is called while it is held
	used  recent.Map[cacheKey, *entry] // the newest is the one used last
	bytes int                          // Invariant: the sum of bytes() over used
}

func newCache(maxEntries, maxBytes int) *cache {
	return &cache{maxEntries: maxEntries, maxBytes: maxBytes}
}

// get returns the entry with the key, or nil.
func (c *cache) get(k cacheKey) *entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, known := c.used.Get(k, time.Time{})
	switch {
	case !known:
		return nil
	case !e.until.IsZero() && time.Now().After(e.until):
		c.used.Delete(k)
		c.bytes -= e.bytes()
		return nil
	}
	c.used.Put(k, e, time.Time{})
	return e
}

// put adds an entry and drops those used longest ago. An entry larger than the whole
// cache is not kept.
func (c *cache) put(e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, known := c.used.Get(e.key, time.Time{})
	if known || e.bytes() > c.maxBytes {
		return
	}
	c.used.Put(e.key, e, time.Time{})
	c.bytes += e.bytes()
	for c.used.Len() > c.maxEntries || c.bytes > c.maxBytes {
		_, out, _ := c.used.DropOldest()
		c.bytes -= out.bytes()
	}
}
