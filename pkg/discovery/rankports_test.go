package discovery

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// The workers of a snapshot have the endpoints of their ranks; the source's workers do
// not. They must count as equal all the same.
func TestAWorkerWithPortsOfRanksThatDidNotChangeKeepsItsPointer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := start(t, "etcd")
		r := <-v.scripts[0].runs
		ported := func(l List) List {
			w := l.Entries[0].Worker
			w.DPSize, w.PortPerRank = 3, true
			return l
		}
		require.NoError(t, r.sink.Send(ported(listOf(10, 1, 2))))
		before := v.Load()
		require.False(t, before.Worker(1).EndpointOf(2).IsZero())
		require.NoError(t, r.sink.Send(ported(listOf(11, 1, 2))))
		require.Same(t, before, v.Load(), "nothing is new")
		require.NoError(t, r.sink.Send(ported(listOf(12, 1, 3))))
		require.Equal(t, []worker.ID{1, 3}, ids(v.Load()))
		require.Same(t, before.Worker(1), v.Load().Worker(1))
	})
}
