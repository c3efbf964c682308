package extproc

import (
	"math/bits"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/invariants"
	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// setAside makes the first half of the workers of each role refuse connections.
func (r *replica) setAside(n int) {
	for i := range n / 2 {
		for _, id := range []worker.ID{worker.ID(i + 1), worker.ID(n + i + 1)} {
			r.srv.cfg.Health.Report(worker.Rank{ID: id}, health.Report{Outcome: health.ConnectFailed}, time.Now())
		}
	}
}

// The work of a decision is the number of workers whose health it looks at.
func TestADecisionLooksAtNoMoreWorkersWhereHalfOfManyAreAside(t *testing.T) {
	if !invariants.Enabled {
		t.Skip("work is counted where invariants are compiled in")
	}
	for _, n := range []int{100, 1000, 4000} {
		r := newReplicaOf(t, "a", fixed(routetest.Many(n)), nil)
		r.setAside(n)
		ids := make([]worker.ID, n)
		for i := range ids {
			ids[i] = worker.ID(i + 1)
		}
		tracker := r.srv.cfg.Health
		work := func(f func()) int64 {
			before := tracker.Looked()
			f()
			return tracker.Looked() - before
		}
		decide := func() {
			p := r.open(filterMain)
			require.NotNil(t, p.ask(eightTokens).GetRequestBody())
			r.accessLog()
			p.cancel()
			r.srv.OnChange(nil, discovery.Change{Left: ids}) // the test plays no legs
			r.requireIdle()
		}
		decide() // the first pick reads all workers that have failed
		of := int64(0)
		for range 3 {
			of = max(of, work(decide))
		}
		t.Logf("%d workers: %d looked at for a decision", n, of)
		require.LessOrEqual(t, of, int64(32+4*bits.Len(uint(n))))
	}
}
