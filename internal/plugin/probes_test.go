package plugin

import (
	"context"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

const (
	serving    = healthv1.HealthCheckResponse_SERVING
	notServing = healthv1.HealthCheckResponse_NOT_SERVING
)

// dialGRPC connects; without credentials in plain text.
func dialGRPC(t *testing.T, addr string, creds credentials.TransportCredentials) *grpc.ClientConn {
	t.Helper()
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(creds))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func checkHealth(t *testing.T, conn *grpc.ClientConn, service string) healthv1.HealthCheckResponse_ServingStatus {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	r, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{Service: service})
	require.NoError(t, err)
	return r.GetStatus()
}

// listHealth returns the services by what they are.
func listHealth(t *testing.T, conn *grpc.ClientConn) map[healthv1.HealthCheckResponse_ServingStatus][]string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	r, err := healthv1.NewHealthClient(conn).List(ctx, &healthv1.HealthListRequest{})
	require.NoError(t, err)
	out := map[healthv1.HealthCheckResponse_ServingStatus][]string{}
	for _, name := range slices.Sorted(maps.Keys(r.GetStatuses())) {
		s := r.GetStatuses()[name].GetStatus()
		out[s] = append(out[s], name)
	}
	return out
}

// TestProbesAreAnsweredOnBothPortsFromFirstToLast: before the view, with it,
// and on the port of their own through the drain.
func TestProbesAreAnsweredOnBothPortsFromFirstToLast(t *testing.T) {
	r := startPlugin(t, "listen: 127.0.0.1:0\nprobes: {listen: \"127.0.0.1:0\"}\ndrain_timeout: 1m\n")
	main, own := r.dial(), dialGRPC(t, r.doors.probes.Addr().String(), nil)
	others := []string{"", "envoy.service.ext_proc.v3.ExternalProcessor", "inference-extension", "readiness"}
	follow := func(conn *grpc.ClientConn, service string) watch {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		t.Cleanup(cancel)
		s, err := healthv1.NewHealthClient(conn).Watch(ctx, &healthv1.HealthCheckRequest{Service: service})
		require.NoError(t, err)
		return watch{t, s}
	}
	watched := []watch{follow(main, "readiness"), follow(own, "readiness"), follow(own, extprocv3.ExternalProcessor_ServiceDesc.ServiceName)}
	for i, conn := range []*grpc.ClientConn{main, own} {
		require.Equal(t, map[healthv1.HealthCheckResponse_ServingStatus][]string{serving: {"liveness"}, notServing: others}, listHealth(t, conn), i)
		require.Equal(t, serving, checkHealth(t, conn, "liveness"))
		require.Equal(t, notServing, checkHealth(t, conn, ""))
		_, err := healthv1.NewHealthClient(conn).Check(t.Context(), &healthv1.HealthCheckRequest{Service: "nobody"})
		require.Equal(t, codes.NotFound, status.Code(err), "%v", err)
		follow(conn, "nobody").next(healthv1.HealthCheckResponse_SERVICE_UNKNOWN)
	}
	for _, w := range watched {
		w.next(notServing)
	}
	r.writeWorkers("workers: []\n")
	for _, w := range watched {
		w.next(serving)
	}
	all := append([]string{"liveness"}, others...)
	slices.Sort(all)
	for _, conn := range []*grpc.ClientConn{main, own} {
		require.Equal(t, map[healthv1.HealthCheckResponse_ServingStatus][]string{serving: all}, listHealth(t, conn))
	}

	done := r.hold()
	r.stop()
	for _, w := range watched {
		w.next(notServing)
	}
	require.Equal(t, map[healthv1.HealthCheckResponse_ServingStatus][]string{serving: {"liveness"}, notServing: others}, listHealth(t, own), "it drains, and lives")
	done()
	require.NoError(t, <-r.ended)
	r.ended <- nil
}

// TestThePortForProbesServesNothingElse.
func TestThePortForProbesServesNothingElse(t *testing.T) {
	r := startPlugin(t, "listen: unix://"+filepath.Join(t.TempDir(), "x.sock")+"\nprobes: {listen: \"127.0.0.1:0\"}\n")
	conn := dialGRPC(t, r.doors.probes.Addr().String(), nil)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	s, err := extprocv3.NewExternalProcessorClient(conn).Process(ctx)
	if err == nil {
		_, err = s.Recv()
	}
	require.Equal(t, codes.Unimplemented, status.Code(err), "%v", err)
}

// TestAViewThatComesDuringTheDrainMakesNothingReady.
func TestAViewThatComesDuringTheDrainMakesNothingReady(t *testing.T) {
	p := newProbes()
	is := func(service string) healthv1.HealthCheckResponse_ServingStatus {
		r, err := p.health.Check(t.Context(), &healthv1.HealthCheckRequest{Service: service})
		require.NoError(t, err)
		return r.GetStatus()
	}
	require.Equal(t, notServing, is("readiness"))
	p.drain()
	p.becomeReady()
	require.Equal(t, notServing, is("readiness"))
	require.Equal(t, notServing, is(""))
	require.Equal(t, serving, is("liveness"))
}

// TestThePortForMetricsServesNothingElse, and that by whatever name it is asked.
func TestThePortForMetricsServesNothingElse(t *testing.T) {
	r := startPlugin(t, "listen: unix://"+filepath.Join(t.TempDir(), "x.sock")+"\nmetrics: {listen: \"127.0.0.1:0\"}\n")
	get := func(path string) (int, string) {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.doors.metrics.Addr().String()+path, nil)
		require.NoError(t, err)
		req.Host = "baton.prod.svc:9090" // as a scraper in the cluster asks
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(b)
	}
	code, text := get("/metrics")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, text, "baton_streams_in_flight")
	code, text = get("/healthz")
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, "alive", strings.TrimSpace(text))
	for _, path := range []string{"/", "/readyz", "/debug/state", "/debug/decisions", "/debug/pprof/", "/debug/index/dump", "/assets/page.css", "/metrics/x"} {
		code, _ = get(path)
		require.Equal(t, http.StatusNotFound, code, path)
	}
}
