//go:build prometheus

package oncall

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/pkg/discovery/file"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/stack"
)

// TestAlertsOnARealStack: Envoy, the plugin and simulated workers, whose faults the alerts find by what the
// plugin itself shows.
func TestAlertsOnARealStack(t *testing.T) {
	envoyPath, err := stack.FindEnvoy(os.Getenv("ENVOY"))
	require.NoError(t, err)
	bin, dir := t.TempDir(), t.TempDir()
	require.NoError(t, stack.Build(bin, "", false, "./cmd/extproc", "./test/cmd/enginesim"))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	fleet, err := stack.StartFleet(ctx, bin, stack.FleetOptions{Engine: worker.SGLang, Prefills: 2, Decodes: 2, Args: []string{"--model=m"}})
	require.NoError(t, err)
	list := filepath.Join(dir, "workers.yaml")
	require.NoError(t, file.Write(list, fleet.Infos()))
	plugin, err := stack.StartPlugin(ctx, stack.PluginOptions{BinDir: bin, Dir: dir, Workers: list, Config: "request: {max_wait: 2s}\n"})
	require.NoError(t, err)
	proxy, err := stack.StartEnvoy(ctx, stack.EnvoyOptions{Path: envoyPath, Dir: dir, Params: envoy.Params{PluginSocket: plugin.Socket}})
	require.NoError(t, err)
	rules, err := Rules(faster)
	require.NoError(t, err)
	p := startPrometheus(t, rules, map[string]string{"real": strings.TrimPrefix(plugin.Admin, "http://")})
	defer clients(ctx, proxy.URL)()

	p.await("the first scrapes", func(firing map[string][]string) bool {
		return p.ask("sum(baton_requests_total)") != "" && len(firing) == 0
	})
	p.until(time.Now().Add(15*time.Second), func(firing map[string][]string) { require.Empty(t, firing, "all is well") })
	has := func(alert string) func(map[string][]string) bool {
		return func(firing map[string][]string) bool { return slices.Contains(firing["real"], alert) }
	}
	judged := p.ask("count(baton_trouble)") != ""
	panelsShow(p, judged)

	// The ports of KV events are not those of discovery.
	infos := fleet.Infos()
	wrong := *infos[0]
	ports, err := stack.FreePorts(ctx, 1)
	require.NoError(t, err)
	wrong.KVEvents.Port = uint16(ports[0])
	require.NoError(t, file.Write(list, append([]*worker.Worker{&wrong}, infos[1:]...)))
	p.await("KV events to be missed", has("BatonKVEventsSilent"))
	require.Equal(t, map[string][]string{"real": {"BatonKVEventsSilent"}}, p.firing())
	require.NoError(t, file.Write(list, infos))
	p.await("KV events to come again", func(firing map[string][]string) bool { return len(firing) == 0 })

	// One of two prefill workers dies: others take its requests, so nobody is woken.
	require.NoError(t, fleet.Prefills[0].Kill())
	if judged {
		p.await("the dead worker to be told", has("BatonWorkersOut"))
	}
	p.until(time.Now().Add(12*time.Second), func(firing map[string][]string) { require.Empty(t, pagesOf(firing["real"])) })

	// Then all that decode: requests fail.
	for _, w := range fleet.Decodes {
		require.NoError(t, w.Kill())
	}
	p.await("requests to fail", has("BatonRequestsFail"))
	if judged {
		p.await("the model to be told", has("BatonModelUnserved"))
	} else {
		t.Log("baton_trouble is not shown: alerts by it are not waited for")
	}

	require.NoError(t, plugin.Kill())
	p.await("the plugin to be missed", func(firing map[string][]string) bool { return slices.Contains(firing[""], "BatonAbsent") })
}

// TestASilentReplicaOnARealStack: a replica that stands still is one ticket, by what the other says.
func TestASilentReplicaOnARealStack(t *testing.T) {
	bin, dir := t.TempDir(), t.TempDir()
	require.NoError(t, stack.Build(bin, "", false, "./cmd/extproc", "./test/cmd/enginesim"))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	fleet, err := stack.StartFleet(ctx, bin, stack.FleetOptions{Engine: worker.SGLang, Prefills: 1, Decodes: 1, Args: []string{"--model=m"}})
	require.NoError(t, err)
	list, key := filepath.Join(dir, "workers.yaml"), filepath.Join(dir, "key")
	require.NoError(t, file.Write(list, fleet.Infos()))
	require.NoError(t, os.WriteFile(key, []byte("a key that both of them have"), 0o600))
	ports, err := stack.FreePorts(ctx, 2)
	require.NoError(t, err)
	at := []string{fmt.Sprintf("127.0.0.1:%d", ports[0]), fmt.Sprintf("127.0.0.1:%d", ports[1])}
	var plugins []*stack.Plugin
	for i := range at {
		own := t.TempDir()
		p, err := stack.StartPlugin(ctx, stack.PluginOptions{BinDir: bin, Dir: own, Workers: list, Listen: at[i],
			Config: fmt.Sprintf("leg: {key_file: %q, advertise: %q, replicas: [%q, %q]}\n", key, at[i], at[0], at[1])})
		require.NoError(t, err)
		plugins = append(plugins, p)
	}
	rules, err := Rules(faster)
	require.NoError(t, err)
	p := startPrometheus(t, rules, map[string]string{
		"one": strings.TrimPrefix(plugins[0].Admin, "http://"), "two": strings.TrimPrefix(plugins[1].Admin, "http://"),
	})
	p.await("the replicas to meet", func(firing map[string][]string) bool {
		return p.ask(`sum(baton_replicas{state="sharing"})`) == "2" && len(firing) == 0
	})
	if p.ask("count(baton_trouble)") == "" {
		t.Skip("baton_trouble is not shown")
	}
	p.until(time.Now().Add(30*time.Second), func(firing map[string][]string) { require.Empty(t, firing, "all is well") })
	require.NoError(t, plugins[1].Signal(syscall.SIGSTOP))
	p.await("the silent one to be told", func(firing map[string][]string) bool {
		require.Empty(t, pagesOf(firing["one"]))
		return slices.Equal(firing["one"], []string{"BatonReplicas"})
	})
	require.NoError(t, plugins[1].Signal(syscall.SIGCONT))
	p.await("it to be heard again", func(firing map[string][]string) bool { return len(firing) == 0 })
}

// emptyPanels have nothing to show where all is well, with the reason.
var emptyPanels = map[string]string{
	"Troubles":                      "there are none",
	"Failures by code":              "there are none",
	"Fresh attempts":                "there are none",
	"Lost overlap by cause":         "there may be none",
	"Replicas, as others hear them": "there is one plugin",
	"Charges":                       "may be none",
}

// panelsShow asks for what the panels show, and for what docs/metrics.md says of joins.
func panelsShow(p *server, judged bool) {
	p.t.Helper()
	for _, b := range []board{overview(), ofWorkers()} {
		for _, x := range b.panels {
			for _, q := range x.queries {
				got := p.query(strings.NewReplacer("$__rate_interval", "10s", "$job", ".*", "$worker", ".*").Replace(q.expr))
				require.True(p.t, len(got) > 0 || emptyPanels[x.title] != "", "%s: nothing: %s", x.title, q.expr)
			}
		}
	}
	if judged {
		require.NotEmpty(p.t, p.query("baton_trouble"))
	}
	page, err := os.ReadFile("../../docs/metrics.md")
	require.NoError(p.t, err)
	_, joins, found := strings.Cut(string(page), "## Joins")
	require.True(p.t, found)
	block := strings.Split(joins, "```")[1]
	queries := strings.Split(strings.TrimSpace(block), "\n\n")
	require.Len(p.t, queries, 2)
	require.Len(p.t, p.query(queries[0]), 4, "each worker")
	require.Len(p.t, p.query(strings.ReplaceAll(queries[1], `"failed"`, `"ok"`)), 1, "they are of one host")
}

// pagesOf returns those alerts that page.
func pagesOf(names []string) (out []string) {
	for _, a := range Alerts() {
		if a.Page && slices.Contains(names, a.Name) {
			out = append(out, a.Name)
		}
	}
	return out
}

// clients ask ten times a second until the end, whatever they get.
func clients(ctx context.Context, url string) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	client := &http.Client{Transport: &http.Transport{}}
	all.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			all.Go(func() {
				q, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", strings.NewReader(`{"model":"m","prompt":"a few words","max_tokens":4,"stream":true,"stream_options":{"include_usage":true}}`))
				if err != nil {
					return
				}
				q.Header.Set("Content-Type", "application/json")
				resp, err := client.Do(q)
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			})
		}
	})
	return func() {
		cancel()
		all.Wait()
		client.CloseIdleConnections()
	}
}
