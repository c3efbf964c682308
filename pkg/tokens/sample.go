package tokens

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/tokens/local"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// This file compares sampled prompts with KV events. An event lists the token ids of each
// block that an engine has stored. If the blocks of an engine that has computed a prompt have
// the hashes that were made here, their ids are the same.

// Compared is what came of one sampled prompt.
type Compared string

// The ends of a comparison.
const (
	// CompareTold means that the engine's events have listed all blocks of the prompt.
	CompareTold Compared = "told"
	// CompareEqual means that they have not, and that the engine's tokenizer gave the same
	// tokens. Either blocks were dropped or are not stored at all, or they have keys beside
	// their tokens that are not known.
	CompareEqual Compared = "equal"
	// CompareDiffers means that the engine's tokenizer gave other tokens.
	CompareDiffers Compared = "differs"
	// CompareUnknown means that the events have not listed all blocks, and that the engine
	// was not asked or gave no answer that can be compared.
	CompareUnknown Compared = "unknown"
)

const (
	sampleEvery  = 10 * time.Second // for each form of a model's prompts, at most
	sampleLost   = time.Minute      // a prompt that has not been computed by then is given up
	sampleBytes  = 64 << 10         // of a longer body only hashes are kept
	sampleBlocks = 8192             // the leading blocks that are compared
	toldWithin   = 30 * time.Second // an answer's head may come before its prompt is computed
	toldAgain    = 500 * time.Millisecond
	sampleAsked  = 5 * time.Second // for the answer of the engine's tokenizer
)

// sample is a prompt whose tokens were made here, until an engine has computed it.
type sample struct {
	key    worker.Key
	engine worker.Engine
	hashes []kvindex.LocalHash
	trial  local.Trial // the request; its Body is nil if no tokenizer is asked
}

// sampler picks samples of one form of a model's prompts, one at a time. What waits and what
// is compared therefore takes a bounded amount of memory. Safe for concurrent use.
type sampler struct {
	due atomic.Int64 // when the next one may be picked, in ns since 1970

	mu        sync.Mutex
	number    uint64    // of the sample picked last; guarded by mu, as all below
	picked    time.Time // when it was
	sample    *sample   // nil: none waits
	comparing bool
}

// pick makes q a sample and returns its number; 0: it is none.
func (s *sampler) pick(q *Query, hashes []kvindex.LocalHash, now time.Time) uint64 {
	if len(hashes) == 0 || now.UnixNano() < s.due.Load() {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.comparing || now.UnixNano() < s.due.Load() {
		return 0
	}
	s.number++
	s.picked = now
	s.due.Store(now.Add(sampleLost).UnixNano())
	s.sample = &sample{
		key: q.Key, engine: q.Engine, hashes: slices.Clone(hashes[:min(len(hashes), sampleBlocks)]),
		trial: local.Trial{Name: "a request", Path: q.Request.Path},
	}
	if len(q.Body) <= sampleBytes && tokenizeTells(q) {
		s.sample.trial.Body = bytes.Clone(q.Body)
	}
	return s.number
}

// tokenizeTells reports whether /tokenize certainly tells the tokens that the engine computes
// for a request. vLLM's takes no reasoning_effort, documents or tool_choice, and no
// reasoning_content of a message (TokenizeChatRequest of 0.32). Of a list each prompt would be
// a question.
func tokenizeTells(q *Query) bool {
	switch q.Request.PromptKind {
	case openai.PromptString:
		return true
	case openai.PromptMessages:
		for _, f := range [...]openai.Field{openai.ReasoningEffort, openai.Documents, openai.ToolChoice} {
			if q.Request.Given(q.Body, f) {
				return false
			}
		}
		return !bytes.Contains(q.Body, []byte("reasoning_content"))
	default:
		return false
	}
}

// take returns the sample of this number to be compared; nil: there is none. The caller then
// calls done.
func (s *sampler) take(number uint64) *sample {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sample == nil || number != s.number {
		return nil
	}
	taken := s.sample
	s.sample, s.comparing = nil, true
	return taken
}

func (s *sampler) done() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.comparing = false
	s.due.Store(s.picked.Add(sampleEvery).UnixNano())
}

// Computed tells that rank r, which answers at ep, computes the prompt or has computed it. If
// the prompt is a sample, it is compared with the rank's KV events. If these do not list all
// of it in time, the rank's tokenizer is asked. If that differs, the files are out of use for
// such prompts. Computed does not wait for the comparison.
func (c Claim) Computed(r worker.Rank, ep worker.Endpoint) {
	if c.sample == 0 {
		return
	}
	from := c.files.sampler(c.of)
	s := from.take(c.sample)
	if s == nil {
		return
	}
	c.by.begin(func() {
		end := c.by.compare(c.files, c.of, s, r, ep)
		from.done()
		if c.by.cfg.OnCompared != nil {
			c.by.cfg.OnCompared(end)
		}
	})
}

// compare compares one sample.
func (r *Resolver) compare(f *files, of form, s *sample, rank worker.Rank, ep worker.Endpoint) Compared {
	if r.toldAll(s.hashes, rank) {
		return CompareTold
	}
	if s.trial.Body == nil || r.life.Err() != nil || f.unsure(of, time.Now()) {
		return CompareUnknown
	}
	to, ok := choose([]*asides{r.asides}, []worker.Endpoint{ep}, sampleAsked)
	if !ok {
		return CompareUnknown
	}
	ctx, cancel := context.WithTimeout(r.life, sampleAsked)
	defer cancel()
	ours, theirs, err := r.both(ctx, f, of.caller, s.key, s.engine, to.ep, &s.trial)
	if errors.Is(err, errNotTried) {
		err = &Error{Reason: ReasonRefused} // which shows nothing about the tokenizer
	}
	to.heard(err, false)
	switch {
	case err != nil || f.unsure(of, time.Now()):
		return CompareUnknown
	case len(ours) != len(theirs):
		return CompareUnknown // then one of both is not what was computed: the usage of the answer says which
	case !slices.Equal(ours, theirs):
		if r.filesOf(f.name) == f {
			f.set(of, s.engine, Differs, f.model.Compare(&s.trial, of.caller, ours, theirs))
		}
		return CompareDiffers
	default:
		return CompareEqual
	}
}

// toldAll waits until the rank is known to hold all blocks, for as long as that may take.
func (r *Resolver) toldAll(hashes []kvindex.LocalHash, rank worker.Rank) bool {
	again := time.NewTicker(toldAgain)
	defer again.Stop()
	for late := time.After(toldWithin); ; {
		if r.cfg.Told(rank, hashes) {
			return true
		}
		select {
		case <-again.C:
		case <-late:
			return false
		case <-r.life.Done():
			return false
		}
	}
}
