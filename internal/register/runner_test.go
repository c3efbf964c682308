package register

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/seed-60ae5743/baton/internal/register/engine"
	"github.com/seed-60ae5743/baton/internal/syncbuf"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
)

// TestMain lets more tests run beside each other than there are processors: those
// that see a registry away, or a long drain, wait most of the time. Those that start
// an engine again at its address run alone, so that nobody takes it meanwhile.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// fakeRegistry holds at once what it is told, unless it is closed.
type fakeRegistry struct {
	mu     sync.Mutex
	rec    *worker.Worker
	life   uint64
	id     worker.ID
	story  []string // what was held, in order
	closed bool     // Sync waits
	refuse error    // what Sync answers

	waiting atomic.Int64 // in Sync
}

func (f *fakeRegistry) Announce(rec worker.Worker, life uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.rec == nil || life != f.life {
		f.id++
	}
	f.rec, f.life = &rec, life
	text := fmt.Sprintf("%v id %d", rec.Role, f.id)
	if rec.Draining {
		text += " draining"
	}
	f.story = append(f.story, text)
}

func (f *fakeRegistry) Withdraw() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rec = nil
	f.story = append(f.story, "gone")
}

func (f *fakeRegistry) Sync(ctx context.Context) error {
	f.waiting.Add(1)
	defer f.waiting.Add(-1)
	f.mu.Lock()
	closed, refuse := f.closed, f.refuse
	f.mu.Unlock()
	if closed {
		<-ctx.Done()
	}
	if refuse != nil {
		return refuse
	}
	return ctx.Err()
}

func (f *fakeRegistry) ID() worker.ID {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.rec == nil || f.closed {
		return 0
	}
	return f.id
}

func (f *fakeRegistry) record() (worker.Worker, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.rec == nil {
		return worker.Worker{}, false
	}
	return *f.rec, true
}

func (f *fakeRegistry) told() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.story, ", ")
}

// running is something with a Run that has been started.
type running struct {
	stop context.CancelFunc
	done chan error
}

func start(t *testing.T, run func(context.Context) error) *running {
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{cancel, make(chan error, 1)}
	go func() {
		r.done <- run(ctx)
		close(r.done)
	}()
	t.Cleanup(func() {
		cancel()
		<-r.done
	})
	return r
}

// wait returns what Run returned.
func (r *running) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-r.done:
		return err
	case <-time.After(10 * time.Second):
		require.Fail(t, "it goes on")
		return nil
	}
}

func startSim(t *testing.T, c enginesim.Config) (*enginesim.Sim, *running) {
	t.Helper()
	var s *enginesim.Sim
	require.Eventually(t, func() bool { // a port may be taken for a moment after its owner is gone
		var err error
		s, err = enginesim.New(c)
		return err == nil
	}, 20*time.Second, 5*time.Millisecond)
	return s, start(t, s.Run)
}

// quick is a configuration for tests: a connection that breaks tells more than
// frequent questions, so that intervals may stay long.
func quick(url string) Config {
	return Config{
		Engine: engine.Config{URL: url}, HealthInterval: 20 * time.Millisecond, Refresh: 50 * time.Millisecond,
		DrainSettle: 10 * time.Millisecond,
	}
}

func startRunner(t *testing.T, c Config, reg Registry) (*Runner, *running) {
	t.Helper()
	r, err := New(c, reg)
	require.NoError(t, err)
	run := start(t, func(ctx context.Context) error { return r.Run(ctx) })
	t.Cleanup(r.Hurry) // before the wait of start's own clean-up
	return r, run
}

func eventually(t *testing.T, ok func() bool, what string) {
	t.Helper()
	require.Eventually(t, ok, 20*time.Second, 2*time.Millisecond, what)
}

func TestAWorkerIsAnnouncedAsItsEngineSays(t *testing.T) {
	sim, _ := startSim(t, enginesim.Config{Role: worker.Prefill, Models: []string{"m", "lora"}, DPSize: 2, PageSize: 32, CapacityBlocks: 500, MaxModelLen: 4096, Topic: "kv"})
	reg := &fakeRegistry{}
	var log syncbuf.Buffer
	c := quick(sim.URL())
	c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	c.Others = func(context.Context) ([]*worker.Worker, error) {
		return []*worker.Worker{
			{Role: worker.Decode, Engine: worker.SGLang, Models: []string{"lora"}, BlockSize: 64},
			{Role: worker.Decode, Engine: worker.SGLang, Models: []string{"other"}, BlockSize: 32},
			{Role: worker.Prefill, Engine: worker.SGLang, Models: []string{"m"}, BlockSize: 32},
		}, nil
	}
	r, _ := startRunner(t, c, reg)
	eventually(t, r.Ready, "ready")
	eventually(t, func() bool {
		return strings.Contains(log.String(), `msg="the worker has no partner yet" why="it and the decode workers of its model are of different block sizes, 32 and 64 tokens: `)
	}, "it says with whom it is no pair")
	require.Contains(t, log.String(), `block_size=32 pair_facts="kv_group unknown, engine_version 0.5.23, weights m, kv_dtype auto" life=1`)
	got, ok := reg.record()
	require.True(t, ok)
	id := sim.Identity()
	require.Equal(t, id.Endpoint, got.Endpoint.String())
	require.Equal(t, worker.Bootstrap{Host: id.Bootstrap.Host, Port: uint16(id.Bootstrap.Port)}, got.Bootstrap)
	require.Equal(t, worker.KVEvents{
		Host: "127.0.0.1", Port: uint16(id.KVEvents.Port), ReplayPort: uint16(id.KVEvents.ReplayPort), Topic: "kv",
	}, got.KVEvents)
	require.Equal(t, worker.Prefill, got.Role)
	require.Equal(t, worker.SGLang, got.Engine)
	require.Equal(t, []string{"m", "lora"}, got.Models)
	require.Equal(t, [3]uint64{2, 32, 500}, [3]uint64{uint64(got.DPSize), uint64(got.BlockSize), got.CapacityBlocks})
	require.EqualValues(t, 4096, got.MaxModelLen)
}

// The intervals are long: what happens soon happens because the connection
// tells.
func TestAnEngineThatDiesIsGoneAtOnceAndBackUnderAnotherID(t *testing.T) {
	conf := enginesim.Config{Role: worker.Decode, ID: 5}
	sim, process := startSim(t, conf)
	reg := &fakeRegistry{}
	c := quick(sim.URL())
	c.Refresh, c.HealthInterval = time.Hour, 500*time.Millisecond
	c.UnhealthyAfter = 1000
	r, _ := startRunner(t, c, reg)
	eventually(t, r.Ready, "ready")

	process.stop()
	require.NoError(t, process.wait(t))
	eventually(t, func() bool { return reg.told() == "decode id 1, gone" }, "gone")
	require.False(t, r.Ready())

	conf.Listen = sim.Addr()
	startSim(t, conf)
	eventually(t, func() bool { return reg.told() == "decode id 1, gone, decode id 2" }, "back")
	eventually(t, r.Ready, "ready")
	require.Equal(t, uint64(2), r.State().Life)
}

func TestAnEngineThatWasReplacedUnnoticedHasAnotherLife(t *testing.T) {
	life := int64(1)
	var mu sync.Mutex
	srv := httptest.NewServer(sglangLike(func() string {
		mu.Lock()
		defer mu.Unlock()
		return fmt.Sprintf(`{"model_path":"m","page_size":16,"random_seed":%d}`, life)
	}))
	defer srv.Close()
	reg := &fakeRegistry{}
	c := quick(srv.URL)
	c.Refresh, c.HealthInterval = time.Hour, time.Hour
	r, run := startRunner(t, c, reg)
	eventually(t, r.Ready, "ready")
	mu.Lock()
	life = 2
	mu.Unlock()
	srv.CloseClientConnections() // all that anybody sees of it
	eventually(t, func() bool { return reg.told() == "aggregated id 1, aggregated id 2" }, "another life")
	r.Hurry()
	require.NoError(t, run.wait(t))
}

// sglangLike answers as an engine without metrics.
func sglangLike(info func() string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/server_info", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, info()) })
	return mux
}

func TestAStuckEngineIsTakenAwayAfterAFewAnswersAndIsTheSameAfterwards(t *testing.T) {
	sim, _ := startSim(t, enginesim.Config{Role: worker.Decode})
	reg := &fakeRegistry{}
	var log syncbuf.Buffer
	c := quick(sim.URL())
	c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	r, _ := startRunner(t, c, reg)
	eventually(t, r.Ready, "ready")
	require.NoError(t, sim.SetFault(enginesim.Fault{Mode: enginesim.FaultError, Status: 503, Health: true}))
	eventually(t, func() bool { return reg.told() == "decode id 1, gone" }, "gone")
	require.NoError(t, sim.SetFault(enginesim.Fault{}))
	eventually(t, r.Ready, "back")
	require.Equal(t, uint64(1), r.State().Life)
	for _, want := range []string{
		"engine is healthy", "msg=announced worker_id=1 role=decode", "plugins refuse the worker: endpoint 127.0.0.1:",
		`msg="engine is not healthy"`, "msg=withdrawn why=\"engine health: /health: status 503\"",
	} {
		require.Contains(t, log.String(), want)
	}
	require.Equal(t, 2, strings.Count(log.String(), "msg=announced"), "once for each change")
}

func TestADrainWaitsForTheRequestInFlight(t *testing.T) {
	t.Parallel()
	prefill, _ := startSim(t, enginesim.Config{Role: worker.Prefill})
	decode, _ := startSim(t, enginesim.Config{Role: worker.Decode, DecodePerToken: 5 * time.Millisecond})
	reg, regP := &fakeRegistry{}, &fakeRegistry{}
	r, run := startRunner(t, quick(decode.URL()), reg)
	rP, runP := startRunner(t, quick(prefill.URL()), regP)
	eventually(t, func() bool { return r.Ready() && rP.Ready() }, "ready")

	// A prefill half whose decode has not come: the prefill worker holds it.
	host, port, err := engine.HostPort("http://" + prefill.BootstrapAddr())
	require.NoError(t, err)
	body := fmt.Sprintf(`{"model":"sim","prompt":"a b c","max_tokens":100,"bootstrap_host":%q,"bootstrap_port":%s,"bootstrap_room":7}`, host, port)
	half := post(prefill.URL(), body)
	eventually(t, func() bool { return prefill.State(false).PrefillAlone == 1 }, "prefill waits")
	runP.stop()
	eventually(t, func() bool { s := rP.State(); return s.InFlight != nil && *s.InFlight > 0 }, "it is counted")
	require.Equal(t, "prefill id 1, prefill id 1 draining", regP.told())
	require.False(t, rP.Ready())

	// Its decode comes: both answer, and then both are left.
	other := post(decode.URL(), body)
	eventually(t, func() bool { return decode.State(false).Running == 1 }, "decode runs")
	run.stop()
	require.NoError(t, runP.wait(t))
	require.NoError(t, run.wait(t))
	for _, answer := range []<-chan string{half, other} {
		select {
		case text := <-answer:
			require.Contains(t, text, "200 ")
		default:
			require.Fail(t, "a worker was gone before its request was answered")
		}
	}
	require.Equal(t, "decode id 1, decode id 1 draining, gone", reg.told())
	require.Equal(t, "prefill id 1, prefill id 1 draining, gone", regP.told())
	require.Equal(t, "gone", r.State().Phase)
}

func post(url, body string) <-chan string {
	out := make(chan string, 1)
	go func() {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		res, err := client.Post(url+"/v1/completions", "application/json", strings.NewReader(body))
		if err != nil {
			out <- err.Error()
			return
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		out <- fmt.Sprintf("%d %s%v", res.StatusCode, b, err)
	}()
	return out
}

func TestASecondSignalEndsADrainAtOnce(t *testing.T) {
	srv := httptest.NewServer(sglangLike(func() string { return `{"model_path":"m","page_size":16}` }))
	defer srv.Close()
	reg := &fakeRegistry{}
	r, run := startRunner(t, quick(srv.URL), reg)
	eventually(t, r.Ready, "ready")
	run.stop()
	eventually(t, func() bool { return r.State().Phase == "draining" }, "draining")
	r.Hurry()
	r.Hurry()
	require.NoError(t, run.wait(t))
	require.Equal(t, "aggregated id 1, aggregated id 1 draining, gone", reg.told())
}

func TestAnEngineThatCountsNothingIsGivenTheWholeTime(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(sglangLike(func() string { return `{"model_path":"m","page_size":16}` }))
	defer srv.Close()
	reg := &fakeRegistry{}
	var log syncbuf.Buffer
	c := quick(srv.URL)
	c.DrainTimeout = 300 * time.Millisecond
	c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	r, run := startRunner(t, c, reg)
	eventually(t, r.Ready, "ready")
	run.stop()
	require.NoError(t, run.wait(t))
	require.Equal(t, 1, strings.Count(log.String(), "requests in flight are not known"))
	require.Contains(t, log.String(), "the drain time-out is over")
}

func TestARegistryThatIsAwayIsToldOfAtTheEnd(t *testing.T) {
	t.Parallel()
	sim, _ := startSim(t, enginesim.Config{Role: worker.Aggregated})
	reg := &fakeRegistry{closed: true}
	r, run := startRunner(t, quick(sim.URL()), reg)
	eventually(t, func() bool { return r.State().Phase == "announcing" }, "announcing")
	require.False(t, r.Ready(), "nobody has said that it is held")
	_, body := page(r, "/readyz")
	require.Equal(t, "not ready: announcing: the registry does not hold the record yet\n", body)
	r.Failed(errors.New("etcd: grant: no connection"))
	_, body = page(r, "/readyz")
	require.Equal(t, "not ready: announcing: the registry does not hold the record yet: etcd: grant: no connection\n", body)
	_, body = page(r, "/state")
	require.Contains(t, body, `"registry": "etcd: grant: no connection"`)
	require.Contains(t, body, `"phase": "announcing"`)
	run.stop() // no requests can have come: nothing to drain
	err := run.wait(t)
	require.ErrorContains(t, err, "may outlive this process")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, "aggregated id 1, gone", reg.told())
}

// slowNames is a resolver that takes its time to give up.
type slowNames struct{ begun, ended chan struct{} }

func (s slowNames) LookupNetIP(ctx context.Context, _, _ string) ([]netip.Addr, error) {
	close(s.begun)
	<-ctx.Done()
	<-time.After(50 * time.Millisecond)
	close(s.ended)
	return nil, ctx.Err()
}

func TestRunEndsAfterAllThatItBegan(t *testing.T) {
	srv := httptest.NewServer(sglangLike(func() string { return `{"model_path":"m","page_size":16}` }))
	defer srv.Close()
	c := quick(srv.URL)
	names := slowNames{make(chan struct{}), make(chan struct{})}
	c.Resolver, c.Advertise = names, "a-name"
	r, run := startRunner(t, c, &fakeRegistry{})
	<-names.begun
	r.Hurry()
	require.NoError(t, run.wait(t))
	select {
	case <-names.ended:
	default:
		require.Fail(t, "Run has ended, and a question of it goes on")
	}
}

// A registry that goes away after it held the worker keeps nobody from picking
// it: it drains.
func TestAWorkerThatWasHeldOnceDrainsWithoutARegistry(t *testing.T) {
	t.Parallel()
	var info atomic.Pointer[string]
	set := func(text string) { info.Store(&text) }
	set(`{"model_path":"m","page_size":16,"random_seed":1}`)
	srv := httptest.NewServer(sglangLike(func() string { return *info.Load() }))
	defer srv.Close()
	reg := &fakeRegistry{}
	r, err := New(quick(srv.URL), reg)
	require.NoError(t, err)
	r.Failed(errors.New("no connection"))
	run := start(t, r.Run)
	t.Cleanup(r.Hurry)
	eventually(t, r.Ready, "ready")
	reg.mu.Lock()
	reg.closed = true
	reg.mu.Unlock()
	set(`{"model_path":"n","page_size":16,"random_seed":1}`)
	eventually(t, func() bool { return reg.told() == "aggregated id 1, aggregated id 1" }, "announced anew")
	eventually(t, func() bool { return r.State().Phase == "announcing" }, "announcing")
	require.Empty(t, r.State().Registry, "that was before it held the worker")
	run.stop()
	eventually(t, func() bool { return r.State().Phase == "draining" }, "draining")
	r.Hurry()
	require.Error(t, run.wait(t))
}

// What was announced and not held is waited for by nobody once there is something
// newer: neither another record nor its withdrawal.
func TestOnlyTheLatestAnnouncementIsWaitedFor(t *testing.T) {
	t.Parallel()
	var model atomic.Int64
	var ill atomic.Bool
	mux := http.NewServeMux()
	mux.HandleFunc("/health", func(w http.ResponseWriter, _ *http.Request) {
		if ill.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("/server_info", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, `{"model_path":"m%d","page_size":16,"random_seed":1}`, model.Load())
	})
	srv := httptest.NewServer(mux)
	defer srv.Close()
	reg := &fakeRegistry{closed: true}
	r, run := startRunner(t, quick(srv.URL), reg)
	for n := range 4 {
		model.Store(int64(n))
		eventually(t, func() bool { w, ok := reg.record(); return ok && w.Models[0] == fmt.Sprintf("m%d", n) }, "announced anew")
	}
	eventually(t, func() bool { return reg.waiting.Load() == 1 }, "one is waited for")
	ill.Store(true)
	eventually(t, func() bool { _, ok := reg.record(); return !ok }, "gone")
	eventually(t, func() bool { return reg.waiting.Load() == 0 }, "none is waited for")
	r.Hurry()
	require.Error(t, run.wait(t))
}

func TestARecordThatTheRegistryRefusesIsNotHeld(t *testing.T) {
	t.Parallel()
	var read atomic.Int64
	srv := httptest.NewServer(sglangLike(func() string {
		read.Add(1)
		return `{"model_path":"m","page_size":16,"random_seed":1}`
	}))
	defer srv.Close()
	reg := &fakeRegistry{refuse: errors.New("models: too many")}
	var log syncbuf.Buffer
	c := quick(srv.URL)
	c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	r, run := startRunner(t, c, reg)
	eventually(t, func() bool { return strings.Contains(log.String(), "the registry does not take the record") }, "it is said")
	eventually(t, func() bool { return r.State().Registry == "models: too many" }, "and shown")
	before := read.Load()
	eventually(t, func() bool { return read.Load() > before+2 }, "whatever comes of it has come")
	require.Equal(t, "announcing", r.State().Phase)
	require.False(t, r.Ready())
	code, body := page(r, "/readyz")
	require.Equal(t, 503, code)
	require.Contains(t, body, "models: too many")
	r.Hurry()
	require.ErrorContains(t, run.wait(t), "models: too many")
	require.NotContains(t, log.String(), "msg=announced")
}

// One answer that fails on the way takes nobody away; see package engine for
// what is read from which page.
func TestAPageThatFailsOnceChangesNothing(t *testing.T) {
	t.Parallel()
	var fails atomic.Bool
	var asked atomic.Int64
	mux := http.NewServeMux()
	answer := func(path, text string) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			if path == "/metrics" && fails.Load() {
				asked.Add(1)
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			_, _ = io.WriteString(w, text)
		})
	}
	answer("/health", "")
	answer("/version", `{"version":"0.33.0"}`)
	answer("/v1/models", `{"data":[{"id":"m"}]}`)
	answer("/metrics", "vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"9\"} 1\n"+
		"vllm:cache_config_info{block_size=\"16\",engine=\"1\",num_gpu_blocks=\"9\"} 1\nprocess_start_time_seconds 1\n")
	srv := httptest.NewServer(mux)
	defer srv.Close()
	reg := &fakeRegistry{}
	r, run := startRunner(t, quick(srv.URL), reg)
	eventually(t, r.Ready, "ready")
	fails.Store(true)
	eventually(t, func() bool { return asked.Load() >= 2 }, "read again")
	require.Equal(t, "engine: /metrics: status 503", r.State().Kept)
	fails.Store(false)
	eventually(t, func() bool { return r.State().Kept == "" }, "and again")
	require.Equal(t, "aggregated id 1", reg.told())
	require.Equal(t, uint32(2), r.State().Record.DPSize)
	r.Hurry()
	require.NoError(t, run.wait(t))
}

// metric returns the value of a line of /metrics.
func metric(t *testing.T, r *Runner, name string) string {
	_, body := page(r, "/metrics")
	for line := range strings.Lines(body) {
		if v, ok := strings.CutPrefix(line, metricPrefix+name+" "); ok {
			return strings.TrimSpace(v)
		}
	}
	require.Fail(t, "no such metric", "%s in\n%s", name, body)
	return ""
}

func TestMetrics(t *testing.T) {
	conf := enginesim.Config{Role: worker.Aggregated}
	sim, process := startSim(t, conf)
	reg := &fakeRegistry{}
	r, run := startRunner(t, quick(sim.URL()), reg)
	want := func(name, value string) {
		t.Helper()
		eventually(t, func() bool { return metric(t, r, name) == value }, name+" "+value)
	}
	want("held", "1")
	want("announced", "1")
	want("engine_healthy", "1")
	want("lives_total", "1")
	want(`health_failures_total{outcome="failed"}`, "0")
	require.NoError(t, sim.SetFault(enginesim.Fault{Mode: enginesim.FaultError, Status: 503, Health: true}))
	want(`withdrawals_total{reason="engine_ill"}`, "1")
	require.NotEqual(t, "0", metric(t, r, `health_failures_total{outcome="failed"}`))
	want("held", "0")
	want("announced", "0")
	want("engine_healthy", "0")
	require.NoError(t, sim.SetFault(enginesim.Fault{}))
	want("held", "1")
	process.stop()
	require.NoError(t, process.wait(t))
	want(`withdrawals_total{reason="engine_gone"}`, "1")
	require.NotEqual(t, "0", metric(t, r, `health_failures_total{outcome="refused"}`))
	conf.Listen = sim.Addr()
	startSim(t, conf)
	want("lives_total", "2")
	want("held", "1")

	r.Registered(7)
	r.Lost("its key was deleted")
	r.Lost("its key was deleted")
	r.Failed(errors.New("no connection"))
	want("registrations_total", "1")
	want("losses_total", "2")
	want("registry_failures_total", "1")
	require.Empty(t, r.State().Registry, "it is held: no trouble")

	require.Equal(t, "0", metric(t, r, "draining"))
	require.Equal(t, "0", metric(t, r, "drains_total"))
	run.stop()
	require.NoError(t, run.wait(t))
	require.Equal(t, "1", metric(t, r, "drains_total"))
	require.Equal(t, "1", metric(t, r, `withdrawals_total{reason="drained"}`))
	for _, reason := range []string{"facts_missing", "drain_timeout", "told"} {
		require.Equal(t, "0", metric(t, r, fmt.Sprintf("withdrawals_total{reason=%q}", reason)))
	}
}

// TestEveryMetricIsDocumented: docs/register.md lists each, and no other.
func TestEveryMetricIsDocumented(t *testing.T) {
	r, err := New(quick("http://127.0.0.1:1"), &fakeRegistry{})
	require.NoError(t, err)
	_, body := page(r, "/metrics")
	var want, got []string
	for line := range strings.Lines(body) {
		if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, _, _ := strings.Cut(rest, " ")
			want = append(want, name)
		}
	}
	doc, err := os.ReadFile(filepath.Join("..", "..", "docs", "register.md"))
	require.NoError(t, err)
	for line := range strings.Lines(string(doc)) {
		if rest, ok := strings.CutPrefix(line, "| `"+metricPrefix); ok {
			name, _, _ := strings.Cut(rest, "`")
			name, _, _ = strings.Cut(name, "{")
			got = append(got, metricPrefix+name)
		}
	}
	require.ElementsMatch(t, want, got)
	for _, c := range causes {
		require.Contains(t, string(doc), "`"+string(c)+"`")
	}
}

// page asks for one of the operators' pages.
func page(r *Runner, path string) (int, string) {
	rec := httptest.NewRecorder()
	r.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, nil))
	return rec.Code, rec.Body.String()
}

func TestStateIsWrittenInOneStyle(t *testing.T) {
	w := worker.Worker{
		Role: worker.Prefill, Bootstrap: worker.Bootstrap{Host: "b", Port: 1},
		KVEvents: worker.KVEvents{Host: "k", Port: 2, ReplayPort: 3, Topic: "t"},
	}
	text, err := json.Marshal(recordOf(w))
	require.NoError(t, err)
	require.Contains(t, string(text), `"bootstrap":{"host":"b","port":1},"kv_events":{"host":"k","port":2,"replay_port":3,"topic":"t"}`)
	text, err = json.Marshal(recordOf(worker.Worker{}))
	require.NoError(t, err)
	require.NotContains(t, string(text), "bootstrap")
	require.NotContains(t, string(text), "kv_events")
}

func TestPagesForOperators(t *testing.T) {
	sim, _ := startSim(t, enginesim.Config{Role: worker.Prefill})
	reg := &fakeRegistry{}
	r, err := New(quick(sim.URL()), reg)
	require.NoError(t, err)
	code, body := page(r, "/readyz")
	require.Equal(t, 503, code)
	require.Equal(t, "not ready: away: starting\n", body)
	code, _ = page(r, "/healthz")
	require.Equal(t, 200, code)

	run := start(t, r.Run)
	eventually(t, r.Ready, "ready")
	code, _ = page(r, "/readyz")
	require.Equal(t, 200, code)
	_, body = page(r, "/state")
	var s State
	require.NoError(t, json.Unmarshal([]byte(body), &s))
	require.Equal(t, "announced", s.Phase)
	require.Equal(t, worker.ID(1), s.WorkerID)
	require.Equal(t, sim.Addr(), s.Record.Endpoint)
	require.Equal(t, "prefill", s.Record.Role)
	require.Equal(t, "0.5.23", s.Version)
	require.Len(t, s.Warnings, 1)
	r.Hurry()
	require.NoError(t, run.wait(t))
	code, body = page(r, "/readyz")
	require.Equal(t, 503, code)
	require.Contains(t, body, "gone")
}
