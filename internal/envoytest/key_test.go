//go:build e2e

package envoytest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// TestEnginesThatAskForAKey: a client's key reaches both legs, its lack is the engine's own
// answer, and the plugin's questions show the key of its file, which may change.
func TestEnginesThatAskForAKey(t *testing.T) {
	t.Parallel()
	for _, engine := range []worker.Engine{worker.SGLang, worker.VLLM} {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "key")
			require.NoError(t, os.WriteFile(file, []byte("wrong\n"), 0o600))
			l := layoutOf(layout{prefill: 1, decode: 1, simArgs: []string{"--api-key", "sesame"},
				config: "tokens: {wait: 3s}\nengines: {api_key_file: " + file + "}\n"}, engine)
			f := newFleet(t, l)

			r := f.send(t.Context(), "/v1/completions", completion("who are you", 2, false))
			require.NoError(t, r.err)
			require.Equal(t, 401, r.status, r.body)
			require.Contains(t, r.body, "Unauthorized")

			f.forget()
			r = f.send(t.Context(), "/v1/completions", completion("open up", 2, false), "authorization", "Bearer sesame")
			requireAnswer(t, r, "open up", 2)
			prefill, decode := f.legs()
			require.Equal(t, []string{"Bearer sesame"}, prefill.Headers["Authorization"])
			require.Equal(t, []string{"Bearer sesame"}, decode.Headers["Authorization"])
			if engine == worker.VLLM { // its /tokenize asks for none
				require.Equal(t, "engine tokenize", f.decisions()[0].TokenSource)
				return
			}
			require.Equal(t, "byte estimate", f.decisions()[0].TokenSource)
			require.Contains(t, f.plugin.Log(), "an engine refuses the API key")

			require.NoError(t, os.WriteFile(file, []byte("sesame\n"), 0o600))
			f.await("the tokenizer to be asked again", func() bool {
				r := f.send(t.Context(), "/v1/completions", completion("open up again", 2, false), "authorization", "Bearer sesame")
				requireAnswer(t, r, "open up again", 2)
				return f.decisions()[0].TokenSource == "engine tokenize"
			})
		})
	}
}
