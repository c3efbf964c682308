//go:build e2e

package envoytest

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/stack"
)

// intoForeign gives, in place of the rendered configuration, a file of somebody else's into which the command has
// put Baton's parts.
func intoForeign(t *testing.T, rendered, name string) string {
	t.Helper()
	root, err := stack.Root()
	require.NoError(t, err)
	file, err := os.ReadFile(filepath.Join(root, "internal", "envoyfile", "testdata", "foreign", name))
	require.NoError(t, err)
	find := func(expr string) string {
		m := regexp.MustCompile(expr).FindStringSubmatch(rendered)
		require.NotNil(t, m, expr)
		return m[1]
	}
	dir := t.TempDir()
	own := strings.NewReplacer("ADMIN", find(`pipe: \{path: "([^"]*envoy\.sock)"`), "LDS", filepath.Join(dir, "lds.yaml"), "CDS", filepath.Join(dir, "cds.yaml")).Replace(string(file))
	path := filepath.Join(dir, name)
	require.NoError(t, os.WriteFile(path, []byte(own), 0o600))
	plugin := []string{"--listen", "unix://" + find(`pipe: \{path: "([^"]*extproc\.sock|[^"]*plugin[^"]*\.sock)"`)}
	args := append([]string{"envoy", "--write", "--client-listener", "client", path}, plugin...)
	switch {
	case strings.HasPrefix(name, "edge"):
		args = append(args, "--cluster", "llm")
	case strings.HasPrefix(name, "served"):
		args = append([]string{"envoy", "--parts", dir}, plugin...)
	}
	if strings.Contains(rendered, "request_body_mode: FULL_DUPLEX_STREAMED\n              request_trailer_mode: SEND\n              response_header_mode: SEND\n              response_body_mode: NONE\n              response_trailer_mode: SEND            # keeps") {
		args = append(args, "--full-duplex")
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(binDir, "extproc"), args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	if strings.HasPrefix(name, "served") {
		serveParts(t, dir, path, rendered)
	}
	merged, err := os.ReadFile(path)
	require.NoError(t, err)
	out, err = exec.CommandContext(t.Context(), filepath.Join(binDir, "extproc"), append([]string{"check", "--envoy", path}, plugin...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "has all that Baton needs")
	return string(merged)
}

// serveParts adds the written parts to a bootstrap file, and to the listeners that files serve the user's own: it has
// what client.yaml says.
func serveParts(t *testing.T, dir, path, rendered string) {
	t.Helper()
	read := func(data []byte) (m map[string]any) {
		require.NoError(t, yaml.Unmarshal(data, &m))
		return m
	}
	file := func(name string) map[string]any {
		data, err := os.ReadFile(name)
		require.NoError(t, err)
		return read(data)
	}
	write := func(name string, v any) {
		data, err := yaml.Marshal(v)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(name, data, 0o600))
	}
	own := file(path)
	maps.Copy(own, file(filepath.Join(dir, "bootstrap.yaml")))
	write(path, own)
	client := file(filepath.Join(dir, "client.yaml"))
	route := client["route"].(map[string]any)
	route["match"] = map[string]any{"prefix": "/"}
	host := client["virtual_host"].(map[string]any)
	host["name"], host["domains"], host["routes"] = "mine", []any{"*"}, []any{route}
	http := client["http_connection_manager"].(map[string]any)
	http["stat_prefix"], http["route_config"] = "mine", map[string]any{"virtual_hosts": []any{host}}
	l := client["listener"].(map[string]any)
	l["@type"], l["name"] = "type.googleapis.com/envoy.config.listener.v3.Listener", "client"
	l["address"] = map[string]any{"socket_address": map[string]any{"address": "127.0.0.1", "port_value": 0}}
	l["filter_chains"] = []any{map[string]any{"filters": []any{map[string]any{"name": "http", "typed_config": http}}}}
	lds := file(filepath.Join(dir, "lds.yaml"))
	lds["resources"] = append(lds["resources"].([]any), l)
	write(filepath.Join(dir, "lds.yaml"), lds)
}

// TestBatonGoesIntoForeignFiles: three files of others get Baton's parts by one command. Both ways of prefill are served
// through them, and the check finds nothing, in the file and in the running Envoy.
func TestBatonGoesIntoForeignFiles(t *testing.T) {
	t.Parallel()
	if stack.TooOldAsShipped() != "" {
		t.Skip("the templates are another form for this Envoy")
	}
	for _, name := range []string{"edge.yaml", "gateway.json", "served.yaml"} {
		for _, engine := range []worker.Engine{worker.SGLang, worker.VLLM} {
			t.Run(name+"/"+string(engine), func(t *testing.T) {
				t.Parallel()
				l := layoutOf(layout{prefill: 1, decode: 1}, engine)
				l.fullDuplex = engine == worker.VLLM && name == "edge.yaml"
				l.patch = func(config string) string { return intoForeign(t, config, name) }
				f := newFleet(t, l)
				requireAnswer(t, f.send(t.Context(), "/v1/completions", completion("through a file of others", 3, true)), "through a file of others", 3)
				prefill, _ := f.legs()
				require.NotEmpty(t, prefill.Headers)
				out, err := exec.CommandContext(t.Context(), filepath.Join(binDir, "extproc"), "check", "--envoy", filepath.Join(f.dir, "envoy.sock"), "--listen", "unix://"+f.plugin.Socket).CombinedOutput()
				require.NoError(t, err, "%s", out)
				require.Contains(t, string(out), "has all that Baton needs")
			})
		}
	}
}
