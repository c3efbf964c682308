//go:build real

package real

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim/capture"
	"github.com/seed-60ae5743/baton/test/stack"
)

var captured = flag.Bool("capture", false, "write what the engines say to what the simulators are held to")

// TestCapture says the cases of package capture to engines that nobody else has asked.
func TestCapture(t *testing.T) {
	if !*captured {
		t.Skip("make real-capture writes what the engines say")
	}
	root, err := stack.Root()
	require.NoError(t, err)
	for _, s := range capture.Systems() {
		t.Run(s.Name, func(t *testing.T) {
			f, err := s.Run(t.Context(), startSystem(t, s)...)
			require.NoError(t, err)
			dir := filepath.Join(root, "test", "enginesim", "testdata", "captures")
			require.NoError(t, os.MkdirAll(dir, 0o750))
			require.NoError(t, os.WriteFile(filepath.Join(dir, s.Name), []byte(f.String()), 0o600))
		})
	}
}

// startSystem starts a system's engines, which end with the test.
func startSystem(t *testing.T, s capture.System) []capture.Target {
	t.Helper()
	roles := []worker.Role{worker.Aggregated}
	if s.Apart {
		roles = []worker.Role{worker.Prefill, worker.Decode}
	}
	start := map[string]func(context.Context, Options) (*Engine, error){"vllm": StartVLLM, "sglang": StartSGLang}[s.Engine]
	es, errs := make([]*Engine, len(roles)), make([]error, len(roles))
	var wg sync.WaitGroup
	for i, role := range roles {
		o := Options{Home: home, Name: s.Name + " " + role.String(), Model: "tiny", Role: role}
		if s.Engine == "sglang" {
			o.Args = []string{"--context-length", "4096"}
		} else {
			o.Args = []string{"--num-gpu-blocks-override", fmt.Sprint(capture.Blocks)}
			o.Env = []string{"VLLM_SERVER_DEV_MODE=1"} // for /reset_prefix_cache
		}
		wg.Go(func() { es[i], errs[i] = start(engines.ctx, o) })
	}
	wg.Wait()
	var out []capture.Target
	for i, e := range es {
		require.NoError(t, errs[i])
		t.Cleanup(func() { _ = e.Kill() })
		target := capture.Target{URL: e.URL, Host: "127.0.0.1", Bootstrap: e.Bootstrap}
		if s.Engine != "sglang" || e.Role != worker.Decode { // SGLang's decode keeps no cache
			target.Events, target.Replay = fmt.Sprintf("tcp://127.0.0.1:%d", e.Events), fmt.Sprintf("tcp://127.0.0.1:%d", e.Replay)
		}
		out = append(out, target)
	}
	return out
}
