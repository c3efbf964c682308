package worker_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// ported returns a worker whose ranks have ports of their own.
func ported(t *testing.T, id worker.ID, addr string, ranks uint32) *worker.Worker {
	w := good(t, id, worker.Decode, addr)
	w.DPSize, w.PortPerRank = ranks, true
	return w
}

func TestARankIsReachedAtThePortOfItsOwnOrAtItsWorkers(t *testing.T) {
	shared := good(t, 1, worker.Decode, "10.0.0.1:80")
	shared.DPSize = 3
	for _, tt := range []struct {
		name string
		w    *worker.Worker
		want []string // of ranks 0, 1, …; the worker does not have the last one
	}{
		{"one port for all", shared, []string{"10.0.0.1:80", "10.0.0.1:80", "10.0.0.1:80"}},
		{"one for each", ported(t, 2, "10.0.0.2:80", 3), []string{"10.0.0.2:80", "10.0.0.2:81", "10.0.0.2:82", ""}},
		{"IPv6", ported(t, 3, "[fd00::3]:80", 2), []string{"[fd00::3]:80", "[fd00::3]:81", ""}},
		{"up to the last port", ported(t, 4, "10.0.0.4:65534", 2), []string{"10.0.0.4:65534", "10.0.0.4:65535", ""}},
		{"one rank", ported(t, 5, "10.0.0.5:65535", 1), []string{"10.0.0.5:65535", ""}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := worker.NewSnapshot(1, []*worker.Worker{tt.w})
			require.NoError(t, err)
			for _, w := range []*worker.Worker{tt.w, s.Worker(tt.w.ID)} {
				for dp, want := range tt.want {
					e := w.EndpointOf(worker.DPRank(dp))
					require.Equal(t, want, e.String())
					require.Equal(t, want == "", e.IsZero())
					if want != "" {
						require.Equal(t, endpoint(t, want), e)
					}
				}
			}
		})
	}
}

func TestAnEndpointBeyondTheLastPortIsNone(t *testing.T) {
	w := ported(t, 1, "10.0.0.1:65534", 4)
	require.Equal(t, "10.0.0.1:65535", w.EndpointOf(1).String())
	require.True(t, w.EndpointOf(2).IsZero())
	require.Len(t, slices.Collect(w.Addresses()), 2)
	require.ErrorContains(t, w.Validate(), "port_per_rank: rank 3 would be at port 65537; expected at most 65535")
	w.DPSize = 2
	require.NoError(t, w.Validate())
	w.Fronted = true
	require.ErrorContains(t, w.Validate(), "port_per_rank: a fronted worker shares its endpoint with others")
}

func TestAddressesAreWhereTheWorkerListens(t *testing.T) {
	texts := func(w *worker.Worker) (out []string) {
		for a := range w.Addresses() {
			out = append(out, a.String())
		}
		return out
	}
	w := ported(t, 1, "10.0.0.1:80", 3)
	require.Equal(t, []string{"10.0.0.1:80", "10.0.0.1:81", "10.0.0.1:82"}, texts(w))
	require.Equal(t, uint32(1), w.RanksPerPort())
	w.PortPerRank = false
	require.Equal(t, []string{"10.0.0.1:80"}, texts(w))
	require.Equal(t, uint32(3), w.RanksPerPort())
	for range w.Addresses() {
		break // the loop must be able to end early
	}
}

func TestASnapshotFindsARankByItsPort(t *testing.T) {
	s, err := worker.NewSnapshot(1, []*worker.Worker{ported(t, 1, "10.0.0.1:80", 3), good(t, 2, worker.Decode, "10.0.0.1:83")})
	require.NoError(t, err)
	for addr, want := range map[string]worker.Rank{
		"10.0.0.1:80": {ID: 1}, "10.0.0.1:81": {ID: 1, DPRank: 1}, "10.0.0.1:82": {ID: 1, DPRank: 2}, "10.0.0.1:83": {ID: 2},
	} {
		w, dp := s.RankAt(netip.MustParseAddrPort(addr))
		require.Equal(t, want, worker.Rank{ID: w.ID, DPRank: dp})
		require.Equal(t, w, s.WorkerAt(addr))
	}
	w, _ := s.RankAt(netip.MustParseAddrPort("10.0.0.1:84"))
	require.Nil(t, w)
	require.Nil(t, s.WorkerAt("10.0.0.1"))
	w, _ = (*worker.Snapshot)(nil).RankAt(netip.AddrPort{})
	require.Nil(t, w)

	for name, ws := range map[string][]*worker.Worker{
		"a rank's port is another worker's":   {ported(t, 1, "10.0.0.1:80", 3), good(t, 2, worker.Decode, "10.0.0.1:82")},
		"a rank's port is another's rank's":   {ported(t, 1, "10.0.0.1:80", 3), ported(t, 2, "10.0.0.1:78", 5)},
		"a worker's port is another's rank's": {good(t, 1, worker.Decode, "10.0.0.1:82"), ported(t, 2, "10.0.0.1:80", 3)},
	} {
		_, err = worker.NewSnapshot(1, ws)
		require.ErrorContains(t, err, "worker 2: endpoint 10.0.0.1:8", name)
	}
}

// A snapshot has the ranks' endpoints at hand. It does not write to the worker that it
// was given, and its workers can be compared, copied and changed like others.
func TestASnapshotsRanksAreAtHand(t *testing.T) {
	given := ported(t, 1, "10.0.0.1:80", 3)
	s, err := worker.NewSnapshot(1, []*worker.Worker{given})
	require.NoError(t, err)
	w := s.Worker(1)
	var e worker.Endpoint
	require.Zero(t, testing.AllocsPerRun(100, func() { e = w.EndpointOf(2) }))
	require.Equal(t, "10.0.0.1:82", e.String())
	require.Zero(t, testing.AllocsPerRun(100, func() { _, _ = s.RankAt(e.AddrPort()) }))
	require.Equal(t, ported(t, 1, "10.0.0.1:80", 3), given, "others may be reading it")
	require.True(t, w.Equal(given) && given.Equal(w))

	moved := *w
	moved.Endpoint = endpoint(t, "10.0.0.9:90")
	require.Equal(t, "10.0.0.9:92", moved.EndpointOf(2).String())
	require.False(t, moved.Equal(w))
	grown := *w
	grown.DPSize = 4
	require.Equal(t, "10.0.0.1:83", grown.EndpointOf(3).String())

	again, err := worker.NewSnapshot(2, []*worker.Worker{w})
	require.NoError(t, err)
	require.Same(t, w, again.Worker(1), "a worker that stays keeps its pointer")
}
