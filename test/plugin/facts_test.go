package plugin_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/enginesim"
)

// simulated runs a simulated engine until the test ends.
func simulated(t *testing.T, c enginesim.Config) (sim *enginesim.Sim, stop func()) {
	t.Helper()
	require.Eventually(t, func() bool { // a port may be taken for a moment after its owner is gone
		var err error
		sim, err = enginesim.New(c)
		return err == nil
	}, 20*time.Second, 5*time.Millisecond)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = sim.Run(ctx)
	}()
	stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	return sim, stop
}

// TestABareAddressBecomesAWorker: a file lists only addresses; one of them has no engine.
func TestABareAddressBecomesAWorker(t *testing.T) {
	sim, kill := simulated(t, enginesim.Config{Engine: worker.VLLM, Role: worker.Aggregated, Models: []string{"before"}, PageSize: 16})
	dead, stop := simulated(t, enginesim.Config{Engine: worker.VLLM, Role: worker.Aggregated})
	stop()
	r := startPlugin(t, "listen: unix://"+filepath.Join(t.TempDir(), "x.sock")+"\nfacts: {refresh: 1s}\n")
	r.writeWorkers("workers:\n  - {endpoint: \"" + sim.Addr() + "\", facts: true}\n  - {endpoint: \"" + dead.Addr() + "\", facts: true}\n")
	eventually := func(ok func(s shown) bool, what string) {
		t.Helper()
		require.Eventually(t, func() bool { return ok(r.shown()) }, 30*time.Second, 10*time.Millisecond, what)
	}
	eventually(func(s shown) bool {
		for _, w := range s.Workers {
			if w.Endpoint == sim.Addr() {
				return w.Engine == "vllm" && len(w.Models) == 1 && w.Models[0] == "before" && w.Facts.State == "known" &&
					w.Ranks[0].Events != nil && w.Ranks[0].Events.State == "connected"
			}
		}
		return false
	}, "it serves what its engine says, and its KV events are followed")
	eventually(func(s shown) bool {
		for _, w := range s.Workers {
			if w.Endpoint == dead.Addr() {
				return w.Facts.State == "unknown" && w.Facts.Failures >= 2 && strings.Contains(w.Facts.Error, "connection refused") && len(w.Models) == 0
			}
		}
		return false
	}, "the other one is there, and not known")
	eventually(func(s shown) bool {
		return len(s.Problems) == 1 && strings.Contains(s.Problems[0], "it does not answer at http://"+dead.Addr())
	}, "which is a problem")
	require.Eventually(t, func() bool { return strings.Contains(r.get("/"), "facts unknown for") }, 10*time.Second, 10*time.Millisecond)
	require.Eventually(t, func() bool {
		page := r.get("/metrics")
		return strings.Contains(page, `baton_worker_facts{state="known"} 1`) && strings.Contains(page, `baton_worker_facts{state="unknown"} 1`) &&
			strings.Contains(page, `baton_fact_readings_total{outcome="failed"}`) && strings.Contains(page, `baton_fact_readings_total{outcome="ok"}`)
	}, 10*time.Second, 10*time.Millisecond)

	kill()
	simulated(t, enginesim.Config{Engine: worker.VLLM, Role: worker.Aggregated, Models: []string{"after"}, PageSize: 32, Listen: sim.Addr()})
	eventually(func(s shown) bool {
		for _, w := range s.Workers {
			if w.Endpoint == sim.Addr() {
				return len(w.Models) == 1 && w.Models[0] == "after"
			}
		}
		return false
	}, "another model's engine at the same address")
	require.Equal(t, 1, strings.Count(r.log.String(), "it does not answer at http://"+dead.Addr()), "it is told once: %s", r.log.String())
}

// TestThePluginIsReadyOnceEnginesHaveBeenAsked: until then a balancer would send it requests
// that it cannot place.
func TestThePluginIsReadyOnceEnginesHaveBeenAsked(t *testing.T) {
	sim, _ := simulated(t, enginesim.Config{Engine: worker.VLLM, Role: worker.Aggregated, Models: []string{"m"}, PageSize: 16})
	dead, stop := simulated(t, enginesim.Config{Engine: worker.VLLM, Role: worker.Aggregated})
	engine, err := url.Parse("http://" + sim.Addr())
	require.NoError(t, err)
	open, asked := make(chan struct{}), make(chan struct{}, 100)
	through := httputil.NewSingleHostReverseProxy(engine)
	gate := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		select {
		case <-open:
			through.ServeHTTP(w, r)
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(gate.Close)
	stop() // only now, so that the gate cannot have its port
	r := startPlugin(t, "listen: unix://"+filepath.Join(t.TempDir(), "x.sock")+"\n")
	r.writeWorkers("workers:\n  - {endpoint: \"" + strings.TrimPrefix(gate.URL, "http://") + "\", facts: true}\n  - {endpoint: \"" + dead.Addr() + "\", facts: true}\n")
	<-asked
	status, why := r.ready()
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Contains(t, why, "engines have not said yet what they are")
	require.NotContains(t, r.log.String(), "msg=ready")
	close(open)
	require.Eventually(t, func() bool { return strings.Contains(r.log.String(), "msg=ready") }, 30*time.Second, 10*time.Millisecond)
	require.NotContains(t, r.log.String(), "ready although")
	status, _ = r.ready()
	require.Equal(t, http.StatusOK, status)
	for _, w := range r.shown().Workers {
		if w.Endpoint != dead.Addr() {
			require.Equal(t, []string{"m"}, w.Models, "it is known when the plugin is ready")
		}
	}
}
