package extproc

import (
	"fmt"
	"math/bits"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/invariants"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// manyWorkers are n for prefill, ids from 1, and then n for decode.
func manyWorkers(t *testing.T, n int) (ws []*worker.Worker) {
	for i := range 2 * n {
		e, err := worker.ParseEndpoint(fmt.Sprintf("10.0.%d.%d:8000", i>>8, i&255))
		require.NoError(t, err)
		w := &worker.Worker{ID: worker.ID(i + 1), Role: worker.Prefill, Engine: worker.SGLang, Endpoint: e, Models: []string{"m"}, DPSize: 1, BlockSize: 4}
		if w.Bootstrap = (worker.Bootstrap{Host: "10.0.0.1", Port: 8998}); i >= n {
			w.Role, w.Bootstrap = worker.Decode, worker.Bootstrap{}
		}
		ws = append(ws, w)
	}
	return ws
}

// setAside has the first half of each role refuse connections.
func (r *replica) setAside(n int) {
	for i := range n / 2 {
		for _, id := range []worker.ID{worker.ID(i + 1), worker.ID(n + i + 1)} {
			r.srv.cfg.Health.Report(worker.Rank{ID: id}, health.Report{Outcome: health.ConnectFailed}, time.Now())
		}
	}
}

// Work is workers whose health is looked at.
func TestADecisionLooksAtNoMoreWorkersWhereHalfOfManyAreAside(t *testing.T) {
	if !invariants.Enabled {
		t.Skip("work is counted where invariants are compiled in")
	}
	for _, n := range []int{100, 1000, 4000} {
		r := newReplicaOf(t, "a", fixed(manyWorkers(t, n)), nil)
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
			p.cancel()
			r.srv.OnChange(nil, discovery.Change{Left: ids}) // no leg is played
			r.requireIdle()
		}
		decide() // the first pick hears of all who have failed
		of := int64(0)
		for range 3 {
			of = max(of, work(decide))
		}
		t.Logf("%d workers: %d looked at for a decision", n, of)
		require.LessOrEqual(t, of, int64(32+4*bits.Len(uint(n))))
	}
}
