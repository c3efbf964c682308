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
	"github.com/seed-60ae5743/baton/internal/sides"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/tokens"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Params say how to pick.
type Params = picker.Params

// Config is what a Router is made of. Parts and functions are required unless their
// comment allows nil. They must be safe for concurrent use.
type Config struct {
	// Board has the current world, in which requests are judged.
	Board *activation.Board
	// Newer returns a world that is later than the given one, and its time; a nil world
	// if there is none. It may wait for a world that is known to come. Without it the
	// router looks at the Board.
	Newer func(than *activation.World) (*activation.World, time.Time)

	Book    *load.Book
	Health  *health.Tracker
	Overlap overlap.Config
	Routes  *overlap.Routes // for the index that Overlap names
	// Estimate guesses a prompt's tokens, without a question to an engine.
	Estimate func(q tokens.Query, s *tokens.Scratch, why tokens.Reason) tokens.Prompt
	// Expect says how long answers of a model have lately been.
	Expect func(k worker.Key, maxTokens int64) outlen.Expectation
	// Left and LeftFrom report whether a worker with the id, or with the endpoint, has
	// left. Without them none has.
	Left     func(worker.ID) bool
	LeftFrom func(worker.Endpoint) bool

	// Apart says which workers are no pair since they count the tokens of a prompt differently;
	// nil: nobody is.
	Apart func() *sides.Apart

	// Policy says which models are served, and whether one worker may serve a request.
	Policy activation.Policy

	// PassUnknown passes requests for a model that no worker is known to serve to the
	// workers whose models are not known, while there are such. Requests on other paths
	// that name no model go to one worker then, whatever the workers' models are.
	PassUnknown bool

	// HandedOver says which members are handed over that no row of what an engine takes has.
	// Nil: none are.
	HandedOver func(member string) bool

	// Targets are within which time first tokens are wanted of requests that do not say it, by model.
	Targets map[string]time.Duration

	// How to pick, by role.
	Prefill, Decode, Aggregated Params
	// Conditional says which requests one worker serves although prefill workers are
	// known.
	Conditional Conditional
	// Overrides allows a request to set the weights and the constraints of its own picks.
	// Unweighed, if set, is called when weights are given and Overrides is false.
	Overrides bool
	Unweighed func()
	// MaxQueuedISLTokens refuses new requests while at least so many prompt tokens are
	// queued at the prefill workers of their model; 0: never.
	MaxQueuedISLTokens int64
}

// Router decides who serves a request. Safe for concurrent use.
type Router struct {
	cfg      Config // read-only
	overlaps *overlap.Lookup
	taints   taintSets
	scratch  sync.Pool // of *Scratch
	models   models
}

// New returns a Router.
func New(cfg Config) (*Router, error) {
	overlaps, err := overlap.New(cfg.Overlap)
	if err != nil {
		return nil, fmt.Errorf("route: %w", err)
	}
	rt := &Router{cfg: cfg, overlaps: overlaps, models: models{namespace: cfg.Policy.Namespace, passUnknown: cfg.PassUnknown}}
	rt.scratch.New = func() any { return NewScratch() }
	return rt, nil
}

func (rt *Router) apart() *sides.Apart {
	if rt.cfg.Apart == nil {
		return nil
	}
	return rt.cfg.Apart()
}

// Heard must be called when events of a rank begin or cease to arrive: the router then
// looks up anew which ranks have events.
func (rt *Router) Heard() { rt.overlaps.Forget() }

// Doubt says which part of what events told of a rank counts, for ranks that hold less. The
// caller must not change the map after that.
func (rt *Router) Doubt(parts map[worker.Rank]float64) { rt.overlaps.Doubt(parts) }

// Scratch is memory for one decision at a time, which later decisions use again.
type Scratch struct {
	// Tokens is for the caller, to count the request's tokens in.
	Tokens tokens.Scratch

	guess   tokens.Scratch
	overlap overlap.Answer
	beyond  overlap.Answer // the estimate beyond the known part of a prompt
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

// Return takes the memory back. The prompt whose tokens were counted in it and the record
// of the decision must not be used after that.
func (rt *Router) Return(sc *Scratch) { rt.scratch.Put(sc) }
