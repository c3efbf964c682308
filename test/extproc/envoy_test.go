package extproc_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	datav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/seed-60ae5743/baton/internal/config"
	"github.com/seed-60ae5743/baton/internal/extproc"
	"github.com/seed-60ae5743/baton/internal/extproc/extproctest"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/internal/wire/wiretest"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// replica is what one process of the plugin has, within the process of the test, and an Envoy
// that is played.
type replica struct {
	t     *testing.T
	parts *extproctest.Parts
	srv   *extproc.Server
	conn  *grpc.ClientConn

	mu  sync.Mutex // guards sends on log
	log accesslogv3.AccessLogService_StreamAccessLogsClient
}

func newReplica(t *testing.T, name string, source discovery.Source, change func(*extproc.Config)) *replica {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := extproctest.NewParts(source)
	defaults := config.Default()
	cfg, err := defaults.Server()
	require.NoError(t, err)
	cfg.View, cfg.Board, cfg.Index, cfg.Routes, cfg.Slots, cfg.Tokens = p.View, p.Board, p.Index, p.Routes, p.Slots, p.Tokens
	cfg.Book, cfg.Health, cfg.Journal, cfg.Telemetry, cfg.Tracer = p.Book, p.Health, p.Journal, p.Telemetry.Instruments, p.Telemetry.Tracer
	cfg.Prefill, cfg.Decode, cfg.Aggregated = picker.DefaultParams(), picker.DefaultParams(), picker.DefaultParams()
	cfg.LegKey, cfg.Instance, cfg.Advertise, cfg.PrefillListener = []byte("a key that all of them share"), name, l.Addr().String(), ""
	change(&cfg)
	r := &replica{t: t, parts: p}
	r.srv, err = extproc.New(cfg)
	require.NoError(t, err)
	end := p.Serve(r.srv, l)
	r.conn, err = grpc.NewClient("passthrough:"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() {
		cancel()
		require.NoError(t, r.conn.Close())
		end()
	})
	r.log, err = accesslogv3.NewAccessLogServiceClient(r.conn).StreamAccessLogs(ctx)
	require.NoError(t, err)
	return r
}

// listed is a source that lists the workers once.
func listed(ws []*worker.Worker) extproctest.Lists {
	l := make(extproctest.Lists, 1)
	l <- ws
	return l
}

// logged tells the plugin, as Envoy's access log does, that the answer to an attempt has
// ended, and what its usage was.
func (r *replica) logged(attempt string, u openai.Usage) {
	r.t.Helper()
	usage, err := structpb.NewStruct(map[string]any{"prompt_tokens": u.Prompt, "completion_tokens": u.Output, "cached_tokens": u.Cached})
	require.NoError(r.t, err)
	e := wiretest.Entry(datav3.AccessLogType_DownstreamEnd, attempt)
	e.CommonProperties.Metadata = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"baton.usage": usage}}
	r.mu.Lock()
	defer r.mu.Unlock()
	require.NoError(r.t, r.log.Send(wiretest.Logs(e)))
}

// exchange is one stream of Envoy's filter: a request's main leg.
type exchange struct {
	t      *testing.T
	s      extprocv3.ExternalProcessor_ProcessClient
	cancel context.CancelFunc
}

// open opens a main leg. Its filter has the metadata in pairs, too.
func (r *replica) open(pairs ...string) *exchange {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(context.Background(), append([]string{"x-baton-filter", "main"}, pairs...)...), 30*time.Second)
	s, err := extprocv3.NewExternalProcessorClient(r.conn).Process(ctx)
	require.NoError(r.t, err)
	return &exchange{r.t, s, cancel}
}

func (e *exchange) send(m *extprocv3.ProcessingRequest) {
	e.t.Helper()
	require.NoError(e.t, e.s.Send(m))
}

func (e *exchange) recv() *extprocv3.ProcessingResponse {
	e.t.Helper()
	m, err := e.s.Recv()
	require.NoError(e.t, err)
	return m
}

// ask sends a whole request, waits until it is routed, and returns what is set on it.
func (e *exchange) ask(body string, headers ...string) (set map[string]string) {
	e.t.Helper()
	e.send(wiretest.Post("/v1/completions", headers...))
	require.NotNil(e.t, e.recv().GetRequestHeaders())
	e.send(wiretest.RequestBody(body))
	m := e.recv()
	for m.GetOverrideMessageTimeout() != nil { // it needs more time
		m = e.recv()
	}
	require.NotNil(e.t, m.GetRequestBody(), "%v", m)
	return wiretest.SetHeaders(m.GetRequestBody().GetResponse().GetHeaderMutation())
}
