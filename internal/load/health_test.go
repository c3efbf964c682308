package load

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

var _ Filter = (*health.Tracker)(nil)

func TestARecoveringWorkerGetsOneOfManyRequestsAtOnce(t *testing.T) {
	s := fleet(t, 3, 2)
	b := New(1)
	b.Update(s)
	tr := health.New(health.Config{})
	now := time.Now()
	tr.Update(s, now)
	res := make([]Reservation, 60)
	pickAll := func() map[worker.ID]int {
		var wg sync.WaitGroup
		for i := range res {
			wg.Go(func() {
				req := prefillRequest(s, 64, params())
				req.Filter = tr
				if _, err := b.PickAndReserve(req, &res[i]); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		got := map[worker.ID]int{}
		for i := range res {
			got[res[i].Rank().ID]++
		}
		return got
	}
	releaseAll := func() {
		for i := range res {
			res[i].Release(later)
		}
	}
	tr.Report(worker.Rank{ID: 2}, health.Report{Outcome: health.Overdue, Request: 1}, now)
	tr.Report(worker.Rank{ID: 2}, health.Report{Outcome: health.Overdue, Request: 2}, now)
	require.Equal(t, map[worker.ID]int{1: 30, 3: 30}, pickAll())
	releaseAll()

	tr.Report(worker.Rank{ID: 2}, health.Report{Outcome: health.OK}, now)
	require.Equal(t, 1, pickAll()[2])
	releaseAll()
	require.Equal(t, 1, pickAll()[2], "a trial without an outcome makes way for the next")

	tr.Report(worker.Rank{ID: 2}, health.Report{Outcome: health.OK}, now)
	releaseAll()
	require.Equal(t, map[worker.ID]int{1: 20, 2: 20, 3: 20}, pickAll())
	releaseAll()
	require.Equal(t, Totals{}, b.Totals())
}
