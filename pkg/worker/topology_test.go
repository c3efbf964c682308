package worker_test

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

func TestAWorkerCarriesItsOwnTaintsAndThoseOfItsTopology(t *testing.T) {
	w := good(t, 1, worker.Decode, "127.0.0.1:1")
	w.Taints = []string{"gpu=h200", worker.TaintOf("row", "r1")}
	w.TopologyDomains = map[string]string{"zone": "a", "rack": ""}
	for taint, want := range map[string]bool{
		"gpu=h200": true, "gpu": false, "": false, "zone=a": false,
		"dynamo.topology/zone=a": true, "dynamo.topology/zone=b": false, "dynamo.topology/zone=": false,
		"dynamo.topology/rack=": false, "dynamo.topology/pod=": false, "dynamo.topology/zone": false, "dynamo.topology/row=r1": true,
	} {
		require.Equal(t, want, w.HasTaint(taint), taint)
	}
	require.Zero(t, testing.AllocsPerRun(10, func() { w.HasTaint("dynamo.topology/zone=a") }))
}

func TestAWorkerWhoseTransferDomainHasNoValueServesNothing(t *testing.T) {
	w := good(t, 1, worker.Prefill, "127.0.0.1:1")
	w.KVTransfer = worker.KVTransfer{Domain: "zone", Enforcement: worker.Required}
	require.NoError(t, w.Validate(), "it is to be seen")
	require.False(t, w.CanServe(worker.Prefill))
	w.TopologyDomains = map[string]string{"zone": "a"}
	require.True(t, w.CanServe(worker.Prefill))
	s, err := worker.NewSnapshot(1, []*worker.Worker{w, good(t, 2, worker.Decode, "127.0.0.1:2")})
	require.NoError(t, err)
	require.Equal(t, "dynamo.topology/zone=a", s.TransferTaint(1))
	require.Equal(t, "dynamo.topology/zone=a", s.WithStale(true).TransferTaint(1))
	require.Empty(t, s.TransferTaint(2))
	require.Empty(t, (*worker.Snapshot)(nil).TransferTaint(1))
}

func TestWhatAWorkerDeclaresOfItsTopologyIsBounded(t *testing.T) {
	long := strings.Repeat("x", worker.MaxTaintBytes+1)
	many := map[string]string{}
	for i := range worker.MaxTaints + 1 {
		many[strings.Repeat("d", i+1)] = "v"
	}
	transfer := func(e worker.Enforcement, weight float64) worker.Worker {
		return worker.Worker{KVTransfer: worker.KVTransfer{Domain: "zone", Enforcement: e, Weight: weight}}
	}
	for _, w := range []worker.Worker{
		{Taints: make([]string, worker.MaxTaints+1)}, {Taints: []string{""}}, {Taints: []string{long}}, {Taints: []string{"a\n"}}, {Taints: []string{"\xff"}},
		{TopologyDomains: many}, {TopologyDomains: map[string]string{"": "a"}}, {TopologyDomains: map[string]string{"a=b": "c"}},
		{TopologyDomains: map[string]string{"a": long}}, {TopologyDomains: map[string]string{"a": "\t"}},
		{KVTransfer: worker.KVTransfer{Enforcement: worker.Required}}, {KVTransfer: worker.KVTransfer{Weight: 1}},
		transfer("", 0), transfer("wanted", 0), transfer(worker.Required, 0.5), transfer(worker.Preferred, 0), transfer(worker.Preferred, 1.5),
		transfer(worker.Preferred, -1), transfer(worker.Preferred, math.NaN()),
	} {
		require.Error(t, w.ValidateTopology(), "%.200v", w)
	}
	for _, w := range []worker.Worker{
		{}, {Taints: []string{"gpu=h200", "für alle"}}, {TopologyDomains: map[string]string{"zone": "a", "rack": ""}},
		transfer(worker.Required, 0), transfer(worker.Preferred, 1), transfer(worker.Preferred, 0.01),
	} {
		require.NoError(t, w.ValidateTopology(), "%.200v", w)
	}
}
