//go:build prometheus

package oncall

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/stack"
)

const tools = "../../.tools/prometheus/"

// faster is how many times faster time goes here: a minute of the rules is two seconds, which a busy machine
// does not pass over.
const faster = 30

// promtool has promtool judge a file of rules.
func promtool(t *testing.T, text []byte) (string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "rules.yaml")
	require.NoError(t, os.WriteFile(file, text, 0o600))
	out, err := exec.CommandContext(t.Context(), tools+"promtool", "check", "rules", "--lint-fatal", file).CombinedOutput()
	return string(out), err
}

func TestPromtoolAcceptsTheRules(t *testing.T) {
	for _, f := range []int{1, faster} {
		text, err := Rules(f)
		require.NoError(t, err)
		out, err := promtool(t, text)
		require.NoError(t, err, out)
		_, err = promtool(t, []byte(strings.Replace(string(text), "absent(", "absents(", 1)))
		require.Error(t, err)
	}
}

// TestPromtoolAcceptsWhatPanelsAskFor: Grafana puts in what stands behind a $.
func TestPromtoolAcceptsWhatPanelsAskFor(t *testing.T) {
	var b strings.Builder
	b.WriteString("groups:\n- name: panels\n  rules:\n")
	n := 0
	for _, board := range []board{overview(), ofWorkers()} {
		for _, p := range board.panels {
			for _, q := range p.queries {
				expr := strings.NewReplacer("$__rate_interval", "1m", "$job", ".*", "$worker", ".*").Replace(q.expr)
				require.NotContains(t, expr, "$")
				fmt.Fprintf(&b, "  - {record: 'r%d', expr: '%s'}\n", n, expr)
				n++
			}
		}
	}
	out, err := promtool(t, []byte(b.String()))
	require.NoError(t, err, out)
}

// plant is a deployment that is scraped: real telemetry, with what a test plants.
type plant struct {
	t    *testing.T
	tele *telemetry.Telemetry
	page *httptest.Server

	mu      sync.Mutex
	observe func(o *telemetry.Observation) // guarded by mu; nil: all is well
	traffic func(i *telemetry.Instruments) // guarded by mu, beside the usual
}

func newPlant(t *testing.T) *plant {
	t.Helper()
	tele, err := telemetry.New(telemetry.Config{})
	require.NoError(t, err)
	p := &plant{t: t, tele: tele}
	_, err = tele.Instruments.Observe(func(o *telemetry.Observation) {
		healthy(o)
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.observe != nil {
			p.observe(o)
		}
	})
	require.NoError(t, err)
	p.page = httptest.NewServer(tele.Handler())
	t.Cleanup(func() {
		p.page.Close()
		require.NoError(t, tele.Shutdown(context.Background()))
	})
	return p
}

func healthy(o *telemetry.Observation) {
	o.Ready, o.Troubles, o.Streams = true, map[string]int64{}, map[string]int64{"connected": 4}
	o.Workers = map[telemetry.WorkerState]int64{{Role: worker.Prefill, State: "healthy"}: 2, {Role: worker.Decode, State: "healthy"}: 2}
	o.Pools = append(o.Pools, telemetry.PoolLoad{Model: "m", Role: worker.Prefill, Backlog: 2, LeastBacklog: 1}, telemetry.PoolLoad{Model: "m", Role: worker.Decode, Capacity: 100, FreeBlocks: 40})
	o.Infos = append(o.Infos, telemetry.WorkerInfo{ID: 7, Role: worker.Decode, Endpoint: "10.0.0.7:80", Host: "10.0.0.7", Models: []string{"m", "no \"name\"\n{}\\ \xff"}})
}

// serve counts what a tenth of a second brings: a third of all is clients' faults, one of a hundred fails.
func (p *plant) serve(n int) {
	i := p.tele.Instruments
	for range 20 {
		i.RequestEnded("ok", "ok")
	}
	for range 10 {
		i.RequestEnded("refused", "model_not_found")
		i.Failure("model_not_found")
	}
	if n%3 == 0 {
		i.RequestEnded("failed", "decode_failed")
		i.Failure("decode_failed")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.traffic != nil {
		p.traffic(i)
	}
}

func (p *plant) set(observe func(o *telemetry.Observation), traffic func(i *telemetry.Instruments)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.observe, p.traffic = observe, traffic
}

// fault is what is planted in one deployment, and the alerts that come of it.
type fault struct {
	alerts  []string
	observe func(o *telemetry.Observation)
	traffic func(i *telemetry.Instruments)
}

func none(*telemetry.Observation)      {}
func nothing(i *telemetry.Instruments) {}

// faults has one for each alert, and one for each kind of trouble, by the deployment's name.
func faults() map[string]fault {
	out := map[string]fault{
		"unready": {[]string{"BatonNotReady", "BatonReplicas"}, func(o *telemetry.Observation) { o.Ready, o.Troubles["not_ready"] = false, 1 }, nothing},
		"failing": {[]string{"BatonRequestsFail"}, none, func(i *telemetry.Instruments) {
			for range 4 {
				i.RequestEnded("failed", "decode_unreachable")
			}
		}},
		"unserved": {
			[]string{"BatonModelUnserved"},
			func(o *telemetry.Observation) { o.Troubles["model_unserved"] = 1 },
			func(i *telemetry.Instruments) {
				i.RequestEnded("refused", "no_decode_worker")
				i.Failure("no_decode_worker")
			},
		},
		"unasked": {nil, func(o *telemetry.Observation) { o.Troubles["model_unserved"] = 1 }, nothing},
		"waiting": {[]string{"BatonRequestsWait"}, func(o *telemetry.Observation) { o.Waiting = 3 }, nothing},
		"queue":   {[]string{"BatonPromptsQueue"}, func(o *telemetry.Observation) { o.Pools[0].LeastBacklog = 45 }, nothing},
		"silent":  {[]string{"BatonKVEventsSilent"}, func(o *telemetry.Observation) { o.Silent = 2 }, nothing},
		"panics":  {[]string{"BatonPanics"}, none, once(func(i *telemetry.Instruments) { i.Panic("main_leg") })},
	}
	for _, a := range Alerts() {
		for _, s := range selector.FindAllStringSubmatch(a.Expr, -1) {
			if s[1] != telemetry.MetricTrouble || a.Name == "BatonModelUnserved" {
				continue
			}
			for _, kind := range strings.Split(matcher.FindStringSubmatch(s[2])[3], "|") {
				out[kind] = fault{[]string{a.Name}, func(o *telemetry.Observation) { o.Troubles[kind] = 1 }, nothing}
			}
		}
	}
	return out
}

func once(f func(i *telemetry.Instruments)) func(i *telemetry.Instruments) {
	var o sync.Once
	return func(i *telemetry.Instruments) { o.Do(func() { f(i) }) }
}

// blips are what an hour brings that is no fault: each ends before somebody has to know.
func blips(minute int) func(o *telemetry.Observation) {
	return func(o *telemetry.Observation) {
		switch {
		case minute >= 5 && minute < 12: // a worker restarts
			o.Troubles["worker_aside"] = 1
			if minute < 8 {
				o.Troubles["kv_events_lost"], o.Silent = 1, 1
			}
		case minute >= 20 && minute < 27: // an upgrade, replica by replica
			o.Troubles["replica_silent"] = 1
		case minute >= 30 && minute < 37: // a burst
			o.Pools[0].LeastBacklog = 50
			if minute < 33 {
				o.Troubles["queue_full"] = 1
			}
		case minute == 40:
			o.Waiting = 2
		case minute >= 45 && minute < 52: // etcd elects
			o.Troubles["view_stale"], o.Stale = 1, true
		}
	}
}

// TestEachAlertFiresOnItsFault: a healthy hour, in which none fires; then each fault, in a deployment of its own,
// by which its alerts fire and no other; then health, by which all end; then nothing is left to scrape.
func TestEachAlertFiresOnItsFault(t *testing.T) {
	rules, err := Rules(faster)
	require.NoError(t, err)
	all, plants := faults(), map[string]*plant{"healthy": newPlant(t)}
	for name := range all {
		plants[name] = newPlant(t)
	}
	targets := map[string]string{}
	for name, x := range plants {
		targets[name] = x.page.Listener.Addr().String()
	}
	p := startPrometheus(t, rules, targets)
	stop := make(chan struct{})
	var ticking sync.WaitGroup
	ticking.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-tick.C:
				for _, x := range plants {
					x.serve(n)
				}
			case <-stop:
				return
			}
		}
	})
	defer func() { close(stop); ticking.Wait() }()

	// Prometheus finds its targets some seconds after it is ready.
	p.await("the first scrapes", func(firing map[string][]string) bool {
		return p.ask("count(baton_ready)") == strconv.Itoa(len(plants)) && len(firing) == 0
	})
	began := time.Now()
	for minute := range 60 {
		for _, x := range plants {
			x.set(blips(minute), nil)
		}
		p.until(began.Add(time.Duration(minute+1)*time.Minute/faster), func(firing map[string][]string) {
			require.Empty(t, firing, "after %d minutes", minute)
		})
	}

	planted := time.Now()
	for name, f := range all {
		plants[name].set(f.observe, f.traffic)
	}
	plants["healthy"].set(nil, nil)
	want := map[string][]string{}
	for name, f := range all {
		if len(f.alerts) > 0 {
			want[name] = f.alerts
		}
	}
	first := map[string]time.Duration{}
	p.await("each fault's alerts", func(firing map[string][]string) bool {
		for job, names := range firing {
			for _, name := range names {
				require.Contains(t, want[job], name, "in %s", job)
				if first[name] == 0 {
					first[name] = time.Since(planted)
				}
			}
		}
		// A single panic is over before the slowest alert fires.
		return without(firing, "panics") == without(want, "panics") && first["BatonPanics"] > 0
	})
	for _, a := range Alerts() {
		if a.Name != "BatonAbsent" {
			require.NotZero(t, first[a.Name], a.Name)
			require.Greater(t, first[a.Name], a.For/faster-time.Second, "%s does not wait", a.Name)
			t.Logf("%s (%s) fired after %v, for is %v", a.Name, a.severity(), first[a.Name].Round(100*time.Millisecond), a.For/faster)
		}
	}

	for _, x := range plants {
		x.set(nil, nil)
	}
	p.await("all alerts to end", func(firing map[string][]string) bool { return len(firing) == 0 })
	for _, x := range plants {
		x.page.CloseClientConnections()
		x.page.Close()
	}
	p.await("nothing to scrape", func(firing map[string][]string) bool {
		return maps.EqualFunc(firing, map[string][]string{"": {"BatonAbsent"}}, slices.Equal)
	})
}

// without describes alerts but for one deployment's.
func without(firing map[string][]string, job string) string {
	firing = maps.Clone(firing)
	delete(firing, job)
	return fmt.Sprint(firing)
}

// server is a Prometheus.
type server struct {
	t  *testing.T
	at string
}

// startPrometheus starts one that scrapes each address once a second, as a job of its name.
func startPrometheus(t *testing.T, rules []byte, targets map[string]string) *server {
	t.Helper()
	dir := t.TempDir()
	ports, err := stack.FreePorts(t.Context(), 1)
	require.NoError(t, err)
	p := &server{t: t, at: fmt.Sprintf("127.0.0.1:%d", ports[0])}
	var b strings.Builder
	b.WriteString("global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [rules.yaml]\nscrape_configs:\n")
	for name, at := range targets {
		fmt.Fprintf(&b, "- {job_name: %q, honor_labels: true, static_configs: [{targets: [%q]}]}\n", name, at)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "prometheus.yaml"), []byte(b.String()), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "rules.yaml"), rules, 0o600))
	cmd := exec.Command(tools+"prometheus", "--config.file="+dir+"/prometheus.yaml", "--storage.tsdb.path="+dir+"/data",
		"--web.listen-address="+p.at, "--query.lookback-delta=5s", "--log.level=warn")
	log, err := os.Create(filepath.Join(dir, "log"))
	require.NoError(t, err)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		_ = log.Close()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Log(string(text))
		}
	})
	require.Eventually(t, func() bool {
		resp, err := http.Get("http://" + p.at + "/-/ready")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	}, time.Minute, 50*time.Millisecond)
	return p
}

// firing returns the names of the alerts that fire, sorted, by the deployment.
func (p *server) firing() map[string][]string {
	p.t.Helper()
	resp, err := http.Get("http://" + p.at + "/api/v1/alerts")
	require.NoError(p.t, err)
	defer resp.Body.Close()
	var answer struct {
		Data struct {
			Alerts []struct {
				State               string
				Labels, Annotations map[string]string
			}
		}
	}
	require.NoError(p.t, json.NewDecoder(resp.Body).Decode(&answer))
	out := map[string][]string{}
	for _, a := range answer.Data.Alerts {
		for _, text := range a.Annotations {
			require.NotContains(p.t, text, "<no value>")
			require.NotContains(p.t, text, "<error")
		}
		if job := a.Labels["job"]; a.State == "firing" && !slices.Contains(out[job], a.Labels["alertname"]) {
			out[job] = append(out[job], a.Labels["alertname"])
		}
	}
	for job := range out {
		slices.Sort(out[job])
	}
	return out
}

// ask returns the value of an expression that has one, or "".
func (p *server) ask(expr string) string {
	p.t.Helper()
	values := p.query(expr)
	if len(values) != 1 {
		return ""
	}
	return values[0]
}

// query returns the values of an expression that are numbers.
func (p *server) query(expr string) (out []string) {
	p.t.Helper()
	resp, err := http.Get("http://" + p.at + "/api/v1/query?query=" + url.QueryEscape(expr))
	require.NoError(p.t, err)
	defer resp.Body.Close()
	var answer struct {
		Status string
		Data   struct{ Result []struct{ Value [2]any } }
	}
	require.NoError(p.t, json.NewDecoder(resp.Body).Decode(&answer))
	require.Equal(p.t, "success", answer.Status, expr)
	for _, r := range answer.Data.Result {
		if v := fmt.Sprint(r.Value[1]); v != "NaN" {
			out = append(out, v)
		}
	}
	return out
}

// until looks again and again until a time.
func (p *server) until(end time.Time, look func(firing map[string][]string)) {
	p.t.Helper()
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for time.Now().Before(end) {
		<-tick.C
		look(p.firing())
	}
}

// await looks until it is so, for three minutes at most.
func (p *server) await(what string, is func(firing map[string][]string) bool) {
	p.t.Helper()
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(3 * time.Minute); ; <-tick.C {
		firing := p.firing()
		if is(firing) {
			return
		}
		require.True(p.t, time.Now().Before(end), "%s: %v", what, firing)
	}
}
