//go:build e2e

// Package gatewayapi runs the example's forms as a newcomer would, and another
// picker before the plugin with bodies and answers of some size.
package gatewayapi

import (
	"context"
	"encoding/json"
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
	"github.com/seed-60ae5743/baton/test/twolegs"
)

// TestEachFormRunsAsItStands and says who has served, and why.
func TestEachFormRunsAsItStands(t *testing.T) {
	t.Parallel()
	const (
		alone = `200 aggregated=30[12]/0 reason=[a-z-]+`
		pair  = `200 prefill=10[12]/0 reason=[a-z-]+ decode=20[12]/0 reason=[a-z-]+`
		named = `200 prefill=10[12]/0 reason=named decode=20[12]/0 reason=named`
	)
	for _, c := range []struct {
		form, mode      string
		served, limited string
		nobody          string
		gone, bare      string // without the picker: a request, and one without a body
	}{
		{"picker", "FailClose", alone, `200 aggregated=302/0 reason=only-candidate`, `503 "code":"no_endpoint_in_subset"`, "500", "500"},
		{"picker", "FailOpen", alone, `200 aggregated=302/0 reason=only-candidate`, `503 "code":"no_endpoint_in_subset"`, "500", "200"},
		{
			"two-legs", "FailClose", pair, `200 prefill=102/0 reason=only-candidate decode=202/0 reason=only-candidate`,
			`503 "code":"no_endpoint_in_subset"`, `503 "code":"router_unavailable"`, `503 "code":"router_unavailable"`,
		},
		{
			"behind", "FailClose", named, `200 prefill=102/0 reason=named decode=202/0 reason=named`,
			`503 "code":"no_endpoint"`, `503 "code":"router_unavailable"`, `503 "code":"router_unavailable"`,
		},
	} {
		t.Run(c.form+" "+c.mode, func(t *testing.T) {
			t.Parallel()
			out := runScript(t, "FORM="+c.form, "FAILURE_MODE="+c.mode)
			want := []string{"form " + c.form}
			for i := range 4 {
				want = append(want, fmt.Sprintf("request %d: %s", i+1, c.served))
			}
			want = append(want, "limited to 102, 202 or 302: "+c.limited, "limited to a stranger: "+c.nobody,
				"a client that names others: "+c.served,
				c.mode+" without the picker: "+c.gone, c.mode+" without the picker, no body: "+c.bare)
			got := strings.Split(strings.TrimSpace(out), "\n")
			require.Len(t, got, len(want), "%s", out)
			for i := range want {
				require.Regexp(t, "^"+want[i]+" *$", got[i], "%s", out)
			}
		})
	}
}

// runScript runs run.sh on free ports and returns what it prints.
func runScript(t *testing.T, env ...string) string {
	t.Helper()
	envoyPath, err := stack.FindEnvoy(os.Getenv("ENVOY"))
	require.NoError(t, err)
	if stack.EnvoyMinor(envoyPath) < 38 {
		t.Skip("the configurations of this folder ask for selected_host_key, which Envoy knows since 1.38: docs/envoy-versions.md")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	script, err := stack.Example(ctx, "gateway-api", t.TempDir(),
		[]string{"CLIENT_PORT", "GRPC_PORT", "HEALTH_PORT", "METRICS_PORT", "BATON_PORT", "SYNC_PORT"}, env...)
	require.NoError(t, err)
	var stderr strings.Builder
	script.Stderr = &stderr
	out, err := script.Output()
	require.NoError(t, err, "%s%s", out, &stderr)
	return string(out)
}

// TestBothPickersLetBodiesAndAnswersThrough: two filters stream them one after the
// other, large ones and many pieces; and a prefill worker that dies costs a fresh
// attempt, in which the other picker is asked again.
func TestBothPickersLetBodiesAndAnswersThrough(t *testing.T) {
	t.Parallel()
	b := startBehind(t)
	ask := func(prompt string, tokens int, stream bool) (int, string) {
		body, err := json.Marshal(map[string]any{"model": "m", "prompt": prompt, "max_tokens": tokens, "stream": stream})
		require.NoError(t, err)
		resp, err := http.Post(b.url+"/v1/completions", "application/json", strings.NewReader(string(body)))
		require.NoError(t, err)
		defer resp.Body.Close()
		answer, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(answer)
	}
	status := 0
	require.NoError(t, stack.Await(b.ctx, "both pickers", func() bool { status, _ = ask("hello", 2, false); return status == http.StatusOK }))
	for _, size := range []int{1, 61_900, 62_001, 1 << 20} {
		status, answer := ask(strings.Repeat("x", size), 3, false)
		require.Equal(t, http.StatusOK, status, answer)
		require.Contains(t, answer, `"completion_tokens":3`, size)
	}
	for range 5 {
		status, answer := ask("a stream", 200, true)
		require.Equal(t, http.StatusOK, status, answer)
		for i := 1; i < 200; i++ {
			require.Contains(t, answer, fmt.Sprintf(`"text":" w%d"`, i))
		}
		require.True(t, strings.HasSuffix(answer, "data: [DONE]\n\n"), answer)
	}
	require.NoError(t, b.workers[0].Kill())
	for range 8 { // each pair is named in turn: the dead one, too
		status, answer := ask("hello", 2, false)
		require.Equal(t, http.StatusOK, status, answer)
	}
	require.NoError(t, b.plugin.Kill())
	status, answer := ask("hello", 2, false)
	require.Equal(t, http.StatusServiceUnavailable, status, "the picker's word alone leads nowhere: %s", answer)
	require.Contains(t, answer, "router_unavailable")
}

type behind struct {
	ctx     context.Context //nolint:containedctx // of all processes
	url     string
	workers []*stack.Worker
	plugin  *stack.Plugin
}

// startBehind runs the form "behind" with the committed patches.
func startBehind(t *testing.T) *behind {
	t.Helper()
	envoyPath, err := stack.FindEnvoy(os.Getenv("ENVOY"))
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, stack.Build(dir, "invariants", false, "./cmd/extproc", "./test/cmd/enginesim", "./examples/gateway-api/picker"))
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	b := &behind{ctx: ctx}
	var ended []<-chan struct{}
	t.Cleanup(func() {
		cancel()
		for _, done := range ended {
			<-done
		}
	})
	for _, w := range [][2]string{{"prefill", "101"}, {"prefill", "102"}, {"decode", "201"}, {"decode", "202"}} {
		started, err := stack.StartWorker(ctx, dir, "--role", w[0], "--id", w[1], "--model", "m")
		require.NoError(t, err)
		b.workers, ended = append(b.workers, started), append(ended, started.Done())
	}
	list := filepath.Join(dir, "workers.yaml")
	require.NoError(t, file.Write(list, (&stack.Fleet{Prefills: b.workers[:2], Decodes: b.workers[2:]}).Infos()))
	ports, err := stack.FreePorts(t.Context(), 4)
	require.NoError(t, err)
	b.plugin, err = stack.StartPlugin(ctx, stack.PluginOptions{BinDir: dir, Dir: dir, Workers: list, Listen: fmt.Sprintf("127.0.0.1:%d", ports[0])})
	require.NoError(t, err)
	ended = append(ended, b.plugin.Done())
	pick := exec.CommandContext(ctx, filepath.Join(dir, "picker"), "--listen", fmt.Sprintf("127.0.0.1:%d", ports[1]), "--workers", list)
	pick.Stderr = os.Stderr
	stack.EndWithParent(pick, syscall.SIGKILL)
	require.NoError(t, pick.Start())
	t.Cleanup(func() { cancel(); _ = pick.Wait() })

	config, err := twolegs.GatewayTwoLegs(envoy.GatewayParams{NoServed: true, Params: envoy.Params{
		ClientPort: ports[2], AdminSocket: filepath.Join(dir, "envoy.sock"), PluginSocket: "-", PluginHost: "127.0.0.1", PluginPort: ports[1], PrefillPort: ports[3],
	}})
	require.NoError(t, err)
	patch, err := os.ReadFile("../../../examples/gateway-api/behind.patch.yaml")
	require.NoError(t, err)
	config, err = twolegs.Patch(config, []byte(strings.Replace(string(patch), "port_value: 9004", fmt.Sprintf("port_value: %d", ports[0]), 1)))
	require.NoError(t, err)
	e, err := stack.StartEnvoy(ctx, stack.EnvoyOptions{Path: envoyPath, Dir: dir, Config: config})
	require.NoError(t, err)
	ended = append(ended, e.Done())
	b.url = e.URL
	return b
}
