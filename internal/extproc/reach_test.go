package extproc

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// TestPrefillIsPickedSoThatItsKVMayReachTheNamedDecode is rows C17 and C19: either
// zone has one of each.
func TestPrefillIsPickedSoThatItsKVMayReachTheNamedDecode(t *testing.T) {
	r := newReplicaOf(t, "a", fixed(zoned(t, worker.Required, 0)), func(c *Config) { c.StartTimeout = time.Minute })
	for range 6 {
		for decode, prefill := range map[string]string{"3": "1", "4": "2"} {
			p := r.through(routingKey, "prerouted")
			set, _ := routed(t, p.ask(eightTokens, "x-worker-instance-id", decode))
			require.Equal(t, prefill, set["x-prefill-instance-id"])
			p.cancel()
			crossing := map[string]string{"1": "2", "2": "1"}[prefill]
			p = r.through(routingKey, "prerouted")
			status, code, _ := codeOf(t, p.ask(eightTokens, "x-worker-instance-id", decode, "x-prefill-instance-id", crossing))
			require.Equal(t, 503, status)
			require.Equal(t, "no_worker_with_taint", code, "what is named is not replaced")
			p.cancel()
		}
	}
	r.forgetLegs()
	r.requireIdle()

	preferred := newReplicaOf(t, "b", fixed(zoned(t, worker.Preferred, 1)), func(c *Config) { c.StartTimeout, c.Prefill.Mode = time.Minute, picker.RoundRobin })
	var picked []string
	for range 2 {
		p := preferred.through(routingKey, "prerouted")
		set, _ := routed(t, p.ask(eightTokens, "x-worker-instance-id", "3"))
		picked = append(picked, set["x-prefill-instance-id"])
		p.cancel()
	}
	require.ElementsMatch(t, []string{"1", "2"}, picked, "what is only preferred keeps nobody away")
	preferred.forgetLegs()
	preferred.requireIdle()
}

func TestOnlySomeOfAPickKeepTheirNumbers(t *testing.T) {
	r := load.Request{
		Ranks:    []worker.Rank{{ID: 1}, {ID: 2}, {ID: 3, DPRank: 1}, {ID: 4}},
		Overlaps: []uint32{1, 2, 3, 4}, Host: []uint32{10, 20, 30, 40}, Estimated: picker.NewBits(4),
	}
	r.Estimated.Set(0)
	r.Estimated.Set(2)
	all := r.Ranks
	only(&r, []int{1, 2})
	require.Equal(t, []worker.Rank{{ID: 2}, {ID: 3, DPRank: 1}}, r.Ranks)
	require.Equal(t, []uint32{2, 3}, r.Overlaps)
	require.Equal(t, []uint32{20, 30}, r.Host)
	require.Nil(t, r.Disk)
	require.False(t, r.Estimated.Has(0))
	require.True(t, r.Estimated.Has(1))
	require.Equal(t, worker.ID(1), all[0].ID, "a pool's own list stays as it is")
}
