package load

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/invariants"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Work counts the ranks and workers that a pick looks at for the filter.
func TestAPickLooksAtThoseAloneWhoHaveChanged(t *testing.T) {
	if !invariants.Enabled {
		t.Skip("work is counted where invariants are compiled in")
	}
	const dp = 2
	for _, n := range []int{100, 1000, 10_000} {
		s := fleet(t, n, dp)
		b := New(1)
		b.Update(s)
		tr := health.New(health.Config{})
		now := time.Unix(1000, 0)
		tr.Update(s, now)
		req := prefillRequest(s, 64, params())
		req.Filter = tr
		pick := func() (work int) {
			before := b.work
			var r Reservation
			_, err := b.PickAndReserve(req, &r)
			require.NoError(t, err)
			work = b.work - before
			r.Release(now)
			return work
		}
		require.Equal(t, n*dp, pick(), "the first pick looks at all")
		require.Zero(t, pick())
		fail := func(id worker.ID) { tr.Report(worker.Rank{ID: id}, health.Report{Outcome: health.ConnectFailed}, now) }
		fail(1)
		require.Equal(t, 1+dp, pick())
		require.Zero(t, pick(), "%d workers, one of them aside", n)

		// Half of the pool fails, with a pick after each failure.
		most := 0
		for id := worker.ID(2); int(id) <= n/2; id++ {
			fail(id)
			most = max(most, pick())
		}
		require.Equal(t, 1+dp, most)

		// The others fail between two picks: the pick looks at each once, or at all ranks
		// once.
		for id := worker.ID(n/2 + 1); int(id) < n; id++ {
			fail(id)
		}
		require.LessOrEqual(t, pick(), n*(1+dp))
		require.Zero(t, pick())
		require.Equal(t, worker.ID(n), func() worker.ID {
			d, err := b.Preview(req)
			require.NoError(t, err)
			return d.Rank.ID
		}())
	}
}

// A table that got the changes one by one must equal a new table.
func TestATableAgreesWithOneThatLearnsAll(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d (-seed to repeat)", seed)
	rng := newRand(seed)
	b := New(seed)
	tr := health.New(health.Config{Seed: seed})
	now := time.Unix(1000, 0)
	world := func() *worker.Snapshot {
		var ws []*worker.Worker
		for id := range worker.ID(12) {
			if rng.IntN(5) > 0 {
				ws = append(ws, testWorker(t, id+1, worker.Prefill, uint32(1+rng.IntN(3)), 8000+rng.IntN(2)))
			}
		}
		s := snapshot(t, ws...)
		b.Update(s)
		tr.Update(s, now)
		return s
	}
	s := world()
	var held []*Reservation
	for range 20_000 {
		now = now.Add(time.Millisecond)
		id := worker.ID(1 + rng.IntN(12))
		switch rng.IntN(8) {
		case 0:
			if rng.IntN(20) == 0 {
				s = world()
			}
		case 1:
			for range 2 {
				tr.Report(worker.Rank{ID: id}, health.Report{Outcome: health.Overdue}, now)
			}
		case 2:
			tr.Report(worker.Rank{ID: id}, health.Report{}, now)
		case 3, 4:
			if n := len(held); n > 0 {
				i := rng.IntN(n)
				if rng.IntN(2) == 0 {
					i = n - 1 // the worker of this booking may still be recovering
				}
				held[i].Release(now)
				held = slices.Delete(held, i, i+1)
			}
		default:
			pool := s.Pool(key)
			if pool == nil {
				continue
			}
			req := prefillRequest(s, 64, params())
			req.Filter = tr
			r := new(Reservation)
			if _, err := b.PickAndReserve(req, r); err == nil {
				held = append(held, r)
			}
			b.mu.Lock()
			kept := b.tableLocked(req.Ranks)
			kept.heed(b, tr)
			fresh := b.newTableLocked(req.Ranks, false)
			fresh.heed(b, tr)
			require.Equal(t, fresh.free, kept.free)
			require.Equal(t, fresh.standings, kept.standings)
			require.Equal(t, fresh.barred, kept.barred)
			require.Equal(t, fresh.closed, kept.closed)
			b.mu.Unlock()
		}
	}
	for _, r := range held {
		r.Release(now)
	}
}
