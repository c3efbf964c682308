//go:build e2e

// Package queryonly runs the example as a newcomer would.
package queryonly

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/discovery/file"
	"github.com/seed-60ae5743/baton/test/stack"
)

// script runs run.sh in the folder dir and returns what it has said, on both of
// its streams.
func script(t *testing.T, dir string, env []string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if why := stack.TooOldAsShipped(); why != "" {
		t.Skip(why)
	}
	cmd, err := stack.Example(ctx, "query-only", t.TempDir(), []string{"CLIENT_PORT"}, env...)
	require.NoError(t, err)
	cmd.Dir, cmd.Args = dir, append(cmd.Args, args...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestTheExampleRunsAsItStands(t *testing.T) {
	t.Parallel()
	out, err := script(t, "", []string{"REQUESTS=5"})
	require.NoError(t, err, out)
	require.Equal(t, 5, strings.Count(out, "sent there, served"), out)
}

// One's own workers: the list's path is the caller's, and what goes wrong is said.
func TestTheExampleTakesOnesOwnWorkers(t *testing.T) {
	t.Parallel()
	bin, dir := t.TempDir(), t.TempDir()
	require.NoError(t, stack.Build(bin, "invariants", false, "./test/cmd/enginesim"))
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
