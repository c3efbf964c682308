package route

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/internal/decision"
	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/outlen"
	"github.com/seed-60ae5743/baton/internal/overlap"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/tokens"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Config is what a Router is made of. The parts and functions are required but where it
// says otherwise, and safe for concurrent use.
type Config struct {
	// Board has the world that requests are judged in.
	Board *activation.Board
	// Newer returns a later world than that, and when that is, or nil where there is
	// none. It may wait for one that is known to come. Nil: what the board has.
	Newer func(than *activation.World) (*activation.World, time.Time)

	Book    *load.Book
	Health  *health.Tracker
	Overlap overlap.Config
	Routes  *overlap.Routes // of Overlap's index
	// Estimate guesses a prompt without asking anybody for its tokens.
	Estimate func(q tokens.Query, s *tokens.Scratch, why tokens.Reason) tokens.Prompt
	// Expect says what answers of a model have been like.
	Expect func(k worker.Key, maxTokens int64) outlen.Expectation
	// Left and LeftFrom report whether a worker has left that had the id, or listened
	// there. Nil: none has.
	Left     func(worker.ID) bool
	LeftFrom func(worker.Endpoint) bool

	// Policy is what models are judged by: which are served, and whether one worker may.
	Policy activation.Policy

	// How to pick, by role.
	Prefill, Decode, Aggregated picker.Params
	// Conditional says which requests one worker serves though prefill is there.
	Conditional Conditional
	// Overrides lets a request weigh and bind its own picks. Unweighed is called where a
	// request would weigh them and may not; nil: nobody is told.
	Overrides bool
	Unweighed func()
	// MaxQueuedISLTokens refuses new requests while so many prompt tokens are queued at
	// the prefill workers of their model; 0: never.
	MaxQueuedISLTokens int64
}

// Router decides who serves a request. Safe for concurrent use.
type Router struct {
	cfg      Config // read-only
	overlaps *overlap.Lookup
	taints   taintSets
	scratch  sync.Pool // of *Scratch
}

// New returns a Router.
func New(cfg Config) (*Router, error) {
	overlaps, err := overlap.New(cfg.Overlap)
	if err != nil {
		return nil, fmt.Errorf("route: %w", err)
	}
	rt := &Router{cfg: cfg, overlaps: overlaps}
	rt.scratch.New = func() any { return NewScratch() }
	return rt, nil
}

// Heard says that events of a rank have begun or ceased to arrive.
func (rt *Router) Heard() { rt.overlaps.Forget() }

// Scratch is the memory of one decision at a time, reused.
type Scratch struct {
	// Tokens is for whoever counts the request's tokens.
	Tokens tokens.Scratch

	guess   tokens.Scratch
	overlap overlap.Answer
	beyond  overlap.Answer // of a prompt that is known in part
	explain [2]load.Explanation
	bound   picker.Constraints
	record  decision.Record
	rng     *rand.Rand
}

// NewScratch returns memory for a decision.
func NewScratch() *Scratch {
	return &Scratch{rng: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))}
}

// Borrow lends memory for a decision until Return.
func (rt *Router) Borrow() *Scratch { return rt.scratch.Get().(*Scratch) }

// Return takes back what was lent. Neither the prompt whose tokens were counted in it nor
// the record of the decision may be looked at any more.
func (rt *Router) Return(sc *Scratch) { rt.scratch.Put(sc) }
