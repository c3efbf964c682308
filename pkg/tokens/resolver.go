package tokens

import (
	"context"
	"maps"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/tokens/local"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Resolver resolves requests. Safe for concurrent use.
type Resolver struct {
	// set at construction, read-only
	cfg    Config
	cache  *cache
	asides *asides
	// For prompts with pictures, which take engines longer: renderers has the engines
	// that do not tell pictures' hashes, expanders those that do not tokenize such
	// prompts.
	renderers, expanders *asides
	client               *http.Client
	slots                chan struct{} // one element for each running question about a text

	pictureSlots chan struct{} // the same for prompts with pictures

	conversions conversions

	files atomic.Pointer[map[string]*files] // of the models whose tokens are made here, by name; replaced whole, under mu
	life  context.Context                   //nolint:containedctx // ends with Close; of trials
	end   context.CancelFunc

	// mu guards the fields below. Lock order: mu → cache.mu, mu → the mu of each asides.
	// No I/O and no call of a caller's function while it is held.
	mu      sync.Mutex
	flights map[cacheKey]*flight
	copied  int // bytes of prompts copied into running questions
	closed  bool
	running sync.WaitGroup // counts flights; added to under mu, unless closed
}

// New returns a resolver, or all faults of the configuration.
func New(cfg Config) (*Resolver, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	r := &Resolver{
		cfg:    cfg,
		cache:  newCache(cfg.CacheEntries, cfg.CacheBytes),
		asides: newAsides(cfg.SetAside),

		renderers: newAsides(cfg.SetAside),
		expanders: newAsides(cfg.SetAside),

		client: &http.Client{
			Transport:     cfg.Transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		slots: make(chan struct{}, cfg.MaxInFlight),

		pictureSlots: make(chan struct{}, cfg.picturesInFlight()),
		flights:      make(map[cacheKey]*flight),
	}
	r.life, r.end = context.WithCancel(context.Background())
	all := make(map[string]*files, len(cfg.Local))
	for name, m := range cfg.Local {
		all[name] = newFiles(name, m, cfg.OnStanding)
	}
	r.files.Store(&all)
	return r, nil
}

// Use has the tokens of a model's prompts made from m from now on, once a trial has shown
// that m gives them; nil: engines are asked.
func (r *Resolver) Use(model string, m *local.Model) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := maps.Clone(*r.files.Load())
	if m == nil {
		delete(all, model)
	} else {
		all[model] = newFiles(model, m, r.cfg.OnStanding)
	}
	r.files.Store(&all)
}

// filesOf returns the files of a model, or nil.
func (r *Resolver) filesOf(model string) *files { return (*r.files.Load())[model] }

// begin runs a question in a goroutine that Close waits for. False means that it does not, after
// Close.
func (r *Resolver) begin(question func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.running.Go(question)
	}
	return !r.closed
}

// Close cancels the running questions, waits until they have ended, and closes idle
// connections. Engine fails afterwards; Fast and Estimate still work.
func (r *Resolver) Close() {
	r.mu.Lock()
	r.closed = true
	r.end()
	for _, f := range r.flights {
		f.cancel()
	}
	r.mu.Unlock()
	r.running.Wait()
	r.client.CloseIdleConnections()
}

// Fast resolves q if that needs no waiting. False means that a tokenizer may help; the
// Prompt is then zero.
func (r *Resolver) Fast(q Query, s *Scratch) (Prompt, bool) {
	switch k := q.Request.PromptKind; {
	case r.cfg.Mode == Off:
		return r.guess(q), true
	case k == openai.PromptIDs || k == openai.PromptIDLists:
		return r.fromRequest(q, s), true
	case k == openai.PromptNone:
		return Prompt{Reason: ReasonNoText}, true
	case r.cfg.Mode == EstimateOnly:
		return r.Estimate(q, s, ReasonMode), true
	case q.promptBytes() > r.cfg.MaxTokenizeBytes:
		return r.Estimate(q, s, ReasonTooLarge), true
	case q.unread() && q.page == "":
		return r.Estimate(q, s, ReasonUnconverted), true
	}
	if e := r.cache.get(q.key(q.hashing())); e != nil {
		return r.converted(&q, q.counted(e.prompt(true))), true
	}
	if q.unread() {
		return Prompt{}, false
	}
	p, ok := r.fromFiles(&q, s)
	return r.converted(&q, p), ok
}

// Resolve calls Fast, then Engine, then Estimate, until one succeeds. It waits for at
// most Wait, and no longer than ctx.
func (r *Resolver) Resolve(ctx context.Context, q Query, from []worker.Endpoint, s *Scratch) Prompt {
	if p, ok := r.Fast(q, s); ok {
		return p
	}
	p, err := r.Engine(ctx, q, from)
	if err != nil {
		return r.Estimate(q, s, ReasonOf(err))
	}
	return p
}

// promptBytes returns the length of what would be sent to a tokenizer.
func (q *Query) promptBytes() int {
	if q.unread() {
		return len(q.Body)
	}
	s := q.Request.Value(q.Request.PromptField)
	n := s.End - s.Start
	for f := range q.beyondPrompt {
		s = q.Request.Value(f)
		n += s.End - s.Start
	}
	return n
}

// guess returns only a length, estimated from the raw prompt. It is for the mode without
// hashes.
func (r *Resolver) guess(q Query) Prompt {
	n := q.Request.PromptTokens
	if k := q.Request.PromptKind; k != openai.PromptIDs && k != openai.PromptIDLists {
		n = (q.promptBytes() + r.cfg.EstimateBytesPerToken - 1) / r.cfg.EstimateBytesPerToken
	}
	return Prompt{ISLTokens: q.cut(n), Reason: ReasonOff}
}

// fromRequest uses the ids in the request.
func (r *Resolver) fromRequest(q Query, s *Scratch) Prompt {
	var err error
	s.tokens, err = openai.AppendTokenIDs(s.tokens[:0], q.Body, q.Request.Value(q.Request.PromptField))
	if err != nil {
		return Prompt{ISLTokens: q.Request.PromptTokens, Reason: ReasonBadIDs}
	}
	if len(s.tokens) > q.keeps() {
		return Prompt{ISLTokens: q.cut(q.Request.PromptTokens), Reason: ReasonTruncated}
	}
	s.est.hashes = r.hash(s.est.hashes[:0], s.tokens, q.hashing())
	return q.counted(Prompt{Tokens: s.tokens, Hashes: s.est.hashes, ISLTokens: q.Request.PromptTokens,
		Source: FromRequest, Reason: ReasonIDs})
}

// counted says of p, whose tokens are known, whether the engine that computes it counts as
// many. It may cut a prompt that is as long as the model takes. Its tokenizer's answer counts
// only if the question had all that the tokens depend on. With some members nobody but the engine
// knows its tokens.
func (q *Query) counted(p Prompt) Prompt {
	p.Exact = !p.Partial && !q.odd && (q.MaxModelLen == 0 || p.ISLTokens < q.MaxModelLen) &&
		(p.Source != FromEngine || tokenizeTells(q) && !q.Request.Given(q.Body, openai.AddSpecialTokens))
	return p
}

// hash appends the hashes of the blocks of tokens, at most MaxBlocks.
func (r *Resolver) hash(dst []kvindex.LocalHash, tokens []uint32, h hashing) []kvindex.LocalHash {
	hash := kvindex.AppendLocalHashes
	if h.eagle {
		hash = kvindex.AppendPairHashes
	}
	return hash(dst, r.hashed(tokens, h), h.blockSize, h.seed)
}

// hashed returns the tokens of the first MaxBlocks blocks.
func (r *Resolver) hashed(tokens []uint32, h hashing) []uint32 {
	behind := 0
	if h.eagle {
		behind = 1
	}
	if h.blockSize > 0 && (len(tokens)-behind)/h.blockSize > r.cfg.MaxBlocks {
		return tokens[:r.cfg.MaxBlocks*h.blockSize+behind]
	}
	return tokens
}
