//go:build e2e

package envoytest

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// indexed returns how many blocks the plugin believes the workers to hold.
func (f *fleet) indexed() (blocks int64) {
	f.t.Helper()
	var state struct {
		Workers []struct {
			Ranks []struct {
				Blocks int64 `json:"index_blocks"`
			}
		}
	}
	require.NoError(f.t, json.Unmarshal([]byte(f.adminGet("/debug/state")), &state))
	for _, w := range state.Workers {
		for _, r := range w.Ranks {
			blocks += r.Blocks
		}
	}
	return blocks
}

// TestTheRecipeEmptiesAllCachesBetweenRounds runs the commands of docs/using.md as they stand
// there.
func TestTheRecipeEmptiesAllCachesBetweenRounds(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/using.md")
	require.NoError(t, err)
	_, recipe, found := strings.Cut(string(page), "## Empty all caches")
	require.True(t, found)
	_, recipe, _ = strings.Cut(recipe, "```\n")
	recipe, _, found = strings.Cut(recipe, "\n```")
	require.True(t, found)
	for _, engine := range []worker.Engine{worker.SGLang, worker.VLLM} {
		t.Run(string(engine), func(t *testing.T) {
			f := newFleet(t, layoutOf(layout{prefill: 2, decode: 2}, engine))
			prompt := strings.Repeat("a prompt of some blocks ", 40)
			requireAnswer(t, f.send(t.Context(), "/v1/completions", completion(prompt, 4, false)), prompt, 4)
			f.await("the index to hold the prompt", func() bool { return f.indexed() > 0 })
			requireError(t, f.do(http.MethodPost, "/flush_cache", nil, nil), http.StatusNotFound, "unknown_path")

			script := strings.ReplaceAll(recipe, "http://127.0.0.1:9902", f.plugin.Admin)
			require.NotEqual(t, recipe, script)
			out, err := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", script).CombinedOutput()
			require.NoError(t, err, string(out))
			require.Equal(t, 4, strings.Count(string(out), ": emptied\n"), string(out))
			f.await("the index to hold nothing", func() bool { return f.indexed() == 0 })
		})
	}
}
