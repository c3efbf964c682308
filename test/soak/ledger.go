package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/test/enginesim"
)

// ledger is what each worker has counted of its hand-offs.
type ledger map[target]enginesim.HandoffState

// ledgers reads every worker's. One that does not answer is missing in it.
func (w *world) ledgers(ctx context.Context) ledger {
	out := ledger{}
	for _, m := range w.members {
		_, control := m.now()
		if st, err := control.State(ctx, false); err == nil {
			out[m.on] = st.Handoff
		}
	}
	return out
}

// leavers is how many clients leave early, for each model and lane.
const leavers = 25

// leave sends requests whose clients leave while prefill runs, or soon after: what
// prefill holds then is for the plugin to have taken.
func (w *world) leave(ctx context.Context, t *traffic) {
	var wg sync.WaitGroup
	for i, m := range w.models {
		for _, l := range w.lanes {
			rng := rand.New(rand.NewPCG(t.seed, uint64(4+i*len(w.lanes)+l.index)))
			wg.Go(func() {
				for n := 0; n < leavers && ctx.Err() == nil; {
					a := drawAsk(rng, 2_000_000+(i*len(w.lanes)+l.index)*1000+n, []model{m}, 1)
					if a.Refusal != "" {
						continue
					}
					n++
					a.Lane, a.Timeout, a.Leave = l.index, 0, time.Duration(1+rng.IntN(40))*time.Millisecond
					t.one(ctx, a)
				}
			})
		}
	}
	wg.Wait()
}

// holdNothing has clients leave where nothing is wrong any more, and holds that no
// lease has to end what prefill then holds. Those of the faults have run out by now.
func (w *world) holdNothing(ctx context.Context, t *traffic) {
	before := w.ledgers(ctx)
	w.leave(ctx, t)
	w.settle(ctx) // a lease that is to end will have
	if ctx.Err() != nil {
		return
	}
	given, leaks := compare(before, w.ledgers(ctx))
	w.events.say("clients left early: %d hand-offs were given, and %d leaked", given, len(leaks))
	for _, s := range leaks {
		w.events.violate(s, w.allOf(ctx, w.lanes[0]))
	}
}

// compare says how many hand-offs were given between two readings, and which
// workers had to end a lease.
func compare(before, after ledger) (given uint64, leaks []string) {
	for on, b := range before {
		a, ok := after[on]
		if !ok || a.Given < b.Given { // another process is there now
			leaks = append(leaks, fmt.Sprintf("%s is not who it was, and nothing was wrong any more", on))
			continue
		}
		given += a.Given - b.Given
		if n := a.Expired - b.Expired; n > 0 {
			leaks = append(leaks, fmt.Sprintf("%s: the KV of %d hand-offs was left to its lease, and nothing was wrong any more", on, n))
		}
	}
	return given, leaks
}
