//go:build e2e

// Package queryonly runs the example as a newcomer would.
package queryonly

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/stack"
	"github.com/seed-60ae5743/baton/pkg/discovery/file"
)

// script runs run.sh in the folder dir and returns what it has said, on both of
// its streams.
func script(t *testing.T, dir string, env []string, args ...string) (string, error) {
	t.Helper()
	root, err := stack.Root()
	require.NoError(t, err)
	envoyPath, err := stack.FindEnvoy(os.Getenv("ENVOY"))
	require.NoError(t, err)
	ports, err := stack.FreePorts(3)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(root, "examples", "query-only", "run.sh"), args...)
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), "ENVOY="+envoyPath, fmt.Sprintf("CLIENT_PORT=%d", ports[0]), fmt.Sprintf("ENVOY_ADMIN_PORT=%d", ports[1]),
		fmt.Sprintf("BATON_ADMIN=127.0.0.1:%d", ports[2])), env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // it ends what it has started
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestTheExampleRunsAsItStands(t *testing.T) {
	out, err := script(t, "", []string{"REQUESTS=5"})
	require.NoError(t, err, out)
	require.Equal(t, 5, strings.Count(out, "sent there, served"), out)
}

// One's own workers: the list's path is the caller's, and what goes wrong is said.
func TestTheExampleTakesOnesOwnWorkers(t *testing.T) {
	bin, dir := t.TempDir(), t.TempDir()
	require.NoError(t, stack.Build(bin, "invariants", false, "./cmd/enginesim"))
	ctx, cancel := context.WithCancel(context.Background())
	fleet, err := stack.StartFleet(ctx, bin, stack.FleetOptions{Prefills: 1, Decodes: 1, Args: []string{"--model", "own"}})
	require.NoError(t, err)
	t.Cleanup(func() {
		cancel()
		for _, w := range fleet.All() {
			<-w.Done()
		}
	})
	require.NoError(t, file.Write(filepath.Join(dir, "mine.yaml"), fleet.Infos()))
	out, err := script(t, dir, []string{"MODEL=own", "REQUESTS=2"}, "mine.yaml")
	require.NoError(t, err, out)
	require.Equal(t, 2, strings.Count(out, "sent there, served"), out)
	out, err = script(t, dir, []string{"MODEL=another"}, "mine.yaml")
	require.Error(t, err)
	require.Contains(t, out, "model_not_found")
}
