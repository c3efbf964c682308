package overlap

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// sweepEvery bounds how often what was routed is looked through, and so by how
// much it is believed too long.
const sweepEvery = 100 * time.Millisecond

// asleep is the time of the next sweep when there is nothing to wait for.
const asleep = math.MaxInt64

// Routes tells an index what was routed where, and makes it forget in time. Safe
// for concurrent use.
type Routes struct {
	index kvindex.Index
	next  atomic.Int64  // when Run looks again, in nanoseconds of Unix time
	kick  chan struct{} // something is over before that
}

// NewRoutes returns Routes of an index. Nothing is forgotten before Run runs.
func NewRoutes(index kvindex.Index) *Routes {
	r := &Routes{index: index, kick: make(chan struct{}, 1)}
	r.next.Store(asleep)
	return r
}

// Note tells that a prompt with the chain was sent to the rank at now. It keeps
// nothing of chain.
func (r *Routes) Note(rank worker.Rank, chain []kvindex.LocalHash, g kvindex.Guess, now time.Time) {
	next := r.index.Route(rank, chain, g, now)
	if next.IsZero() || next.UnixNano() >= r.next.Load() {
		return
	}
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

// Run makes the index forget what is over, at most 100 ms late, until ctx ends;
// it returns the error of ctx. While nothing was routed it sleeps.
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
		// Whoever comes between these two kicks, rather than be missed.
		r.next.Store(asleep)
		now := time.Now()
		next := r.index.Expire(now)
		if next.IsZero() {
			timer.Stop()
			continue
		}
		// By the time that the index says and Note compares with, to the
		// nanosecond: what is next already wakes nobody again.
		wait := next.Sub(now)
		next = next.Add(max(0, sweepEvery-wait))
		r.next.Store(next.UnixNano())
		timer.Reset(max(wait, sweepEvery))
	}
}
