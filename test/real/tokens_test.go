//go:build real

package real

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// tokenizerOf is the configuration in which the plugin makes a model's tokens from the files
// of another, or of the same.
func tokenizerOf(model, files string) string {
	return fmt.Sprintf("%smodels: {%s: {tokenizer: %q}}\n", compared, model, filepath.Join(home, "models", files))
}

// tried sends requests until the plugin knows whether the files give the engine's tokens:
// the first that comes once it has the files, and whose tokens it does not hold, begins the
// trials.
func (s *scene) tried(model string) {
	s.t.Helper()
	n := 0
	s.await("a trial of text and one of messages", func() bool {
		n++
		s.ask("/v1/completions", fields{"model": model, "prompt": fmt.Sprint("number ", n), "max_tokens": 2})
		return strings.Count(s.plugin.Log(), "tokenizer files") == 2
	})
}

// TestVLLMTokensMadeHere: Baton makes the tokens from Qwen3's published files, which it has
// from beside the workers, and they are the engine's, in conversations, with tools, with
// evictions.
func TestVLLMTokensMadeHere(t *testing.T) {
	s := (&scene{t: t, engines: engines.use(t, "vllm-1", "vllm-2"), modelPath: filepath.Join(home, "models", "qwen3")}).start(compared)
	s.await("the files to be read", func() bool { return s.metric("baton_model_files_total", `outcome="fetched"`) == 1 })
	s.tried("qwen3")
	require.NotContains(t, s.plugin.Log(), "are not used")
	r := rand.New(rand.NewPCG(20, 1))
	names := []string{"text", "chat", "system prompt", "tools"}
	var all []told
	for i := range 120 {
		kind := names[i%len(names)]
		path, body := kinds[kind](uint64(r.IntN(16)), i)
		body["model"], body["max_tokens"], body["stream"] = "qwen3", 4, i%3 == 0
		_, x := s.compare(kind, path, body)
		require.Equal(t, "local tokenizer", s.last().TokenSource, kind)
		all = append(all, x)
	}
	for c := range 3 {
		history := []fields{message("system", words(uint64(c), 150))}
		for turn := range 4 {
			history = append(history, message("user", words(uint64(300+10*c+turn), 60)))
			a, x := s.compare(fmt.Sprintf("conversation %d, turn %d", c, turn), "/v1/chat/completions",
				fields{"model": "qwen3", "messages": history, "max_tokens": 24, "temperature": 0})
			require.Equal(t, "local tokenizer", s.last().TokenSource)
			all = append(all, x)
			history = append(history, message("assistant", a.text))
		}
	}
	require.NotContains(t, s.plugin.Log(), "are not used")
	s.await("a prompt to be compared with the blocks that its engine has told", func() bool {
		return s.metric("baton_tokens_compared_total", `outcome="told"`) > 0
	})
	require.Zero(t, s.metric("baton_tokens_compared_total", `outcome="differs"`))
	requireAgreement(t, vllm, "aggregated: tokens made by Baton from Qwen3's files, 2 workers", all, 1)
}

// TestVLLMTokensOfOtherFiles: the files of another model are found out, and not used.
func TestVLLMTokensOfOtherFiles(t *testing.T) {
	s := newScene(t, tokenizerOf("qwen3", "tiny"), "vllm-1", "vllm-2")
	s.tried("qwen3")
	require.Equal(t, 2, strings.Count(s.plugin.Log(), "are not used"))
	s.compare("after it", "/v1/completions", fields{"model": "qwen3", "prompt": words(1, 50), "max_tokens": 2})
	require.Equal(t, "engine tokenize", s.last().TokenSource)
	tellf(t, vllm, "aggregated: the files of another model as its tokenizer", "found out by the first trial, and not used")
}
