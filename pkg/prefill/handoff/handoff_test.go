package handoff

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// TestEachEngineIsHandedOver: bodies are JSON, prefill's asks for one token, and decode's for
// what the client asked.
func TestEachEngineIsHandedOver(t *testing.T) {
	const body = `{"model":"m","prompt":"a","max_tokens":9,"stream":true}`
	tokensOf := func(b []byte) any {
		var m map[string]any
		require.NoError(t, json.Unmarshal(b, &m), "%s", b)
		return m["max_tokens"]
	}
	for e, first := range map[worker.Engine]bool{worker.SGLang: false, worker.VLLMMooncake: false, worker.VLLM: true, worker.TensorRTLLM: true} {
		r, err := Read(e, "/v1/completions", []byte(body))
		require.NoError(t, err)
		require.Empty(t, r.Obstacle())
		require.Equal(t, first, r.PrefillFirst(), e)
		toPrefill, toDecode := r.Together(worker.Bootstrap{Host: "h", Port: 1, EngineIDs: []string{"e"}}, 0, 7)
		if first {
			require.Nil(t, toDecode)
			toPrefill = r.Prefill(1 << 42)
		} else {
			require.EqualValues(t, 9, tokensOf(toDecode))
		}
		require.EqualValues(t, 1, tokensOf(toPrefill))
		require.JSONEq(t, body, string(r.body), "the client's own is not changed")
	}
}

func TestWhatCannotBeReadOrHandedOverIsNamed(t *testing.T) {
	for want, c := range map[string][3]string{
		"no hand-off of it is known": {"another", "/v1/completions", `{}`},
		"expected one of chat":       {"vllm", "/v1/embeddings", `{}`},
		"model":                      {"vllm", "/v1/completions", `{"model":1}`},
	} {
		_, err := Read(worker.Engine(c[0]), c[1], []byte(c[2]))
		require.ErrorContains(t, err, want)
	}
	r, err := Read(worker.VLLM, "/v1/completions", []byte(`{"model":"m","prompt":"a","n":2,"max_tokens":9}`))
	require.NoError(t, err)
	require.Equal(t, "n", r.Obstacle())
	_, err = r.Next([]byte(`{`))
	require.ErrorContains(t, err, "malformed")
}
