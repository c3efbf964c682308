package worker_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

func endpoint(t *testing.T, s string) worker.Endpoint {
	t.Helper()
	e, err := worker.ParseEndpoint(s)
	require.NoError(t, err)
	return e
}

func good(t *testing.T, id worker.ID, role worker.Role, addr string) *worker.Worker {
	return &worker.Worker{
		ID: id, Role: role, Engine: worker.SGLang, Endpoint: endpoint(t, addr), Models: []string{"m"},
		DPSize: 1, BlockSize: 16, Bootstrap: worker.Bootstrap{Host: "127.0.0.1", Port: 8998},
	}
}

func TestAnInstanceIDKeepsAll64Bits(t *testing.T) {
	id, err := worker.ParseID("18446744073709551615")
	require.NoError(t, err)
	require.Equal(t, worker.ID(math.MaxUint64), id)
	require.Equal(t, "18446744073709551615", id.String())
	for _, bad := range []string{"", "0", "-1", "+1", "1.0", "18446744073709551616", "0x1", " 1"} {
		_, err := worker.ParseID(bad)
		require.Error(t, err, bad)
	}
}

func TestAnEndpointIsAnAddressAndAPort(t *testing.T) {
	require.Equal(t, "[fd00::1]:80", endpoint(t, "[fd00::1]:80").String())
	for _, bad := range []string{"", "host:80", "1.2.3.4", "1.2.3.4:0", "1.2.3.4:99999", "fd00::1:80", "0.0.0.0:80", "[fe80::1%eth0]:80"} {
		_, err := worker.ParseEndpoint(bad)
		require.Error(t, err, bad)
	}
}

func TestASnapshotRefusesRepeatedIdsAndEndpointsAndNamesThem(t *testing.T) {
	_, err := worker.NewSnapshot(1, []*worker.Worker{
		good(t, 1, worker.Prefill, "127.0.0.1:1"), good(t, 1, worker.Decode, "127.0.0.1:2"), good(t, 2, worker.Decode, "127.0.0.1:1"),
		{ID: 9},
	})
	require.ErrorContains(t, err, "worker 1: id is used twice")
	require.ErrorContains(t, err, "worker 2: endpoint 127.0.0.1:1 is already worker 1's")
	require.ErrorContains(t, err, "worker 9:")
	require.ErrorContains(t, err, "block_size")
}

func TestPoolsHoldOnlyWhatMayBePicked(t *testing.T) {
	noBootstrap := good(t, 2, worker.Prefill, "127.0.0.1:2")
	noBootstrap.Bootstrap = worker.Bootstrap{Host: "127.0.0.1"} // a host without a port counts as absent
	draining := good(t, 3, worker.Decode, "127.0.0.1:3")
	draining.Draining = true
	both := good(t, 4, worker.Decode, "127.0.0.1:4")
	both.AcceptsAggregated, both.DPSize = true, 2
	s, err := worker.NewSnapshot(1, []*worker.Worker{good(t, 1, worker.Prefill, "127.0.0.1:1"), noBootstrap, draining, both})
	require.NoError(t, err)
	p := s.Pool(worker.Key{Model: "m"})
	require.Equal(t, []worker.Rank{{ID: 1}}, p.Ranks(worker.Prefill))
	require.Equal(t, []worker.Rank{{ID: 4}, {ID: 4, DPRank: 1}}, p.Ranks(worker.Decode))
	require.Equal(t, p.Ranks(worker.Decode), p.Ranks(worker.Aggregated))
	require.Equal(t, []worker.Fit{both.Fit()}, p.PrefillFits)
	require.NotNil(t, s.Worker(3), "a draining worker is still known")
	require.Nil(t, s.Pool(worker.Key{Model: "m", Namespace: "other"}))
	require.Equal(t, worker.ID(4), s.WorkerAt("127.0.0.1:4").ID)
}

func TestAnIPv4AddressInIPv6IsTheSameEndpoint(t *testing.T) {
	e, err := worker.ParseEndpoint("[::ffff:127.0.0.1]:4")
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:4", e.String())
	require.Equal(t, endpoint(t, "127.0.0.1:4"), e)
	s, err := worker.NewSnapshot(1, []*worker.Worker{good(t, 4, worker.Decode, "127.0.0.1:4")})
	require.NoError(t, err)
	require.Equal(t, worker.ID(4), s.WorkerAt("[::ffff:127.0.0.1]:4").ID)
	mapped := good(t, 5, worker.Decode, "[::ffff:127.0.0.1]:4")
	_, err = worker.NewSnapshot(1, []*worker.Worker{good(t, 4, worker.Decode, "127.0.0.1:4"), mapped})
	require.ErrorContains(t, err, "is already worker 4's")
	_, err = worker.ParseEndpoint("[::ffff:0.0.0.0]:4")
	require.Error(t, err)
}

func TestANilSnapshotIsAnEmptySet(t *testing.T) {
	var s *worker.Snapshot
	require.Zero(t, s.Revision())
	require.Empty(t, s.Workers())
	require.Nil(t, s.Worker(1))
	require.Nil(t, s.Pool(worker.Key{}))
	require.False(t, s.Stale())
	require.True(t, s.WithStale(true).Stale())
}

func TestEveryFaultOfAWorkerIsNamed(t *testing.T) {
	w := &worker.Worker{Engine: "other", DPSize: worker.MaxDPSize + 1}
	err := w.Validate()
	for _, want := range []string{"id:", "role:", "engine", "endpoint:", "models:", "dp_size", "block_size"} {
		require.ErrorContains(t, err, want)
	}
}
