package plugin

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/seed-60ae5743/baton/internal/admin"
	"github.com/seed-60ae5743/baton/internal/config"
	"github.com/seed-60ae5743/baton/internal/syncbuf"
)

// running is a plugin that serves within the test.
type running struct {
	t        *testing.T
	plugin   *plugin
	doors    *doors
	listener net.Listener
	page     *admin.Server
	workers  string
	log      *syncbuf.Buffer
	stop     context.CancelFunc // as SIGTERM does
	ended    chan error
	writes   heldListener
}

// heldListener's connections write while held is free.
type heldListener struct {
	net.Listener
	held sync.RWMutex
}

func (l *heldListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &heldConn{c, &l.held}, nil
}

type heldConn struct {
	net.Conn
	held *sync.RWMutex
}

func (c *heldConn) Write(p []byte) (int, error) {
	c.held.RLock()
	defer c.held.RUnlock()
	return c.Conn.Write(p)
}

// startPlugin serves with a configuration until the test ends. There is no
// workers file until the test writes one.
func startPlugin(t *testing.T, settings string) *running {
	t.Helper()
	dir := t.TempDir()
	r := &running{t: t, workers: filepath.Join(dir, "workers.yaml"), log: &syncbuf.Buffer{}, ended: make(chan error, 1)}
	file := filepath.Join(dir, "config.yaml")
	text := "admin: {listen: \"127.0.0.1:0\"}\ndiscovery: {file: " + r.workers + "}\n" + settings
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	c, err := config.Read(file)
	require.NoError(t, err)
	require.NoError(t, c.Validate())
	r.plugin, err = newPlugin(c, r.log)
	require.NoError(t, err)
	r.doors, err = r.plugin.open()
	require.NoError(t, err)
	if r.doors.main == nil { // these tests ask it before it has a view
		r.doors.main, err = listen(c.Listen, c.SocketMode)
		require.NoError(t, err)
	}
	r.listener, r.page = r.doors.main, r.doors.page
	r.writes.Listener = r.doors.main
	r.doors.main = &r.writes
	ctx, cancel := context.WithCancel(t.Context())
	r.stop = cancel
	go func() { r.ended <- r.plugin.run(ctx, r.doors) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-r.ended:
			require.NoError(t, err)
		case <-time.After(10 * time.Second):
			t.Error("the plugin did not end: " + r.log.String())
		}
		http.DefaultClient.CloseIdleConnections()
	})
	return r
}

func (r *running) dial() *grpc.ClientConn {
	r.t.Helper()
	target := r.listener.Addr().String()
	if r.listener.Addr().Network() == "unix" {
		target = "unix://" + target
	}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(r.t, err)
	r.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (r *running) ready() (int, string) {
	r.t.Helper()
	resp, err := http.Get("http://" + r.page.Addr().String() + "/readyz")
	require.NoError(r.t, err)
	defer resp.Body.Close()
	var b bytes.Buffer
	_, err = b.ReadFrom(resp.Body)
	require.NoError(r.t, err)
	return resp.StatusCode, b.String()
}

func (r *running) writeWorkers(text string) {
	r.t.Helper()
	require.NoError(r.t, os.WriteFile(r.workers+".new", []byte(text), 0o600))
	require.NoError(r.t, os.Rename(r.workers+".new", r.workers))
}

// watch follows one health service.
type watch struct {
	t *testing.T
	s healthv1.Health_WatchClient
}

func (r *running) watch(service string) watch {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	r.t.Cleanup(cancel)
	s, err := healthv1.NewHealthClient(r.dial()).Watch(ctx, &healthv1.HealthCheckRequest{Service: service})
	require.NoError(r.t, err)
	return watch{r.t, s}
}

func (w watch) next(want healthv1.HealthCheckResponse_ServingStatus) {
	w.t.Helper()
	m, err := w.s.Recv()
	require.NoError(w.t, err)
	require.Equal(w.t, want.String(), m.GetStatus().String())
}

// hold opens a main leg that ends only with done: a request that waits for its
// body.
func (r *running) hold() (done func()) {
	r.t.Helper()
	s := r.begin()
	return func() { _ = s.CloseSend() }
}

func (r *running) begin() extprocv3.ExternalProcessor_ProcessClient {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r.t.Cleanup(cancel)
	s, err := extprocv3.NewExternalProcessorClient(r.dial()).Process(metadata.AppendToOutgoingContext(ctx, "x-baton-filter", "main"))
	require.NoError(r.t, err)
	require.NoError(r.t, s.Send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseTrailers{}}))
	require.Eventually(r.t, func() bool { return r.plugin.server.Streams() == 1 }, 20*time.Second, time.Millisecond)
	return s
}

// TestHealthFollowsTheViewAndTheDrain: NOT_SERVING until the first view is in,
// SERVING after, NOT_SERVING from the first moment of the drain on, while open
// requests still go on.
func TestHealthFollowsTheViewAndTheDrain(t *testing.T) {
	r := startPlugin(t, "listen: unix://"+filepath.Join(t.TempDir(), "x.sock")+"\ndrain_timeout: 8s\n")
	all, named := r.watch(""), r.watch("envoy.service.ext_proc.v3.ExternalProcessor")
	all.next(healthv1.HealthCheckResponse_NOT_SERVING)
	named.next(healthv1.HealthCheckResponse_NOT_SERVING)
	r.watch("liveness").next(healthv1.HealthCheckResponse_SERVING)
	r.watch("readiness").next(healthv1.HealthCheckResponse_NOT_SERVING)
	r.watch("nobody").next(healthv1.HealthCheckResponse_SERVICE_UNKNOWN)
	code, why := r.ready()
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Contains(t, why, "no worker view yet")

	r.writeWorkers("workers: []\n")
	all.next(healthv1.HealthCheckResponse_SERVING)
	named.next(healthv1.HealthCheckResponse_SERVING)
	code, _ = r.ready()
	require.Equal(t, http.StatusOK, code)

	// A file that goes wrong later makes the view stale, not absent.
	r.writeWorkers("workers: 7\n")
	require.Eventually(t, func() bool { return strings.Contains(r.log.String(), "to=stale") }, 20*time.Second, time.Millisecond)
	code, _ = r.ready()
	require.Equal(t, http.StatusOK, code)

	done := r.hold()
	r.stop()
	all.next(healthv1.HealthCheckResponse_NOT_SERVING)
	named.next(healthv1.HealthCheckResponse_NOT_SERVING)
	select {
	case err := <-r.ended:
		t.Fatalf("ended with a request open: %v", err)
	default:
	}
	require.Equal(t, 1, r.plugin.server.Streams())
	done()
	err := <-r.ended
	require.NoError(t, err)
	r.ended <- nil
	require.Contains(t, r.log.String(), "drained")
	require.NotContains(t, r.log.String(), "outlasted")
}

// TestADrainLetsLastWordsLeave: a stream that is over may not have reached the
// client, whose request would fail though it was served.
func TestADrainLetsLastWordsLeave(t *testing.T) {
	r := startPlugin(t, "listen: 127.0.0.1:0\ndrain_timeout: 8s\n")
	r.writeWorkers("workers: []\n")
	s := r.begin()
	r.writes.held.Lock()
	require.NoError(t, s.CloseSend())
	r.stop()
	require.Eventually(t, func() bool { return strings.Contains(r.log.String(), "new requests are refused") }, 20*time.Second, time.Millisecond)
	r.writes.held.Unlock()
	_, err := s.Recv()
	require.NoError(t, err, "the answer to what it sent")
	_, err = s.Recv()
	require.ErrorIs(t, err, io.EOF, "the stream has ended well")
}

// TestADrainThatTakesTooLongIsCutShort: drain_timeout bounds it.
func TestADrainThatTakesTooLongIsCutShort(t *testing.T) {
	r := startPlugin(t, "listen: 127.0.0.1:0\ndrain_timeout: 50ms\n")
	r.writeWorkers("workers: []\n")
	r.hold()
	r.stop()
	require.Eventually(t, func() bool { return strings.Contains(r.log.String(), "drained") }, 20*time.Second, time.Millisecond)
	require.Contains(t, r.log.String(), "some requests took longer than drain_timeout")
}

// TestAStreamOfAPluginThatHasDrainedIsRefused: Envoy then fails open, and the
// request has nowhere to go.
func TestAStreamOfAPluginThatHasDrainedIsRefused(t *testing.T) {
	r := startPlugin(t, "listen: unix://"+filepath.Join(t.TempDir(), "x.sock")+"\n")
	conn := r.dial()
	r.stop()
	require.NoError(t, <-r.ended)
	r.ended <- nil
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	s, err := extprocv3.NewExternalProcessorClient(conn).Process(metadata.AppendToOutgoingContext(ctx, "x-baton-filter", "main"))
	if err == nil {
		_, err = s.Recv()
	}
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
}

// TestTheKeyOfLegTokensIsReadWhole: short keys are refused, a drawn one differs
// from run to run.
func TestTheKeyOfLegTokensIsReadWhole(t *testing.T) {
	dir := t.TempDir()
	short, long := filepath.Join(dir, "short"), filepath.Join(dir, "long")
	require.NoError(t, os.WriteFile(short, make([]byte, 15), 0o600))
	require.NoError(t, os.WriteFile(long, []byte("0123456789abcdef"), 0o600))
	_, err := config.LegKey(short)
	require.ErrorContains(t, err, "holds 15 bytes: expected at least 16")
	key, err := config.LegKey(long)
	require.NoError(t, err)
	require.Equal(t, "0123456789abcdef", string(key))
	a, err := config.LegKey("")
	require.NoError(t, err)
	b, err := config.LegKey("")
	require.NoError(t, err)
	require.NotEqual(t, a, b)
	require.NotEqual(t, instance(), instance(), "two lives of one instance differ")
}

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// The library that plays a publisher: a closed PUB socket may leave its
		// writer waiting.
		goleak.IgnoreAnyFunction("github.com/go-zeromq/zmq4.(*pubMWriter).run"))
}
