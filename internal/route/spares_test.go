package route

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/invariants"
	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Work is workers whose health is looked at.
func TestWhoElseOfASubsetCouldBeTriedIsFoundByFewLooks(t *testing.T) {
	if !invariants.Enabled {
		t.Skip("work is counted where invariants are compiled in")
	}
	for _, n := range []int{100, 1000, 4000} {
		r := newRig(t, routetest.Many(n), nil)
		for i := range n / 2 {
			for _, id := range []worker.ID{worker.ID(i + 1), worker.ID(n + i + 1)} {
				r.cfg.Health.Report(worker.Rank{ID: id}, health.Report{Outcome: health.ConnectFailed}, time.Now())
			}
		}
		work := func(f func()) int64 {
			before := r.cfg.Health.Looked()
			f()
			return r.cfg.Health.Looked() - before
		}
		q := r.asking(eightTokens)
		q.req.Subset = setOf(addressesOf(routetest.Many(n)[n : n+n/2]))
		of := work(func() { require.False(t, r.spares(q, worker.Decode, worker.Rank{ID: worker.ID(2 * n)})) })
		require.LessOrEqual(t, of, int64(2*spareLooks), "of a subset of %d, all of them aside", n/2)
		few := routetest.Many(n)[2*n-3:]
		q.req.Subset = setOf(addressesOf(few))
		require.True(t, r.spares(q, worker.Decode, worker.Rank{ID: worker.ID(2 * n)}), "a small subset is looked at whole")
		q.req.Subset = setOf(addressesOf(few[2:]))
		require.False(t, r.spares(q, worker.Decode, worker.Rank{ID: worker.ID(2 * n)}), "nobody else is in it")
	}
}

func addressesOf(ws []*worker.Worker) string {
	var out []string
	for _, w := range ws {
		out = append(out, w.Endpoint.String())
	}
	return strings.Join(out, ",")
}

func TestWhoElseCouldBeTried(t *testing.T) {
	r := newRig(t, routetest.Workers(), nil) // 1 and 2 prefill, 3 and 4 decode
	q := r.asking(eightTokens)
	spares := func(role worker.Role, id worker.ID) bool { return r.spares(q, role, worker.Rank{ID: id}) }
	require.True(t, spares(worker.Prefill, 1))
	require.True(t, spares(worker.Decode, 3))
	require.False(t, spares(worker.Aggregated, 3), "nobody has that role")
	q.req.Failed = []worker.Rank{{ID: 4}, {ID: 4, DPRank: 1}, {ID: 3}}
	require.False(t, spares(worker.Decode, 3), "the other has failed the request before")
	require.True(t, spares(worker.Prefill, 1), "which is of no matter to another role")
	q.req.Failed = nil
	r.cfg.Health.Report(worker.Rank{ID: 4}, health.Report{Outcome: health.ConnectFailed}, time.Now())
	require.False(t, spares(worker.Decode, 3), "the other is aside")
	require.True(t, spares(worker.Decode, 4), "who is aside itself is not counted twice")
	q.req.Subset = setOf("127.0.0.1:40000,127.0.0.1:40003")
	require.False(t, spares(worker.Prefill, 1), "the other is not allowed")
	q.req.Subset = setOf("127.0.0.1")
	require.True(t, spares(worker.Prefill, 1), "an address without a port is every port")
}

// Another rank of the same worker can be tried where each has a port of its own: it may
// live though this one is dead.
func TestARankWithAPortOfItsOwnIsSomebodyElse(t *testing.T) {
	ws := routetest.Ported()
	r := newRig(t, []*worker.Worker{ws[0], ws[2]}, nil) // 1 prefill, 3 decode
	q := r.asking(eightTokens)
	spares := func() bool { return r.spares(q, worker.Decode, worker.Rank{ID: 3, DPRank: 1}) }
	require.True(t, spares())
	q.req.Subset = setOf("127.0.0.1:40301")
	require.False(t, spares(), "the others are not allowed")
	q.req.Subset = setOf("127.0.0.1:40301,127.0.0.1:40302")
	require.True(t, spares())
	r.cfg.Health.Report(worker.Rank{ID: 3, DPRank: 2}, health.Report{Outcome: health.ConnectFailed}, time.Now())
	require.False(t, spares(), "the other that is allowed is aside")
	q.req.Subset = nil
	require.True(t, spares())
	q.req.Failed = []worker.Rank{{ID: 3}}
	require.False(t, spares(), "the third has failed the request before")
	require.ElementsMatch(t, []worker.Rank{{ID: 3}, {ID: 3, DPRank: 1}, {ID: 3, DPRank: 2}}, portMates(q.world, q.req.Failed), "they are rather not tried")
}
