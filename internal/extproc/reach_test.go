package extproc

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// TestPrefillIsPickedSoThatItsKVMayReachTheNamedDecode is about
// docs/behaviour.md#transfer-domain and #named-workers. Each of two zones has one worker of
// each role.
func TestPrefillIsPickedSoThatItsKVMayReachTheNamedDecode(t *testing.T) {
	t.Parallel()
	r := newReplicaOf(t, "a", fixed(routetest.Zoned(worker.Required, 0)), func(c *Config) { c.StartTimeout = time.Minute })
	for range 6 {
		for decode, prefill := range map[string]string{"3": "1", "4": "2"} {
			p := r.through(routingKey, "prerouted")
			set, _ := routed(t, p.ask(eightTokens, "x-worker-instance-id", decode))
			require.Equal(t, prefill, set["x-prefill-instance-id"])
			require.Equal(t, "the request's own choice leaves it out", r.srv.cfg.Journal.Recent(nil, 1)[0].Prefill.Rows()[1].Note)
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

	preferred := newReplicaOf(t, "b", fixed(routetest.Zoned(worker.Preferred, 1)), func(c *Config) { c.StartTimeout, c.Prefill.Mode = time.Minute, picker.RoundRobin })
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
