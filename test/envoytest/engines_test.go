//go:build e2e

package envoytest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/stack"
)

// TestAnEngineThatJoinsWithoutItsListenerHarmsNobody: the plugin has started beside
// workers that need no listener of its Envoy; then those of the same model join
// that do.
func TestAnEngineThatJoinsWithoutItsListenerHarmsNobody(t *testing.T) {
	t.Parallel()
	ports, err := stack.FreePorts(t.Context(), 1)
	require.NoError(t, err)
	f := newFleet(t, layout{
		prefill: 1, decode: 1, listen: fmt.Sprintf("127.0.0.1:%d", ports[0]),
		envoy: envoy.Params{PluginSocket: "-", PluginHost: "127.0.0.1", PluginPort: ports[0]},
	})
	requireAnswer(t, f.send(t.Context(), "/v1/completions", completion("before", 2, false)), "before", 2)
	p, d := *f.prefill[0].Info, *f.decode[0].Info
	for i, w := range []*worker.Worker{&p, &d} {
		w.ID, w.Engine, w.Bootstrap = worker.ID(900+i), worker.VLLM, worker.Bootstrap{}
		w.Endpoint, err = worker.ParseEndpoint(fmt.Sprintf("127.0.0.99:%d", 900+i))
		require.NoError(t, err)
	}
	f.publishAndWait(f.prefill[0], f.decode[0], &stack.Worker{Info: &p}, &stack.Worker{Info: &d})
	for i := range 8 {
		prompt := fmt.Sprintf("after %d", i)
		requireAnswer(t, f.send(t.Context(), "/v1/completions", completion(prompt, 2, false)), prompt, 2)
	}
	require.Contains(t, f.plugin.Log(), "expected prefill.listener")
}
