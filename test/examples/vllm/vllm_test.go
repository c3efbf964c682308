//go:build e2e

// Package vllm runs the example as a newcomer would, with both engines whose
// decode needs prefill's answer.
package vllm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/discovery/record"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/stack"
)

// TestTheExampleRunsAsItStands is docs/behaviour.md#prefill-first. The script itself fails where a
// hand-off was not taken, or a rule of the engine was broken.
func TestTheExampleRunsAsItStands(t *testing.T) {
	t.Parallel()
	for _, engine := range []worker.Engine{worker.VLLM, worker.TensorRTLLM} {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			if why := stack.TooOldAsShipped(); why != "" {
				t.Skip(why)
			}
			script, err := stack.Example(ctx, "vllm", t.TempDir(), []string{"CLIENT_PORT"}, "ENGINE="+string(engine), "REQUESTS=5")
			require.NoError(t, err)
			b, err := script.CombinedOutput()
			out := string(b)
			require.NoError(t, err, out)
			served := 0
			for line := range strings.SplitSeq(out, "\n") {
				if strings.HasPrefix(line, "request ") {
					require.Contains(t, line, ": 200 ")
					require.Regexp(t, `prefill=10[12]/0 reason=[a-z-]+ decode=20[12]/0 reason=[a-z-]+`, line)
					served++
				}
			}
			require.Equal(t, 5, served, out)
			require.Contains(t, out, "request 1: 200 completion ")
			require.Contains(t, out, "request 2: 200 streamed chat ")
			require.Contains(t, out, fmt.Sprintf("%s: 5 handed over, 5 taken, 5 pulled, 0 held", engine))
		})
	}
}

// TestTheSamplesAreRight: the plugin itself reads both files.
func TestTheSamplesAreRight(t *testing.T) {
	t.Parallel()
	root, err := stack.Root()
	require.NoError(t, err)
	bin := t.TempDir()
	require.NoError(t, stack.Build(bin, "", false, "./cmd/extproc"))
	check := exec.CommandContext(t.Context(), filepath.Join(bin, "extproc"), "check", "--config", "examples/vllm/baton.yaml")
	check.Dir = root
	out, err := check.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "listener: unix:///run/baton/prefill.sock")

	text, err := os.ReadFile("../../../examples/vllm/workers.yaml")
	require.NoError(t, err)
	workers, err := record.ParseList("workers.yaml", text)
	require.NoError(t, err)
	roles := map[worker.Role]int{}
	for _, w := range workers {
		require.Equal(t, worker.VLLM, w.Engine)
		require.True(t, w.Bootstrap.IsZero())
		roles[w.Role]++
	}
	require.Equal(t, map[worker.Role]int{worker.Prefill: 2, worker.Decode: 2}, roles)
}
