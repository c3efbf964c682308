//go:build e2e

package envoytest

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// TestAnEngineThatSleepsHoldsNothing: vLLM discards its KV cache when it goes to sleep. That
// it tells of it with its next events only is not waited for.
func TestAnEngineThatSleepsHoldsNothing(t *testing.T) {
	t.Parallel()
	f := newFleet(t, layoutOf(layout{prefill: 1, decode: 1, config: toldOnly + "engines: {report_interval: 100ms}\n"}, worker.VLLM))
	prompt := words(3, 16*5+4)
	body := fmt.Sprintf(`{"model":"m","prompt":%q,"max_tokens":2}`, prompt)
	requireAnswer(t, f.send(t.Context(), "/v1/completions", body), prompt, 2)
	f.awaitTold()
	for _, w := range f.workers {
		blocks := func() float64 {
			return f.metric("baton_worker_index_blocks", fmt.Sprintf(`worker_id="%s"`, w.Info.ID))
		}
		require.Positive(t, blocks(), w.Name)
		resp, err := http.Post("http://"+w.Info.Endpoint.String()+"/sleep?level=1", "", nil)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, http.StatusOK, resp.StatusCode)
		f.await("nothing is known of "+w.Name, func() bool { return blocks() == 0 })
	}
	require.Positive(t, f.metric("baton_kv_resets_total", `reason="emptied"`))
}
