//go:build e2e

// Package sglang runs the example as a newcomer would.
package sglang

import (
	"context"
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

// TestTheExampleRunsAsItStands: the script itself fails where a half did not serve, or a
// rule of the engine was broken.
func TestTheExampleRunsAsItStands(t *testing.T) {
	t.Parallel()
	if why := stack.TooOldAsShipped(); why != "" {
		t.Skip(why)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	script, err := stack.Example(ctx, "sglang", t.TempDir(), []string{"CLIENT_PORT"}, "REQUESTS=5")
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
	require.Contains(t, out, "sglang: 5 prefilled, 5 decoded")
}

// TestTheSamplesAreRight: the plugin itself reads both files.
func TestTheSamplesAreRight(t *testing.T) {
	t.Parallel()
	root, err := stack.Root()
	require.NoError(t, err)
	bin := t.TempDir()
	require.NoError(t, stack.Build(bin, "", false, "./cmd/extproc"))
	check := exec.CommandContext(t.Context(), filepath.Join(bin, "extproc"), "check", "--config", "examples/sglang/baton.yaml")
	check.Dir = root
	out, err := check.CombinedOutput()
	require.NoError(t, err, "%s", out)

	text, err := os.ReadFile("../../../examples/sglang/workers.yaml")
	require.NoError(t, err)
	workers, err := record.ParseList("workers.yaml", text)
	require.NoError(t, err)
	roles := map[worker.Role]int{}
	for _, w := range workers {
		require.Equal(t, worker.SGLang, w.Engine)
		require.True(t, w.CanServe(w.Role))
		roles[w.Role]++
	}
	require.Equal(t, map[worker.Role]int{worker.Prefill: 2, worker.Decode: 2}, roles)
}
