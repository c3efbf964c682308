package plugin

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// TestWorkersOfOtherBlocksThanTheirPoolAreTold: their overlap is never found,
// and nothing else would say so.
func TestWorkersOfOtherBlocksThanTheirPoolAreTold(t *testing.T) {
	x := newTold(t)
	a, b, c := testWorker(t, 1, worker.Prefill, "1001"), testWorker(t, 2, worker.Prefill, "1002"), testWorker(t, 3, worker.Prefill, "1003")
	decode := testWorker(t, 4, worker.Decode, "1004")
	x.set(discovery.Change{Joined: []worker.ID{1, 2, 3, 4}}, a, b, c, decode)
	require.Empty(t, x.problems())
	require.Contains(t, x.metrics(), "baton_discovery_problems 0")

	wide, pairs := *b, *c
	wide.BlockSize, pairs.Eagle = 32, true
	const unpaired = "model m: prefill workers 2 are sglang with blocks of 32 tokens, and the decode workers are sglang with blocks of 16 tokens: " +
		"no two of them are a pair; start them alike"
	foreign := *c
	foreign.ID, foreign.Namespace, foreign.BlockSize = 5, "foreign", 1
	foreign.Endpoint = testWorker(t, 5, worker.Prefill, "1005").Endpoint
	x.set(discovery.Change{Changed: []worker.ID{2, 3}}, a, &wide, &pairs, decode, &foreign)
	require.Equal(t, []string{"model m, prefill: 2 of 3 workers have other blocks than worker 1 (16 tokens), as 2 (32 tokens): " +
		"what they hold of a prompt is never found; give all of them the same block size and speculation", unpaired}, x.problems())
	require.Contains(t, x.metrics(), "baton_discovery_problems 2")

	x.set(discovery.Change{Changed: []worker.ID{2}}, a, b, &pairs, decode)
	require.Equal(t, []string{"model m, prefill: 1 of 3 workers have other blocks than worker 1 (16 tokens), as 3 (16 tokens, in pairs): " +
		"what they hold of a prompt is never found; give all of them the same block size and speculation"}, x.problems())
}

// A pool that is between two groups is told as long as it is; so is what each worker's
// partner must share.
func TestAPoolOfTwoGroupsIsTold(t *testing.T) {
	x := newTold(t)
	of := func(id worker.ID, role worker.Role, group string) *worker.Worker {
		w := testWorker(t, id, role, strconv.Itoa(1000+int(id)))
		w.Pair[worker.KVGroup] = group
		return w
	}
	x.set(discovery.Change{Joined: []worker.ID{1, 2, 3}}, of(1, worker.Prefill, "a"), of(2, worker.Decode, "a"), of(3, worker.Decode, "b"))
	require.Equal(t, []string{
		"model m: its workers differ in kv_group (prefill: 1 a; decode: 1 a, 1 b): those that differ are no pair",
		"model m: decode workers 3 are sglang with blocks of 16 tokens, kv_group b, and the prefill workers are sglang with blocks of 16 tokens, kv_group a: no two of them are a pair; start them alike",
	}, x.problems())
	require.Equal(t, "b", x.state().Workers[2].Pair[worker.KVGroup])
	x.set(discovery.Change{Changed: []worker.ID{1, 2}}, of(1, worker.Prefill, "b"), of(2, worker.Decode, "b"), of(3, worker.Decode, "b"))
	require.Empty(t, x.problems())
}
