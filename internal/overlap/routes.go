package overlap

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// sweepEvery is the shortest time between two sweeps, and so the longest by which routed
// blocks are kept too long.
const sweepEvery = 100 * time.Millisecond

// asleep is the time of the next sweep if there is nothing to sweep.
const asleep = math.MaxInt64

// Routes tells an index what was routed where, and makes it forget in time. Safe for
// concurrent use.
type Routes struct {
	index kvindex.Index
	next  atomic.Int64  // when Run sweeps next, in nanoseconds of Unix time
	kick  chan struct{} // a prompt's time is over before that
	told  func(worker.Rank, []kvindex.LocalHash)
	heard heard
}

// Tell has estimated prompts told to f, too, which must not keep the chain. Call it before Note.
func (r *Routes) Tell(f func(worker.Rank, []kvindex.LocalHash)) { r.told = f }

// NewRoutes returns Routes for an index. The index forgets nothing before Run runs.
func NewRoutes(index kvindex.Index) *Routes {
	r := &Routes{index: index, kick: make(chan struct{}, 1)}
	r.next.Store(asleep)
	return r
}

// Note tells the index that a prompt with the chain was sent to the rank at the time now.
// It does not keep chain.
func (r *Routes) Note(rank worker.Rank, chain []kvindex.LocalHash, g kvindex.Guess, now time.Time) {
	if g == kvindex.Estimated {
		if r.told != nil {
			r.told(rank, chain)
		}
		r.heard.note(rank, chain, false)
	}
	r.route(rank, chain, g, now)
}

// Heard is Note for a prompt that another replica has sent.
func (r *Routes) Heard(rank worker.Rank, chain []kvindex.LocalHash, g kvindex.Guess, now time.Time) {
	r.heard.note(rank, chain, true)
	r.route(rank, chain, g, now)
}

func (r *Routes) route(rank worker.Rank, chain []kvindex.LocalHash, g kvindex.Guess, now time.Time) {
	next := r.index.Route(rank, chain, g, now)
	if next.IsZero() || next.UnixNano() >= r.next.Load() {
		return
	}
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

// Run makes the index forget routed prompts whose time is over, at most 100 ms late,
// until ctx ends; it returns the error of ctx. While nothing is routed it sleeps.
func (r *Routes) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.kick:
		case <-timer.C:
		}
		// A Note that comes between these two lines has to kick, so that it is not
		// missed.
		r.next.Store(asleep)
		now := time.Now()
		next := r.index.Expire(now)
		if next.IsZero() {
			timer.Stop()
			continue
		}
		// The exact time of the index, with which Note compares: so a Note for that very
		// time does not wake Run again.
		wait := next.Sub(now)
		next = next.Add(max(0, sweepEvery-wait))
		r.next.Store(next.UnixNano())
		timer.Reset(max(wait, sweepEvery))
	}
}
