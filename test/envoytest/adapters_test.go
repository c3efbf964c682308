//go:build e2e

package envoytest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// toldOnly: what was routed predicts nothing, so that an overlap is what events told.
const toldOnly = counted + "routing: {predicted_ttl: 0s}\n"

// awaitTold waits until the plugin knows as many blocks of each worker as it holds.
func (f *fleet) awaitTold() {
	f.t.Helper()
	for _, w := range f.workers {
		f.await("the events of "+w.Name, func() bool {
			s, ok := f.state(w)
			n := 0
			for _, r := range s.Ranks {
				n += r.CachedBlocks
			}
			return ok && f.metric("baton_worker_index_blocks", fmt.Sprintf(`worker_id="%s"`, w.Info.ID)) == float64(n)
		})
	}
}

// TestAdaptersAndSaltsMeetTheirOwnBlocks: in each way in which an adapter or a namespace is
// named, what events have told of a prompt is what the engine then finds, block for block,
// and what another has put into the cache is nobody else's.
func TestAdaptersAndSaltsMeetTheirOwnBlocks(t *testing.T) {
	t.Parallel()
	for engine, spaces := range map[worker.Engine][][]string{ // those in a row name one space
		worker.VLLM: {
			{`"model":"m"`, `"model":"m","lora_path":"a","extra_key":"x"`},
			{`"model":"a"`, `"model":"a","lora_path":"b"`},
			{`"model":"b"`},
			{`"model":"m","cache_salt":"x"`},
			{`"model":"a","cache_salt":"x"`},
			{`"model":"m","cache_salt":"a salt longer than what fits into the shortest form of a text"`},
		},
		worker.SGLang: {
			{`"model":"m"`, `"model":"a"`, `"model":"m","cache_salt":""`},
			{`"model":"m:a"`, `"model":"m","lora_path":"a"`, `"model":"m:a","lora_path":"b"`},
			{`"model":"m","lora_path":"b"`, `"model":"m: b"`},
			{`"model":"m","cache_salt":"x"`},
			{`"model":"m:a","cache_salt":"x"`, `"model":"m","lora_path":"a","cache_salt":"x"`},
			{`"model":"m","cache_salt":"a"`},
		},
	} {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			l := layoutOf(layout{prefill: 1, decode: 1, config: toldOnly, simArgs: []string{"--adapters", "a,b"}}, engine)
			both(t, l, func(t *testing.T, f *fleet) {
				const blocks = 5
				prompt := words(3, 16*blocks+4)
				ask := func(members string) (predicted, had int) {
					f.forget()
					r := f.send(t.Context(), "/v1/completions", fmt.Sprintf(`{"prompt":%q,"max_tokens":2,%s}`, prompt, members))
					requireAnswer(t, r, prompt, 2)
					prefill, _ := f.legs()
					f.awaitTold()
					return f.decisions()[0].Prefill.Overlap, prefill.CachedTokens
				}
				for _, same := range spaces {
					predicted, had := ask(same[0])
					require.Zero(t, had, same[0])
					require.Zero(t, predicted, same[0])
				}
				for _, same := range spaces {
					for _, members := range same {
						predicted, had := ask(members)
						require.Equal(t, 16*blocks, had, members)
						require.Equal(t, had, 16*predicted, members)
					}
				}
			})
		})
	}
}

// TestAnExtraKeyIsKnownByWhatWasRouted: SGLang tells it in no event, so what it keeps apart
// is predicted from what was routed lately, and nobody else is credited with it by that.
func TestAnExtraKeyIsKnownByWhatWasRouted(t *testing.T) {
	t.Parallel()
	f := newFleet(t, layout{prefill: 1, decode: 1, config: counted})
	prompt := words(3, 16*5+4)
	for i, want := range []int{0, 5} {
		f.forget()
		r := f.send(t.Context(), "/v1/completions", fmt.Sprintf(`{"model":"m","prompt":%q,"max_tokens":2,"extra_key":"k"}`, prompt))
		requireAnswer(t, r, prompt, 2)
		prefill, _ := f.legs()
		require.Equal(t, 16*want, prefill.CachedTokens, i)
		require.Equal(t, want, f.decisions()[0].Prefill.Overlap, i)
	}
	f.forget()
	r := f.send(t.Context(), "/v1/completions", fmt.Sprintf(`{"model":"m","prompt":%q,"max_tokens":2,"extra_key":"l"}`, prompt))
	requireAnswer(t, r, prompt, 2)
	prefill, _ := f.legs()
	require.Zero(t, prefill.CachedTokens)
	require.Zero(t, f.decisions()[0].Prefill.Overlap)
}
