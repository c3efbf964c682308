package extproc

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/internal/wire/wiretest"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// TestForgedReportsOfRefusedConnectionsSetNobodyAside: whoever reaches the plugin's port says of
// each of its requests that the connection was refused. The workers answer the plugin's own question,
// so they stay, and the requests of others are routed all the while (SECURITY.md).
func TestForgedReportsOfRefusedConnectionsSetNobodyAside(t *testing.T) {
	ws := routetest.Workers()
	for _, w := range ws {
		engine := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		t.Cleanup(engine.Close)
		var err error
		w.Endpoint, err = worker.ParseEndpoint(engine.Listener.Addr().String())
		require.NoError(t, err)
	}
	r := newReplicaOf(t, "a", fixed(ws), nil)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = r.srv.cfg.Health.Run(ctx) }()
	defer func() { stop(); <-ended }()
	check := func() {
		for _, h := range r.srv.cfg.Health.Status() {
			require.Contains(t, []health.State{health.Healthy, health.Doubted}, h.State, "%+v", h)
		}
	}
	forge := func() {
		p := r.open(filterMain)
		defer p.cancel()
		routed(t, p.ask(eightTokens))
		require.NoError(t, p.s.Send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{
			ResponseHeaders: &extprocv3.HttpHeaders{Headers: wiretest.HeaderMap(":status", "503", prefill.HeaderLocalReply, "UF")},
		}}))
		require.NotEmpty(t, setHeaders(p.recv().GetImmediateResponse().GetHeaders())[prefill.HeaderRetry])
	}
	for range 18 {
		forge()
		check()
		p := r.open(filterMain)
		routed(t, p.ask(eightTokens))
		p.cancel()
	}
	r.forgetLegs()
}
