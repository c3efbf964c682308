package enginesim

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// TestAWorkerWithPublishedTokensHasNoTokenizerOfItsOwn: what is listed is served and told
// as listed, however it is written, and nothing else is.
func TestAWorkerWithPublishedTokensHasNoTokenizerOfItsOwn(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens.jsonl")
	require.NoError(t, os.WriteFile(file, []byte(`{"request":{"prompt":"a b"},"tokens":[7,8,9],"asked":true}
{"request":{"messages":[{"role":"user","content":"hi"}],"add_generation_prompt":true},"tokens":[1,2],"asked":false}
`), 0o600))
	p, err := ReadPublished(file)
	require.NoError(t, err)
	s := start(t, Config{Role: worker.Aggregated, Engine: worker.VLLM, Published: p})

	told := post(t.Context(), s.URL()+"/tokenize", `{"model":"sim", "prompt": "a b"}`)
	require.Contains(t, told.body, `"tokens":[7,8,9],"count":3`)
	require.Contains(t, post(t.Context(), s.URL()+completions, `{"model":"sim","prompt":"a b","max_tokens":1}`).body, Digest([]uint32{7, 8, 9}))
	require.Contains(t, post(t.Context(), s.URL()+chat, `{"model":"sim","messages":[ {"role":"user", "content":"hi"} ],"max_tokens":1}`).body, Digest([]uint32{1, 2}))
	require.Equal(t, http.StatusServiceUnavailable, post(t.Context(), s.URL()+"/tokenize", `{"messages":[{"role":"user","content":"hi"}]}`).status)
	for _, other := range []string{
		`{"model":"sim","messages":[{"role":"user","content":"hi"}],"add_generation_prompt":false,"max_tokens":1}`,
		`{"model":"sim","messages":[{"role":"user","content":"hi"}],"tools":[{"a":1}],"max_tokens":1}`,
	} {
		require.Equal(t, http.StatusBadRequest, post(t.Context(), s.URL()+chat, other).status, other)
	}
}
