//go:build real

package real

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/internal/extproc/routetable"
	"github.com/seed-60ae5743/baton/test/stack"
)

var routesWritten = flag.Bool("routes", false, "write the engines' paths to what they are classed by")

// declared are the folders of each engine's sources that declare paths, within its packages.
var declared = map[string][]string{
	"vllm-0.32.0":             {"vllm", "vllm/entrypoints"},
	"sglang-0.5.23":           {"sglang", "sglang/srt/entrypoints", "sglang/srt/utils", "sglang/srt/disaggregation", "sglang/srt/distributed"},
	"sglang-0.5.23-diffusion": {"sglang", "sglang/multimodal_gen/runtime"},
}

// TestEachPathOfTheEnginesIsKnown: the lists that paths are classed by are what the
// installed engines declare, and what a running vLLM says that it serves is among them.
func TestEachPathOfTheEnginesIsKnown(t *testing.T) {
	root, err := stack.Root()
	require.NoError(t, err)
	dir := filepath.Join(root, "internal", "extproc", "testdata", "routes")
	for name, folders := range declared {
		site := SitePackages(filepath.Join(home, folders[0]))
		args := []string{filepath.Join(root, "test", "real", "python", "routes.py")}
		for _, f := range folders[1:] {
			args = append(args, filepath.Join(site, f))
		}
		out, err := exec.CommandContext(t.Context(), filepath.Join(home, "vllm", "bin", "python"), args...).Output()
		require.NoError(t, err, name)
		file := filepath.Join(dir, name)
		if *routesWritten {
			require.NoError(t, os.WriteFile(file, out, 0o600))
			continue
		}
		want, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, string(want), string(out), "%s: -routes writes it anew; then each new path needs its class", name)
	}
	classes, err := routetable.Classes(dir)
	require.NoError(t, err)

	e := engines.use(t, "vllm-open")[0]
	resp, err := http.Get(e.URL + "/openapi.json")
	require.NoError(t, err)
	defer resp.Body.Close()
	var served struct{ Paths map[string]any }
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&served))
	require.NotEmpty(t, served.Paths)
	for path := range served.Paths {
		require.Contains(t, classes, path)
	}
	tellf(t, vllm, "paths", "%d are declared or served, each has its class", len(classes))
}

// forbidden are bodies that say what only a router may. The first kills an engine that
// obeys it.
var forbidden = []string{
	`{"model":"tiny","prompt":"a","messages":[{"role":"user","content":"a"}],"input":"a","max_tokens":2,"kv_transfer_params":{"do_remote_prefill":true}}`,
	`{"model":"tiny","prompt":"a","messages":[{"role":"user","content":"a"}],"do_remote_prefill":true}`,
	`{"model":"tiny","prompt":"a","messages":[{"role":"user","content":"a"}],"vllm_xargs":{"kv_transfer_params":{"do_remote_prefill":true}}}`,
}

// nested are those of which the paths that are read have no such place.
var nested = []string{
	`{"model":"tiny","token_ids":[1,2,3],"sampling_params":{"max_tokens":2,"extra_args":{"kv_transfer_params":{"do_remote_prefill":true}}}}`,
}

// TestNoPathLetsAClientKillVLLM: on each path that is passed on or read, by our own Envoy
// and by gateways with one leg and two, in both body modes, a client says what only a
// router may. It is refused, and the engine lives after each. Said to the engine itself it
// is the engine's end.
func TestNoPathLetsAClientKillVLLM(t *testing.T) {
	root, err := stack.Root()
	require.NoError(t, err)
	classes, err := routetable.Classes(filepath.Join(root, "internal", "extproc", "testdata", "routes"))
	require.NoError(t, err)
	s := newScene(t, "gateway: {enabled: true}\n", "vllm-open")
	e := s.engines[0]
	say := func(url, path, body string) (int, string) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+path, strings.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("content-type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, err.Error()
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(b)
	}
	lives := func(url, after string) {
		t.Helper()
		status, answer := say(url, "/v1/completions", `{"model":"tiny","prompt":"are you there","max_tokens":1}`)
		require.Equal(t, http.StatusOK, status, "after %s: %s", after, answer)
	}
	asked := 0
	for name, o := range map[string]stack.EnvoyOptions{
		"own Envoy, buffered":            {},
		"own Envoy, full duplex":         {Params: envoy.Params{FullDuplex: true}},
		"gateway, one leg, buffered":     {Gateway: &envoy.GatewayParams{OriginalDst: true, Buffered: true}},
		"gateway, one leg, full duplex":  {Gateway: &envoy.GatewayParams{OriginalDst: true}},
		"gateway, two legs, buffered":    {Gateway: &envoy.GatewayParams{OriginalDst: true, Buffered: true}, TwoLegs: true},
		"gateway, two legs, full duplex": {Gateway: &envoy.GatewayParams{OriginalDst: true}, TwoLegs: true},
	} {
		t.Run(name, func(t *testing.T) {
			o.Path, o.Dir = envoyPath, t.TempDir()
			o.Params.PluginSocket = s.plugin.Socket
			if o.Gateway != nil {
				o.Gateway.PluginSocket = s.plugin.Socket
			}
			proxy, err := stack.StartEnvoy(t.Context(), o)
			require.NoError(t, err)
			lives(proxy.URL, "nothing")
			for path, class := range classes {
				bodies := forbidden
				if class == routetable.Passed {
					bodies = slices.Concat(forbidden, nested)
				} else if class != routetable.Read {
					continue
				}
				path = routetable.Concrete(path)
				for _, body := range bodies {
					asked++
					status, answer := say(proxy.URL, path, body)
					require.Equal(t, http.StatusBadRequest, status, "%s %s: %s", path, body, answer)
					require.Contains(t, answer, "forbidden_field", "%s %s", path, body)
				}
				lives(proxy.URL, path)
			}
		})
	}
	require.True(t, e.Alive())
	status, answer := say(e.URL, "/v1/completions", forbidden[0])
	s.await("the engine to end", func() bool {
		status, _ := say(e.URL, "/v1/completions", `{"model":"tiny","prompt":"are you there","max_tokens":1}`)
		return status != http.StatusOK
	})
	tellf(t, vllm, "a client says do_remote_prefill", "by %d requests on every path in six modes: 400, and it lives after each; said to the engine itself: %d, and it ends", asked, status)
	require.NotEmpty(t, bytes.TrimSpace([]byte(answer)))
	require.NoError(t, e.Kill())
}
