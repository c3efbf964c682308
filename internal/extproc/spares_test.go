package extproc

import (
	"fmt"
	"math/bits"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/invariants"
	"github.com/seed-60ae5743/baton/internal/openai"
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

func (r *replica) asking(body string) *question {
	var scan openai.Request
	require.NoError(r.t, openai.Scan(openai.Completions, []byte(body), &scan))
	q, f := r.srv.question(&scan, []byte(body))
	require.Nil(r.t, f)
	return q
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

		q := r.asking(eightTokens)
		q.wish.subset = setOf(addressesOf(manyWorkers(t, n)[n : n+n/2]))
		of = work(func() { require.False(t, r.srv.spares(q, worker.Decode, worker.Rank{ID: worker.ID(2 * n)})) })
		require.LessOrEqual(t, of, int64(2*spareLooks), "of a subset of %d, all of them aside", n/2)
		few := manyWorkers(t, n)[2*n-3:]
		q.wish.subset = setOf(addressesOf(few))
		require.True(t, r.srv.spares(q, worker.Decode, worker.Rank{ID: worker.ID(2 * n)}), "a small subset is looked at whole")
		q.wish.subset = setOf(addressesOf(few[2:]))
		require.False(t, r.srv.spares(q, worker.Decode, worker.Rank{ID: worker.ID(2 * n)}), "nobody else is in it")
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
	r := newReplicaOf(t, "a", fixed(testWorkers(t)), nil) // 1 and 2 prefill, 3 and 4 decode
	q := r.asking(eightTokens)
	spares := func(role worker.Role, id worker.ID) bool { return r.srv.spares(q, role, worker.Rank{ID: id}) }
	require.True(t, spares(worker.Prefill, 1))
	require.True(t, spares(worker.Decode, 3))
	require.False(t, spares(worker.Aggregated, 3), "nobody has that role")
	q.before.ranks = []worker.Rank{{ID: 4}, {ID: 4, DPRank: 1}, {ID: 3}}
	require.False(t, spares(worker.Decode, 3), "the other has failed the request before")
	require.True(t, spares(worker.Prefill, 1), "which is of no matter to another role")
	q.before.ranks = nil
	r.srv.cfg.Health.Report(worker.Rank{ID: 4}, health.Report{Outcome: health.ConnectFailed}, time.Now())
	require.False(t, spares(worker.Decode, 3), "the other is aside")
	require.True(t, spares(worker.Decode, 4), "who is aside itself is not counted twice")
	q.wish.subset = setOf("127.0.0.1:40000,127.0.0.1:40003")
	require.False(t, spares(worker.Prefill, 1), "the other is not allowed")
	q.wish.subset = setOf("127.0.0.1")
	require.True(t, spares(worker.Prefill, 1), "an address without a port is every port")
}

// Another rank of the same worker can be tried where each has a port of its own: it may
// live though this one is dead.
func TestARankWithAPortOfItsOwnIsSomebodyElse(t *testing.T) {
	ws := portedWorkers(t)
	r := newReplicaOf(t, "a", fixed([]*worker.Worker{ws[0], ws[2]}), nil) // 1 prefill, 3 decode
	q := r.asking(eightTokens)
	spares := func() bool { return r.srv.spares(q, worker.Decode, worker.Rank{ID: 3, DPRank: 1}) }
	require.True(t, spares())
	q.wish.subset = setOf("127.0.0.1:40301")
	require.False(t, spares(), "the others are not allowed")
	q.wish.subset = setOf("127.0.0.1:40301,127.0.0.1:40302")
	require.True(t, spares())
	r.srv.cfg.Health.Report(worker.Rank{ID: 3, DPRank: 2}, health.Report{Outcome: health.ConnectFailed}, time.Now())
	require.False(t, spares(), "the other that is allowed is aside")
	q.wish.subset = nil
	require.True(t, spares())
	q.before.ranks = []worker.Rank{{ID: 3}}
	require.False(t, spares(), "the third has failed the request before")
	require.ElementsMatch(t, []worker.Rank{{ID: 3}, {ID: 3, DPRank: 1}, {ID: 3, DPRank: 2}}, q.portMates(), "they are rather not tried")
}
