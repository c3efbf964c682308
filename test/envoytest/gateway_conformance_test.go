//go:build e2e

package envoytest

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/stack"
)

// selectedHeader and servedHeader are the conformance suite's.
const (
	selectedHeader = "test-epp-endpoint-selection"
	servedHeader   = "x-conformance-test-served-endpoint"
	anyPort        = "127.0.0.1" // an entry without a port means all of a pod's
)

// asReference is a plugin with the arguments that the conformance suite's manifests
// give the reference picker, serving securely, as it does by default.
func asReference(t *testing.T, f *fleet) {
	t.Helper()
	ports, err := stack.FreePorts(t.Context(), 4)
	require.NoError(t, err)
	require.NoError(t, f.plugin.Kill())
	config := filepath.Join(f.dir, "baton.yaml")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil,
		"admin: {listen: \"127.0.0.1:%d\"}\ndiscovery: {file: %q}\ngateway: {selection_header: true}\n", ports[2], filepath.Join(f.dir, "workers.yaml")), 0o600))
	f.plugin, err = stack.StartPlugin(f.ctx, stack.PluginOptions{
		BinDir: binDir, Dir: f.dir, AdminPort: ports[2], Command: []string{
			"epp", "--pool-name", "p", "--pool-namespace", "n", "--v", "4", "--zap-encoder", "json",
			"--grpc-port", fmt.Sprint(ports[0]), "--grpc-health-port", fmt.Sprint(ports[1]), "--metrics-port", fmt.Sprint(ports[3]),
			"--baton-config", config,
		},
	})
	require.NoError(t, err)
	f.gateway.PluginSocket, f.gateway.PluginHost, f.gateway.PluginPort = "-", "127.0.0.1", ports[0]
}

// TestTheConformanceSuitesRequestsStayInside runs its tests
// GatewayFollowingEPPRouting, …WithDataParallelism, GatewayDestinationEndpointServed
// and EppUnAvailableFailOpen, without Kubernetes.
func TestTheConformanceSuitesRequestsStayInside(t *testing.T) {
	t.Parallel()
	l := ownPorts(layout{aggregated: 3, gateway: &envoy.GatewayParams{TLS: true, FailOpen: true}, noCheck: true})
	l.beforeEnvoy = func(f *fleet) {
		asReference(t, f)
		for _, w := range f.workers {
			for a := range w.Info.Addresses() {
				f.gateway.Pool = append(f.gateway.Pool, a.String())
			}
		}
	}
	both(t, l, func(t *testing.T, f *fleet) {
		pool := f.gateway.Pool
		for _, allowed := range [][]string{pool[:1], pool[3:5], {pool[0], pool[4], pool[8]}, {anyPort}} {
			f.hundred(t, allowed)
		}
		r := f.selecting("192.0.2.1:80")
		requireError(t, r, http.StatusServiceUnavailable, "no_endpoint_in_subset")

		require.NoError(t, f.plugin.Kill())
		r = f.do(http.MethodGet, "/ready", nil, nil)
		require.Equal(t, http.StatusOK, r.status, "FailOpen: what has no body is served")
		r = f.send(t.Context(), "/v1/completions", completion("nobody picks", 2, false))
		want := http.StatusOK
		if f.fullDuplex {
			want = http.StatusInternalServerError // a body was on its way before anybody knew
		}
		require.Equal(t, want, r.status, r.body)
	})
}

func (f *fleet) selecting(allowed string) *reply {
	return f.do(http.MethodPost, "/v1/completions", strings.NewReader(completion("conforming", 1, false)),
		http.Header{"Content-Type": {"application/json"}, selectedHeader: {allowed}})
}

// hundred sends a hundred requests, ten at a time: each is served by an allowed
// endpoint, and the answer says by which.
func (f *fleet) hundred(t *testing.T, allowed []string) {
	t.Helper()
	f.forget()
	replies := make(chan *reply, 100)
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			for range 10 {
				replies <- f.selecting(strings.Join(allowed, ","))
			}
		})
	}
	wg.Wait()
	close(replies)
	told := map[string]int{}
	for r := range replies {
		require.NoError(t, r.err)
		require.Equal(t, http.StatusOK, r.status, r.body)
		told[r.header.Get(servedHeader)]++
	}
	got := map[string]int{}
	for _, w := range f.workers {
		for _, q := range f.got(w) {
			got[w.Info.EndpointOf(worker.DPRank(q.DPRank)).String()]++ //nolint:gosec // of three
		}
	}
	total := 0
	for a, n := range got {
		total += n
		if allowed[0] != anyPort {
			require.Contains(t, allowed, a)
		}
	}
	require.Equal(t, 100, total)
	if saysServed() {
		require.Equal(t, got, told, "the header says who it was")
	} else {
		require.Equal(t, map[string]int{"fail: missing destination endpoint served metadata": 100}, told)
	}
}

// TestAGatewaysAnswersOutlastThePluginsDrain: told to end, it stays until the answers
// that go through it are whole. New requests are served meanwhile.
func TestAGatewaysAnswersOutlastThePluginsDrain(t *testing.T) {
	t.Parallel()
	l := layout{prefill: 1, decode: 2, decodeArgs: []string{"--accepts-aggregated", "--decode-us-per-token", "40000"}, noCheck: true}
	eachGateway(t, l, func(t *testing.T, f *fleet, twoLegs bool) {
		const n, tokens = 20, 80
		wait := f.streamers(n, tokens)
		stopped := f.drains()
		for range 10 {
			if twoLegs && !f.fullDuplex { // no answer goes through it, so that it may have ended
				break
			}
			requireAnswer(t, f.send(t.Context(), "/v1/completions", completion("in between", 1, false)), "in between", 1)
		}
		for i, r := range wait() {
			requireAnswer(t, r, fmt.Sprintf("stream %d", i), tokens)
		}
		require.NoError(t, <-stopped, "it ends with exit code 0")
		f.again()
		f.checkIdle()
	})
}
