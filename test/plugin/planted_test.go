package plugin_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/plugin"
	"github.com/seed-60ae5743/baton/internal/trouble"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
)

// plant is a running plugin with two simulated engines, in which a fault is planted.
type plant struct {
	*running
	prefill, decode *enginesim.Sim
	stop            func() // ends the decode engine
	dir             string
}

// lines are the two workers of a healthy plugin.
func (p *plant) lines(more ...string) string {
	all := []string{entryOf(p.prefill, "prefill", ""), entryOf(p.decode, "decode", "")}
	return "workers:\n" + strings.Join(append(all, more...), "\n") + "\n"
}

// entryOf is the entry of a simulated engine in a workers' file. change replaces a part: "old=new".
func entryOf(s *enginesim.Sim, role, change string) string {
	id := s.Identity()
	line := fmt.Sprintf("- {id: %d, role: %s, engine: sglang, models: [m], endpoint: %q, block_size: 16, kv_events: {host: 127.0.0.1, port: %d, replay_port: %d}",
		id.ID, role, id.Endpoint, id.KVEvents.Port, id.KVEvents.ReplayPort)
	if role == "prefill" {
		line += fmt.Sprintf(", bootstrap: {host: 127.0.0.1, port: %d}", id.Bootstrap.Port)
	}
	old, now, _ := strings.Cut(change, "=")
	return strings.Replace(line+"}", old, now, 1)
}

// fault is one planted fault: settings is of the plugin, before is the workers' file in which all is
// well, if that is not the usual one, and plant returns what mends it.
type fault struct {
	name     string
	kind     trouble.Kind
	settings string
	plant    func(p *plant) (mend func())
}

// file plants another workers' file.
func file(text func(p *plant) string) func(p *plant) func() {
	return func(p *plant) func() {
		p.writeWorkers(text(p))
		return func() { p.writeWorkers(p.lines()) }
	}
}

// more adds an entry to the workers' file.
func more(line string) func(p *plant) func() {
	return file(func(p *plant) string { return p.lines(line) })
}

// unused is an address at which nobody listens.
func unused(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l.Addr().String()
}

// planted are faults that need no request.
func planted() []fault {
	return []fault{
		{"the list of workers is not there", trouble.NotReady, "", func(p *plant) func() { return func() { p.writeWorkers(p.lines()) } }},
		{"the list is empty", trouble.NoWorkers, "", file(func(*plant) string { return "workers: []\n" })},
		{"the list cannot be read", trouble.ViewStale, "", file(func(*plant) string { return "workers: 7\n" })},
		{"the list is gone", trouble.ViewStale, "", func(p *plant) func() {
			require.NoError(p.t, os.Remove(p.workers))
			return func() { p.writeWorkers(p.lines()) }
		}},
		{"an entry names no role that there is", trouble.ViewStale, "", more(`- {id: 9, role: cook, engine: sglang, models: [m], endpoint: "127.0.0.1:1", block_size: 16}`)},
		{"two entries have one id", trouble.ViewStale, "", file(func(p *plant) string { return p.lines(entryOf(p.decode, "decode", "")) })},
		{"an entry names an address of the cloud's metadata", trouble.DiscoveryProblem, "", more(`- {id: 9, role: decode, engine: sglang, models: [m], endpoint: "169.254.169.254:80", block_size: 16}`)},
		{"two sizes of blocks", trouble.PoolMixed, "", file(func(p *plant) string {
			return "workers:\n" + entryOf(p.prefill, "prefill", "block_size: 16=block_size: 32") + "\n" + entryOf(p.decode, "decode", "")
		})},
		{"two groups of KV", trouble.PoolMixed, "", file(func(p *plant) string {
			return "workers:\n" + entryOf(p.prefill, "prefill", "block_size=kv_group: a, block_size") + "\n" + entryOf(p.decode, "decode", "block_size=kv_group: b, block_size")
		})},
		{"no listener for legs", trouble.ListenerMissing, "prefill: {listener: \"\"}\n", file(func(p *plant) string {
			return "workers:\n" + entryOf(p.prefill, "prefill", "sglang=vllm") + "\n" + entryOf(p.decode, "decode", "sglang=vllm")
		})},
		{"nobody decodes", trouble.ModelUnserved, "", file(func(p *plant) string { return "workers:\n" + entryOf(p.prefill, "prefill", "") })},
		{"nobody prefills", trouble.ModelUnserved, "", file(func(p *plant) string { return "workers:\n" + entryOf(p.decode, "decode", "") })},
		{"an entry of an engine that does not run", trouble.WorkerUnheard, "", func(p *plant) func() {
			return more(`- {id: 9, role: decode, engine: sglang, models: [m], endpoint: "` + unused(p.t) + `", block_size: 16}`)(p)
		}},
		{"an entry of an engine that never answers", trouble.WorkerUnheard, "", func(p *plant) func() {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(p.t, err)
			p.t.Cleanup(func() { _ = l.Close() })
			return more(`- {id: 9, role: decode, engine: sglang, models: [m], endpoint: "` + l.Addr().String() + `", block_size: 16}`)(p)
		}},
		{"an entry that leads back here", trouble.WorkerAside, "", func(p *plant) func() {
			baton := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set(prefill.HeaderAnsweredBy, prefill.AnsweredByBaton)
			}))
			p.t.Cleanup(baton.Close)
			return more(`- {id: 9, role: decode, engine: sglang, models: [m], endpoint: "` + baton.Listener.Addr().String() + `", block_size: 16}`)(p)
		}},
		{"an address alone, of an engine that does not run", trouble.DiscoveryProblem, "", func(p *plant) func() {
			return more(`- {endpoint: "` + unused(p.t) + `", facts: true}`)(p)
		}},
		{"nobody says where decode meets prefill", trouble.WorkerIneligible, "", file(func(p *plant) string {
			return "workers:\n" + entryOf(p.prefill, "prefill", fmt.Sprintf(", bootstrap: {host: 127.0.0.1, port: %d}=", p.prefill.Identity().Bootstrap.Port)) + "\n" + entryOf(p.decode, "decode", "")
		})},
		{"an address alone, of an engine that ends", trouble.FactsFailing, "facts: {refresh: 1s}\n", func(p *plant) func() {
			sim, stop := simulated(p.t, enginesim.Config{Engine: worker.VLLM, Role: worker.Aggregated, Models: []string{"x"}})
			p.writeWorkers(p.lines(`- {endpoint: "` + sim.Addr() + `", facts: true}`))
			require.Eventually(p.t, func() bool { return strings.Contains(p.get("/debug/state"), `"state": "known"`) }, 20*time.Second, 10*time.Millisecond)
			stop()
			return func() { p.writeWorkers(p.lines()) }
		}},
		{"the port of KV events is wrong", trouble.KVEventsSilent, "", func(p *plant) func() {
			_, port, _ := net.SplitHostPort(unused(p.t))
			return file(func(p *plant) string {
				id := p.decode.Identity()
				return "workers:\n" + entryOf(p.prefill, "prefill", "") + "\n" + entryOf(p.decode, "decode", fmt.Sprintf("port: %d=port: %s", id.KVEvents.Port, port))
			})(p)
		}},
		{"an engine has ended", trouble.KVEventsSilent, "", func(p *plant) func() {
			p.ask(p.decode)
			require.Eventually(p.t, func() bool { return p.streams() == 2 }, 20*time.Second, 10*time.Millisecond)
			p.stop()
			return func() { p.writeWorkers("workers:\n" + entryOf(p.prefill, "prefill", "") + "\n") }
		}},
		{"KV events are of another size of blocks", trouble.KVEventsLost, "", func(p *plant) func() {
			p.writeWorkers("workers:\n" + entryOf(p.prefill, "prefill", "") + "\n" + entryOf(p.decode, "decode", "block_size: 16=block_size: 32"))
			require.Eventually(p.t, func() bool {
				p.ask(p.decode)
				what, _ := p.said(trouble.KVEventsLost)
				return what != ""
			}, 20*time.Second, 500*time.Millisecond)
			return func() { p.writeWorkers("workers:\n" + entryOf(p.prefill, "prefill", "") + "\n") }
		}},
		{"the event plane is not there", trouble.KVChannelDown, "events: {dynamo: {nats: {url: \"nats://127.0.0.1:1\"}}}\n", nil},
		{"the socket's folder is gone", trouble.SocketLost, "listen: unix://DIR/in/x.sock\n", func(p *plant) func() {
			in := filepath.Join(p.dir, "in")
			require.NoError(p.t, os.RemoveAll(in))
			require.NoError(p.t, os.WriteFile(in, nil, 0o600))
			return func() {
				require.NoError(p.t, os.Remove(in))
				require.NoError(p.t, os.Mkdir(in, 0o700))
			}
		}},
		{"the index cannot be dumped", trouble.IndexDump, "index: {dump: DIR/in/dump, dump_interval: 1s}\n", func(p *plant) func() {
			in := filepath.Join(p.dir, "in")
			require.NoError(p.t, os.RemoveAll(in))
			return func() { require.NoError(p.t, os.Mkdir(in, 0o700)) }
		}},
		{"a replica of the list is not there", trouble.ReplicaUnmet, "leg: {key_file: DIR/key, advertise: \"127.0.0.1:19002\", replicas: [\"127.0.0.1:1\"]}\n", nil},
		{"a key of before", trouble.ConfigIgnored, "facts: {at_once: 3}\n", nil},
		{"whoever can connect may ask", trouble.Exposed, "listen: \"0.0.0.0:0\"\ninsecure_listen: true\n", nil},
	}
}

// ask lets an engine store something, so that it has events to tell.
func (p *plant) ask(s *enginesim.Sim) {
	resp, err := http.Post(s.URL()+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"`+strings.Repeat("word ", 200)+`","max_tokens":1}`))
	if err == nil {
		_ = resp.Body.Close()
	}
}

// streams is how many ranks' events have come.
func (p *plant) streams() (n int) {
	for _, w := range p.shown().Workers {
		for _, r := range w.Ranks {
			if r.Events != nil && r.Events.AsOf != nil {
				n++
			}
		}
	}
	return n
}

// said returns what is said of a kind; "": nothing.
func (p *plant) said(kind trouble.Kind) (what string, severe bool) {
	for _, x := range p.shown().Troubles {
		if x.Kind == string(kind) {
			return x.What, x.Severe
		}
	}
	return "", false
}

// awaitShown waits until the trouble is in all places, and returns where it is missing in the end.
func (p *plant) awaitShown(f *fault) (lacks string) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for range 400 {
		lacks = p.missing(f)
		if lacks == "" {
			return ""
		}
		<-tick.C
	}
	return lacks
}

// missing returns where the trouble is missing; "": it is in all places.
func (p *plant) missing(f *fault) string {
	gauge := fmt.Sprintf("baton_trouble{kind=%q} ", f.kind)
	if m := p.get("/metrics"); !strings.Contains(m, gauge) || strings.Contains(m, gauge+"0\n") {
		return "gauge" // asked first: who reads the state has it judged anew
	}
	what, severe := p.said(f.kind)
	if what == "" {
		return "state"
	}
	if !strings.Contains(p.get("/"), strings.ReplaceAll(html.EscapeString(what), "+", "&#43;")) {
		return "page: " + what
	}
	if severe && !strings.Contains(p.get("/readyz"), what) && f.kind != trouble.NotReady {
		return "readiness"
	}
	var check bytes.Buffer
	c := p.config
	c.Admin.Listen = p.page
	plugin.CheckRunning(p.t.Context(), &c, &check)
	if !strings.Contains(check.String(), strings.Join(strings.Fields(what), " ")) {
		return "check"
	}
	x := trouble.Trouble{Kind: f.kind}
	if log := p.log.String(); x.LogsBegin() && !strings.Contains(log, "msg=trouble kind="+string(f.kind)) {
		return "log"
	}
	if resp, err := http.Post("http://"+p.page+"/debug/explain?path=/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"x"}`)); err == nil {
		defer resp.Body.Close()
		var r struct{ Trouble []string }
		if resp.StatusCode == http.StatusOK && json.NewDecoder(resp.Body).Decode(&r) == nil && !strings.Contains(strings.Join(r.Trouble, "\n"), what) {
			return "explain"
		}
	}
	return ""
}

// TestPlantedFaultsAreShownEverywhereAndGoWithTheirCause: on the page, in the state, by the gauge, in
// the log, by readiness, explain and check. That it takes less than ten seconds is logged, and no
// condition: machines are busy.
func TestPlantedFaultsAreShownEverywhereAndGoWithTheirCause(t *testing.T) {
	var all sync.WaitGroup // they mostly wait, so all of them run at a time
	for _, f := range planted() {
		all.Go(func() { t.Run(f.name, func(t *testing.T) { plantAndMend(t, &f) }) })
	}
	all.Wait()
}

func plantAndMend(t *testing.T, f *fault) {
	p := &plant{dir: t.TempDir()}
	require.NoError(t, os.Mkdir(filepath.Join(p.dir, "in"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(p.dir, "key"), []byte("sixteen bytes or more"), 0o600))
	p.prefill, _ = simulated(t, enginesim.Config{Role: worker.Prefill, Models: []string{"m"}})
	p.decode, p.stop = simulated(t, enginesim.Config{Role: worker.Decode, Models: []string{"m"}, AcceptsAggregated: true})
	settings := strings.ReplaceAll(f.settings, "DIR", p.dir)
	if !strings.HasPrefix(settings, "listen: ") {
		settings += "listen: \"127.0.0.1:0\"\n"
	}
	p.running = startPlugin(t, settings)
	if f.kind != trouble.NotReady {
		p.writeWorkers(p.lines())
		require.Eventually(t, func() bool { code, _ := p.ready(); return code == http.StatusOK }, 20*time.Second, 10*time.Millisecond)
	}
	var mend func()
	if f.plant != nil {
		require.Eventually(t, func() bool { what, _ := p.said(f.kind); return what == "" || f.kind == trouble.NotReady }, 20*time.Second, 50*time.Millisecond)
		mend = f.plant(p)
	}
	began := time.Now()
	require.Empty(t, p.awaitShown(f), "in the end it lacks this\n%s", p.log)
	shown := time.Since(began).Round(100 * time.Millisecond)
	if f.plant == nil {
		t.Logf("shown everywhere after %v", shown)
		return
	}
	mend()
	began = time.Now()
	require.Eventually(t, func() bool {
		return strings.Contains(p.get("/metrics"), fmt.Sprintf("baton_trouble{kind=%q} 0\n", f.kind))
	}, 40*time.Second, 100*time.Millisecond)
	over := time.Since(began).Round(100 * time.Millisecond)
	what, _ := p.said(f.kind)
	require.Empty(t, what)
	x := trouble.Trouble{Kind: f.kind}
	if x.LogsEnd() {
		require.Eventually(t, func() bool { return strings.Contains(p.log.String(), `msg="trouble is over" kind=`+string(f.kind)) }, 40*time.Second, 100*time.Millisecond)
	}
	t.Logf("shown everywhere after %v, gone after %v", shown, over)
}
