//go:build e2e

// Package direct runs the example as a newcomer would, and its picker before the
// plugin in both body modes.
package direct

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/envoy"
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
	cmd, err := stack.Example(ctx, "direct", t.TempDir(), []string{"CLIENT_PORT", "PICKER_PORT"}, env...)
	require.NoError(t, err)
	cmd.Dir, cmd.Args = dir, append(cmd.Args, args...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestTheExampleRunsAsItStands(t *testing.T) {
	t.Parallel()
	out, err := script(t, "", nil)
	require.NoError(t, err, out)
	pairs := map[string]bool{}
	for line := range strings.SplitSeq(out, "\n") {
		if _, said, ok := strings.Cut(line, ": 200 "); ok && strings.HasPrefix(line, "request ") {
			require.Equal(t, 2, strings.Count(said, "reason=named"), out)
			pairs[said] = true
		}
	}
	require.Len(t, pairs, 4, "each pair in turn: %s", out)
	require.Contains(t, out, "a client that names others: 200")
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
	require.Equal(t, 2, strings.Count(out, "reason=named decode="), out)
	out, err = script(t, dir, []string{"MODEL=another"}, "mine.yaml")
	require.Error(t, err)
	require.Contains(t, out, "model_not_found")
}

// TestThePickerIsAskedAgainOnEachAttempt is docs/behaviour.md#fresh-attempt where the
// picker sits in the same attempt: of two prefill workers one is dead, and no client sees it.
func TestThePickerIsAskedAgainOnEachAttempt(t *testing.T) {
	t.Parallel()
	envoyPath, err := stack.FindEnvoy(os.Getenv("ENVOY"))
	require.NoError(t, err)
	bin := t.TempDir()
	require.NoError(t, stack.Build(bin, "invariants", false, "./cmd/extproc", "./test/cmd/enginesim", "./examples/direct/picker"))
	for _, duplex := range []bool{false, true} {
		t.Run(fmt.Sprintf("full duplex %t", duplex), func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Second)
			dir := t.TempDir()
			list := filepath.Join(dir, "workers.yaml")
			var ended []<-chan struct{}
			t.Cleanup(func() {
				cancel()
				for _, done := range ended {
					<-done
				}
			})
			var workers []*stack.Worker
			for _, w := range [][2]string{{"prefill", "101"}, {"prefill", "102"}, {"decode", "201"}, {"decode", "202"}} {
				started, err := stack.StartWorker(ctx, bin, "--role", w[0], "--id", w[1], "--model", "m")
				require.NoError(t, err)
				workers, ended = append(workers, started), append(ended, started.Done())
			}
			require.NoError(t, file.Write(list, (&stack.Fleet{Prefills: workers[:2], Decodes: workers[2:]}).Infos()))
			plugin, err := stack.StartPlugin(ctx, stack.PluginOptions{BinDir: bin, Dir: dir, Workers: list})
			require.NoError(t, err)
			ended = append(ended, plugin.Done())
			ports, err := stack.FreePorts(t.Context(), 1)
			require.NoError(t, err)
			pick := exec.CommandContext(ctx, filepath.Join(bin, "picker"), "--listen", fmt.Sprintf("127.0.0.1:%d", ports[0]), "--workers", list)
			pick.Stderr = os.Stderr
			stack.EndWithParent(pick, syscall.SIGKILL)
			require.NoError(t, pick.Start())
			t.Cleanup(func() { cancel(); _ = pick.Wait() })
			e, err := stack.StartEnvoy(ctx, stack.EnvoyOptions{Path: envoyPath, Dir: dir, Params: envoy.Params{
				PluginSocket: plugin.Socket, PickerPort: ports[0], FullDuplex: duplex,
			}})
			require.NoError(t, err)
			ended = append(ended, e.Done())

			ask := func(nvext string) (int, string) {
				resp, err := http.Post(e.URL+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"hello","max_tokens":2`+nvext+`}`))
				require.NoError(t, err)
				defer resp.Body.Close()
				b, err := io.ReadAll(resp.Body)
				require.NoError(t, err)
				return resp.StatusCode, string(b)
			}
			require.NoError(t, stack.Await(ctx, "the picker", func() bool { status, _ := ask(""); return status == http.StatusOK }))
			require.NoError(t, workers[0].Kill())
			for range 12 { // in turn each pair is named: the dead one, too
				status, body := ask("")
				require.Equal(t, http.StatusOK, status, body)
			}
			status, body := ask(`,"nvext":{"prefill_worker_id":101}`)
			require.Equal(t, http.StatusBadRequest, status, "bodies come from clients")
			require.Contains(t, body, "forbidden_field")
			require.NoError(t, pick.Process.Kill())
			require.NoError(t, stack.Await(ctx, "the picker to be missed", func() bool { status, body = ask(""); return status == http.StatusServiceUnavailable }))
			require.Contains(t, body, "router_unavailable")
		})
	}
}
