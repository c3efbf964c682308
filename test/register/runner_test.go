package register_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/seed-60ae5743/baton/internal/register"
	"github.com/seed-60ae5743/baton/internal/register/engine"
	"github.com/seed-60ae5743/baton/internal/register/registertest"
	"github.com/seed-60ae5743/baton/internal/syncbuf"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func startSim(t *testing.T, c enginesim.Config) (*enginesim.Sim, *registertest.Running) {
	t.Helper()
	var s *enginesim.Sim
	require.Eventually(t, func() bool { // a port may be taken for a moment after its owner is gone
		var err error
		s, err = enginesim.New(c)
		return err == nil
	}, 20*time.Second, 5*time.Millisecond)
	return s, registertest.Start(t, s.Run)
}

func eventually(t *testing.T, ok func() bool, what string) {
	t.Helper()
	require.Eventually(t, ok, 20*time.Second, 2*time.Millisecond, what)
}

func TestAWorkerIsAnnouncedAsItsEngineSays(t *testing.T) {
	sim, _ := startSim(t, enginesim.Config{Role: worker.Prefill, Models: []string{"m", "lora"}, DPSize: 2, PageSize: 32, CapacityBlocks: 500, MaxModelLen: 4096, Topic: "kv"})
	reg := &registertest.Registry{}
	var log syncbuf.Buffer
	c := registertest.Quick(sim.URL())
	c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	c.Others = func(context.Context) ([]*worker.Worker, error) {
		return []*worker.Worker{
			{Role: worker.Decode, Engine: worker.SGLang, Models: []string{"lora"}, BlockSize: 64},
			{Role: worker.Decode, Engine: worker.SGLang, Models: []string{"other"}, BlockSize: 32},
			{Role: worker.Prefill, Engine: worker.SGLang, Models: []string{"m"}, BlockSize: 32},
		}, nil
	}
	r, _ := registertest.StartRunner(t, c, reg)
	eventually(t, r.Ready, "ready")
	eventually(t, func() bool {
		return strings.Contains(log.String(), `msg="the worker has no partner yet" why="it and the decode workers of its model are of different block sizes, 32 and 64 tokens: `)
	}, "it says with whom it is no pair")
	require.Contains(t, log.String(), `block_size=32 pair_facts="kv_group unknown, engine_version 0.5.23, weights m, kv_dtype auto" life=1`)
	got, ok := reg.Record()
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
	reg := &registertest.Registry{}
	c := registertest.Quick(sim.URL())
	c.Refresh, c.HealthInterval = time.Hour, 500*time.Millisecond
	c.UnhealthyAfter = 1000
	r, _ := registertest.StartRunner(t, c, reg)
	eventually(t, r.Ready, "ready")

	process.Stop()
	require.NoError(t, process.Wait(t))
	eventually(t, func() bool { return reg.Told() == "decode id 1, gone" }, "gone")
	require.False(t, r.Ready())

	conf.Listen = sim.Addr()
	startSim(t, conf)
	eventually(t, func() bool { return reg.Told() == "decode id 1, gone, decode id 2" }, "back")
	eventually(t, r.Ready, "ready")
	require.Equal(t, uint64(2), r.State().Life)
}

func TestAStuckEngineIsTakenAwayAfterAFewAnswersAndIsTheSameAfterwards(t *testing.T) {
	sim, _ := startSim(t, enginesim.Config{Role: worker.Decode})
	reg := &registertest.Registry{}
	var log syncbuf.Buffer
	c := registertest.Quick(sim.URL())
	c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	r, _ := registertest.StartRunner(t, c, reg)
	eventually(t, r.Ready, "ready")

	// Of an SGLang, 503 says that it has computed no token in time: it may be busy.
	require.NoError(t, sim.SetFault(enginesim.Fault{Mode: enginesim.FaultError, Status: 503, Health: true}))
	eventually(t, func() bool { return !r.State().Healthy }, "silent")
	require.Equal(t, "decode id 1", reg.Told(), "it is kept")

	require.NoError(t, sim.SetFault(enginesim.Fault{Mode: enginesim.FaultError, Status: 500, Health: true}))
	eventually(t, func() bool { return reg.Told() == "decode id 1, gone" }, "gone")
	require.NoError(t, sim.SetFault(enginesim.Fault{}))
	eventually(t, r.Ready, "back")
	require.Equal(t, uint64(1), r.State().Life)
	for _, want := range []string{
		"engine is healthy", "msg=announced worker_id=1 role=decode", "plugins refuse the worker: endpoint 127.0.0.1:",
		`msg="engine is not healthy"`, "msg=withdrawn why=\"engine health: /health: status 500\"",
	} {
		require.Contains(t, log.String(), want)
	}
	require.Equal(t, 2, strings.Count(log.String(), "msg=announced"), "once for each change")
}

func TestADrainWaitsForTheRequestInFlight(t *testing.T) {
	t.Parallel()
	prefill, _ := startSim(t, enginesim.Config{Role: worker.Prefill})
	decode, _ := startSim(t, enginesim.Config{Role: worker.Decode, DecodePerToken: 5 * time.Millisecond})
	reg, regP := &registertest.Registry{}, &registertest.Registry{}
	r, run := registertest.StartRunner(t, registertest.Quick(decode.URL()), reg)
	rP, runP := registertest.StartRunner(t, registertest.Quick(prefill.URL()), regP)
	eventually(t, func() bool { return r.Ready() && rP.Ready() }, "ready")

	// A prefill half whose decode has not come: the prefill worker holds it.
	host, port, err := engine.HostPort("http://" + prefill.BootstrapAddr())
	require.NoError(t, err)
	body := fmt.Sprintf(`{"model":"sim","prompt":"a b c","max_tokens":100,"bootstrap_host":%q,"bootstrap_port":%s,"bootstrap_room":7}`, host, port)
	half := post(prefill.URL(), body)
	eventually(t, func() bool { return prefill.State(false).PrefillAlone == 1 }, "prefill waits")
	runP.Stop()
	eventually(t, func() bool { s := rP.State(); return s.InFlight != nil && *s.InFlight > 0 }, "it is counted")
	require.Equal(t, "prefill id 1, prefill id 1 draining", regP.Told())
	require.False(t, rP.Ready())

	// Its decode comes: both answer, and then both are left.
	other := post(decode.URL(), body)
	eventually(t, func() bool { return decode.State(false).Running == 1 }, "decode runs")
	run.Stop()
	require.NoError(t, runP.Wait(t))
	require.NoError(t, run.Wait(t))
	for _, answer := range []<-chan string{half, other} {
		select {
		case text := <-answer:
			require.Contains(t, text, "200 ")
		default:
			require.Fail(t, "a worker was gone before its request was answered")
		}
	}
	require.Equal(t, "decode id 1, decode id 1 draining, gone", reg.Told())
	require.Equal(t, "prefill id 1, prefill id 1 draining, gone", regP.Told())
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

// metric returns the value of a line of /metrics.
func metric(t *testing.T, r *register.Runner, name string) string {
	_, body := registertest.Page(r, "/metrics")
	for line := range strings.Lines(body) {
		if v, ok := strings.CutPrefix(line, "baton_register_"+name+" "); ok {
			return strings.TrimSpace(v)
		}
	}
	require.Fail(t, "no such metric", "%s in\n%s", name, body)
	return ""
}

func TestMetrics(t *testing.T) {
	conf := enginesim.Config{Role: worker.Aggregated}
	sim, process := startSim(t, conf)
	reg := &registertest.Registry{}
	r, run := registertest.StartRunner(t, registertest.Quick(sim.URL()), reg)
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
	want("engine_healthy", "0")
	want("announced", "1")
	require.NotEqual(t, "0", metric(t, r, `health_failures_total{outcome="silent"}`))
	require.NoError(t, sim.SetFault(enginesim.Fault{Mode: enginesim.FaultError, Status: 500, Health: true}))
	want(`withdrawals_total{reason="engine_ill"}`, "1")
	require.NotEqual(t, "0", metric(t, r, `health_failures_total{outcome="failed"}`))
	want("held", "0")
	want("announced", "0")
	want("engine_healthy", "0")
	require.NoError(t, sim.SetFault(enginesim.Fault{}))
	want("held", "1")
	process.Stop()
	require.NoError(t, process.Wait(t))
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
	run.Stop()
	require.NoError(t, run.Wait(t))
	require.Equal(t, "1", metric(t, r, "drains_total"))
	require.Equal(t, "1", metric(t, r, `withdrawals_total{reason="drained"}`))
	for _, reason := range []string{"facts_missing", "drain_timeout", "told"} {
		require.Equal(t, "0", metric(t, r, fmt.Sprintf("withdrawals_total{reason=%q}", reason)))
	}
}

func TestPagesForOperators(t *testing.T) {
	sim, _ := startSim(t, enginesim.Config{Role: worker.Prefill})
	reg := &registertest.Registry{}
	r, err := register.New(registertest.Quick(sim.URL()), reg)
	require.NoError(t, err)
	code, body := registertest.Page(r, "/readyz")
	require.Equal(t, 503, code)
	require.Equal(t, "not ready: away: starting\n", body)
	code, _ = registertest.Page(r, "/healthz")
	require.Equal(t, 200, code)

	run := registertest.Start(t, r.Run)
	eventually(t, r.Ready, "ready")
	code, _ = registertest.Page(r, "/readyz")
	require.Equal(t, 200, code)
	_, body = registertest.Page(r, "/state")
	var s register.State
	require.NoError(t, json.Unmarshal([]byte(body), &s))
	require.Equal(t, "announced", s.Phase)
	require.Equal(t, worker.ID(1), s.WorkerID)
	require.Equal(t, sim.Addr(), s.Record.Endpoint)
	require.Equal(t, "prefill", s.Record.Role)
	require.Equal(t, "0.5.23", s.Version)
	require.Len(t, s.Warnings, 1)
	r.Hurry()
	require.NoError(t, run.Wait(t))
	code, body = registertest.Page(r, "/readyz")
	require.Equal(t, 503, code)
	require.Contains(t, body, "gone")
}
