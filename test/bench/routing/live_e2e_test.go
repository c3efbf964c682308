//go:build e2e

package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/discovery/file"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Gaps of the tiny trace are such that a second or two of waiting changes no
// pick: what is found follows from the modes.
func TestAQuickRunThroughARealEnvoyFindsWhatTheModesAreKnownToFind(t *testing.T) {
	dir := t.TempDir()
	trace := filepath.Join(dir, "tiny.jsonl")
	require.NoError(t, os.WriteFile(trace, []byte(tiny), 0o600))
	var text, said bytes.Buffer
	err := run(t.Context(), []string{
		"-quick", "-trace", trace, "-out", dir, "-ranks", "2", "-capacity", "4", "-speed", "512", "-speedup", "5",
	}, &text, &said)
	require.NoError(t, err, said.String())
	require.Contains(t, text.String(), "| kv | live | 46.2 % | 53.8 % |", "the last block, believed as well, is always computed")
	require.Contains(t, text.String(), "| round-robin | live | 7.7 % | – |")
	require.Contains(t, text.String(), "hit rates are at most 0.0 points apart")
	require.NotContains(t, text.String(), "picks were by the byte estimate")
	for _, name := range []string{"routing.md", "routing.svg", "routing-live.svg"} {
		require.FileExists(t, filepath.Join(dir, name))
	}
}

// Whichever replica a request meets, events have told it of the turn before.
func TestReplicasBehindOneEnvoyFindWhatEventsTell(t *testing.T) {
	dir := t.TempDir()
	trace := filepath.Join(dir, "tiny.jsonl")
	require.NoError(t, os.WriteFile(trace, []byte(tiny), 0o600))
	var text, said bytes.Buffer
	err := run(t.Context(), []string{
		"-quick", "-trace", trace, "-out", dir, "-ranks", "2", "-capacity", "8", "-speed", "512", "-speedup", "5",
		"-replicas", "2", "-live-modes", "kv",
	}, &text, &said)
	require.NoError(t, err, said.String())
	require.Contains(t, text.String(), "| kv ×2 | live | 46.2 % | 53.8 % |")
	require.Contains(t, text.String(), "hit rates are at most 0.0 points apart")
}

func TestThePluginTakesTheConfigurationOfEachLiveMode(t *testing.T) {
	dir := t.TempDir()
	p, err := build(dir)
	require.NoError(t, err)
	o, err := parse(nil, io.Discard)
	require.NoError(t, err)
	workers := filepath.Join(dir, "workers.yaml")
	at, err := worker.ParseEndpoint("127.0.0.1:1")
	require.NoError(t, err)
	require.NoError(t, file.Write(workers, []*worker.Worker{{
		ID: 1, Role: worker.Aggregated, Engine: worker.SGLang, Endpoint: at, Models: []string{"m"}, DPSize: 1, BlockSize: 16,
	}}))
	for i, m := range o.played.modes {
		config := filepath.Join(dir, strconv.Itoa(i)+".yaml")
		text := "discovery: {file: " + strconv.Quote(workers) + "}\n" + o.played.pluginConfig(&m)
		require.NoError(t, os.WriteFile(config, []byte(text), 0o600))
		out, err := exec.CommandContext(t.Context(), filepath.Join(p.bin, "extproc"), "check", "--config", config).CombinedOutput()
		require.NoError(t, err, "%s: %s", m.name, out)
	}
}
