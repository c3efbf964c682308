//go:build e2e

package envoytest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
)

// TestAPairsLostOverlapHasItsCause, and a prefill worker that lies is learned anew, with each hand-off.
func TestAPairsLostOverlapHasItsCause(t *testing.T) {
	t.Parallel()
	for _, engine := range []worker.Engine{worker.SGLang, worker.VLLM, worker.VLLMMooncake} {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			l := layoutOf(layout{prefill: 1, decode: 1, config: counted}, engine)
			either(t, l, func(t *testing.T, f *fleet) {
				n := 0
				ask := func(seed int) {
					n++
					prompt := words(10_000*seed, 16*40)
					requireAnswer(t, f.send(t.Context(), "/v1/completions", asksForUsage(prompt, 4)), prompt, 4)
					f.awaitOutcomes(n, "ok")
				}
				known := func(blocks float64) {
					f.await("the index to know the prompts", func() bool { return f.metric("baton_worker_index_blocks", `role="prefill"`) == blocks })
				}
				for seed := range 5 {
					ask(seed)
					known(float64(40 * (seed + 1)))
					ask(seed)
				}
				require.Zero(t, f.metric("baton_overlap_lost_tokens_total"))
				f.await("the cache to be free", func() bool { return f.prefill[0].Sim.Lie(t.Context(), enginesim.Lie{Forget: true}) == nil })
				for seed := range 5 {
					ask(seed)
				}
				require.EqualValues(t, 5*640, f.metric("baton_overlap_lost_tokens_total", `model="m"`, `cause="stale_index"`))
				require.EqualValues(t, 5*640, f.metric("baton_overlap_lost_tokens_total"))
				require.Contains(t, f.adminGet("/debug/decisions"), `"overlap_lost": "lost 640 of 641 tokens: stale_index 640"`)
				require.EqualValues(t, 1, f.metric("baton_kv_resets_total", `reason="doubted"`))
				known(0)
			})
		})
	}
}
