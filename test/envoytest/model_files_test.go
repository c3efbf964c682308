//go:build e2e

package envoytest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFilesBesideAWorkerAreReadAndTried: `extproc register --model-path` serves them, the
// plugin reads them once and keeps them, and a trial with the engine finds out that they are
// of another model. (With a real engine's own files: test/real.)
func TestFilesBesideAWorkerAreReadAndTried(t *testing.T) {
	t.Parallel()
	model, kept := t.TempDir(), filepath.Join(t.TempDir(), "kept")
	var vocab []string
	for b := range 256 {
		vocab = append(vocab, fmt.Sprintf(`"<0x%02X>": %d`, b, b))
	}
	require.NoError(t, os.WriteFile(filepath.Join(model, "tokenizer.json"), fmt.Appendf(nil, `{"version": "1.0", "truncation": null,
		"padding": null, "normalizer": null, "added_tokens": [], "pre_tokenizer": null, "post_processor": null, "decoder": null,
		"model": {"type": "BPE", "byte_fallback": true, "vocab": {%s}, "merges": []}}`, strings.Join(vocab, ", ")), 0o600))
	f := newEtcdFleet(t, false, fmt.Sprintf("tokens: {files_dir: %q, wait: 4s}\n", kept))
	args := []string{"--model-path", model, "--model-files-listen", "127.0.0.1:0"}
	a, b := f.engine("aggregated"), f.engine("aggregated")
	f.announce(a, args...)
	f.announce(b, args...)
	f.awaitSeen(a, b)
	f.await("the files to be read", func() bool { return f.metric("baton_model_files_total", `outcome="fetched"`) == 1 })
	files, err := os.ReadDir(kept)
	require.NoError(t, err)
	require.Len(t, files, 1)

	requireAnswer(t, f.send(t.Context(), "/v1/completions", completion("some words", 2, false)), "some words", 2)
	f.await("the trial", func() bool {
		return strings.Contains(f.plugin.Log(), "a model's tokenizer files are not used: its engines are asked for the tokens")
	})
	require.Contains(t, f.plugin.Log(), "plain text: the engine has ")
	requireAnswer(t, f.send(t.Context(), "/v1/completions", completion("other words", 2, false)), "other words", 2)
	require.EqualValues(t, 1, f.metric("baton_model_files_total"), "the files are read once, whoever serves them")
}
