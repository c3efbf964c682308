//go:build real

package real

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/test/stack"
)

// TestOpenAIsClientsSeeTheSame: their types and exceptions come out as without Baton.
func TestOpenAIsClientsSeeTheSame(t *testing.T) {
	s := newScene(t, "", "vllm-1", "vllm-2")
	root, err := stack.Root()
	require.NoError(t, err)
	node := filepath.Join(home, "node", "client.mjs") // beside what it imports
	for name, command := range map[string][]string{
		"Python":     {filepath.Join(home, "vllm", "bin", "python"), filepath.Join(root, "test", "real", "python", "client.py")},
		"JavaScript": {"node", node},
	} {
		t.Run(name, func(t *testing.T) {
			direct := clientLines(t, command, s.engines[0].URL+"/v1", "qwen3")
			through := clientLines(t, command, s.envoy.URL+"/v1", "qwen3")
			for _, line := range direct {
				t.Log(line)
				require.NotContains(t, line, "Error: ", "the case itself fails")
			}
			require.Equal(t, direct, through, "what the client prints without Baton, and through it")
			tellf(t, vllm, "OpenAI's client for "+name, "%d cases come out as without Baton", len(direct))
		})
	}
}

// clientLines runs a client's cases against a server.
func clientLines(t *testing.T, command []string, args ...string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, command[0], append(command[1:len(command):len(command)], args...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}
