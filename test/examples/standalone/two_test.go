//go:build e2e

package standalone

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/pkg/discovery/file"
	"github.com/seed-60ae5743/baton/test/stack"
)

var rewrite = flag.Bool("rewrite", false, "write two/envoy.yaml")

// twoFiles has the files of two plugins behind one Envoy.
const twoFiles = "../../../examples/standalone/two"

// TestTheEnvoyOfTwoPluginsIsThatOfOne: it is written from the same templates, and has a second address.
func TestTheEnvoyOfTwoPluginsIsThatOfOne(t *testing.T) {
	want, err := envoy.Standalone(envoy.Params{
		PluginSocket: "-", PluginHost: "127.0.0.1", PluginPort: 9002, Replicas: []string{"127.0.0.1:9012"}, PrefillSocket: "/run/baton/legs.sock",
		Title: "Two plugins behind your own Envoy, bodies buffered. The cluster extproc has both addresses.",
		Notes: []string{"Written by `go -C test test -tags e2e -run TheEnvoyOfTwo ./examples/standalone -args -rewrite` from", "envoy/standalone.yaml.tmpl: edit that, not this."},
	})
	require.NoError(t, err)
	name := filepath.Join(twoFiles, "envoy.yaml")
	if *rewrite {
		require.NoError(t, os.WriteFile(name, want, 0o644))
	}
	is, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, string(want), string(is), "its first lines say how it is written")
}

// two are both plugins of a file of this example, and where each is.
type two struct {
	plugins [2]*stack.Process
	listen  [2]string
	admin   [2]string
	start   [2]func() *stack.Process
	moved   *strings.Replacer // from what the files say to what is free here
}

// startTwo starts both plugins as the file says. Each entry of also is a text of it and what stands here
// in its place.
func startTwo(t *testing.T, bin, name string, also ...string) *two {
	t.Helper()
	dir := t.TempDir()
	key := filepath.Join(dir, "leg.key")
	require.NoError(t, os.WriteFile(key, []byte("a key that both have, and nobody else"), 0o600))
	ports, err := stack.FreePorts(t.Context(), 4)
	require.NoError(t, err)
	local := func(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
	w := &two{listen: [2]string{local(ports[0]), local(ports[1])}, admin: [2]string{"http://" + local(ports[2]), "http://" + local(ports[3])}}
	pairs := append([]string{"/etc/baton/leg.key", key, "/run/baton/", dir + "/"}, also...)
	for i, port := range []int{9002, 9012, 9902, 9912} {
		pairs = append(pairs, local(port), local(ports[i]), fmt.Sprintf("port_value: %d", port), fmt.Sprintf("port_value: %d", ports[i]))
	}
	w.moved = strings.NewReplacer(pairs...)

	shipped, err := os.ReadFile(filepath.Join(twoFiles, name))
	require.NoError(t, err)
	second := regexp.MustCompile(`(?m)^#   (--listen .*)$`).FindSubmatch(shipped)
	require.NotNil(t, second, "it says how the second plugin is started")
	config := filepath.Join(dir, name)
	require.NoError(t, os.WriteFile(config, []byte(w.moved.Replace(string(shipped))), 0o600))
	for i, flags := range [][]string{nil, strings.Fields(w.moved.Replace(string(second[1])))} {
		args := append([]string{"--config", config}, flags...)
		out, err := exec.CommandContext(t.Context(), filepath.Join(bin, "extproc"), append([]string{"check"}, args...)...).CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "advertise: "+w.listen[i])
		w.start[i] = func() *stack.Process {
			p, err := stack.StartProgram(t.Context(), stack.ProgramOptions{Name: "extproc", Path: filepath.Join(bin, "extproc"), Args: append([]string{"serve"}, args...)})
			require.NoError(t, err)
			t.Cleanup(func() {
				if p.Alive() {
					require.NoError(t, p.Kill())
				}
				if t.Failed() {
					t.Log(p.Log())
				}
			})
			return p
		}
		w.plugins[i] = w.start[i]()
	}
	return w
}

// says waits until a plugin's page has the other one in a state, and reports it ready.
func (w *two) says(t *testing.T, i int, state string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	page := ""
	require.NoError(t, stack.Await(ctx, "the other plugin to be "+state, func() (is bool) {
		if _, err := stack.Get(ctx, w.admin[i]+"/readyz"); err != nil {
			return false
		}
		var told struct {
			Replicas []struct{ Address, State string }
		}
		page, _ = stack.Get(ctx, w.admin[i]+"/debug/state")
		return json.Unmarshal([]byte(page), &told) == nil && len(told.Replicas) == 1 &&
			told.Replicas[0].Address == w.listen[1-i] && told.Replicas[0].State == state
	}), "%s", page)
}

// TestTwoPluginsByAList: they share what they have booked behind one Envoy, and no request fails while the
// second one ends, is away and comes back.
func TestTwoPluginsByAList(t *testing.T) {
	_, bin := build(t)
	list := filepath.Join(t.TempDir(), "workers.yaml")
	require.NoError(t, file.Write(list, startWorkers(t, bin)))
	w := startTwo(t, bin, "list.yaml", "examples/standalone/workers.yaml", list)
	w.says(t, 0, "sharing")
	w.says(t, 1, "sharing")

	if why := stack.TooOldAsShipped(); why != "" {
		t.Skip(why)
	}
	path, err := stack.FindEnvoy(os.Getenv("ENVOY"))
	require.NoError(t, err)
	config, err := os.ReadFile(filepath.Join(twoFiles, "envoy.yaml"))
	require.NoError(t, err)
	client, err := stack.FreePorts(t.Context(), 1)
	require.NoError(t, err)
	e, err := stack.StartEnvoy(t.Context(), stack.EnvoyOptions{
		Path: path, Dir: t.TempDir(), Config: []byte(strings.Replace(w.moved.Replace(string(config)), "port_value: 10000", fmt.Sprintf("port_value: %d", client[0]), 1)),
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Kill()) })

	var served atomic.Int64
	asked, stop := make(chan error, 1), make(chan struct{})
	go func() {
		for {
			select {
			case <-stop:
				asked <- nil
				return
			default:
			}
			if err := complete(e.URL); err != nil {
				asked <- err
				return
			}
			served.Add(1)
		}
	}()
	awaits := func(what string, is func() bool) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		require.NoError(t, stack.Await(ctx, what, func() bool { return is() || len(asked) > 0 }))
	}
	more := func() {
		t.Helper()
		enough := served.Load() + 20
		awaits("requests to be served", func() bool { return served.Load() >= enough })
	}
	more()
	require.NoError(t, w.plugins[1].Stop(40*time.Second))
	require.NoError(t, w.plugins[1].Err())
	w.says(t, 0, "away")
	more()
	streams := func() (n int) {
		t.Helper()
		told, err := e.Ask(t.Context(), http.MethodGet, "/clusters")
		require.NoError(t, err)
		_, told, _ = strings.Cut(told, "extproc::"+w.listen[1]+"::rq_total::")
		_, err = fmt.Sscan(told, &n)
		require.NoError(t, err)
		return n
	}
	before := streams()
	w.plugins[1] = w.start[1]()
	w.says(t, 0, "sharing")
	w.says(t, 1, "sharing")
	awaits("Envoy to ask the one that is back", func() bool { return streams() > before })
	close(stop)
	require.NoError(t, <-asked)
}

// complete sends a request, and returns why it has failed.
func complete(url string) error {
	resp, err := http.Post(url+"/v1/completions", "application/json", strings.NewReader(`{"model":"qwen3-32b","prompt":"hello","max_tokens":3}`))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", resp.Status, body)
	}
	return nil
}

// TestTwoPluginsByEtcd: nothing names the other one. Of one that has ended etcd knows no more.
func TestTwoPluginsByEtcd(t *testing.T) {
	_, bin := build(t)
	require.NoError(t, stack.Build(bin, "", false, "./test/cmd/devetcd"))
	etcd, err := stack.StartEtcd(t.Context(), stack.EtcdOptions{BinDir: bin, Dir: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, etcd.Kill()) })
	w := startTwo(t, bin, "etcd.yaml", "192.0.2.31:2379", strings.TrimPrefix(etcd.Endpoints[0], "http://"))
	w.says(t, 0, "sharing")
	w.says(t, 1, "sharing")
	require.NoError(t, w.plugins[1].Stop(40*time.Second))
	w.says(t, 0, "away")
}
