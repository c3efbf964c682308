//go:build e2e

package envoytest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/test/stack"
)

const (
	destination = "x-gateway-destination-endpoint"
	served      = "x-gateway-destination-endpoint-served"
)

// picker is an endpoint picker that does what a test says, for facts about Envoy
// that hold whoever picks. Its streams are served one script each, by order of
// arrival.
type picker struct {
	extprocv3.UnimplementedExternalProcessorServer
	t      *testing.T
	socket string
	script func(x *exchange) error
	server *grpc.Server

	mu        sync.Mutex
	exchanges []*exchange
}

// exchange is one stream: what came, in order.
type exchange struct {
	grpc.BidiStreamingServer[extprocv3.ProcessingRequest, extprocv3.ProcessingResponse]
	buffered bool
	anew     bool // ask for a route anew

	mu     sync.Mutex
	frames []*extprocv3.ProcessingRequest
	ended  error
}

func (p *picker) Process(s extprocv3.ExternalProcessor_ProcessServer) error {
	x := &exchange{BidiStreamingServer: s}
	p.mu.Lock()
	p.exchanges = append(p.exchanges, x)
	p.mu.Unlock()
	return p.script(x)
}

// start serves on the socket, anew after a kill.
func (p *picker) start() {
	l, err := net.Listen("unix", p.socket)
	require.NoError(p.t, err)
	p.server = grpc.NewServer(grpc.MaxRecvMsgSize(math.MaxInt32), grpc.InitialWindowSize(16<<20), grpc.InitialConnWindowSize(64<<20))
	extprocv3.RegisterExternalProcessorServer(p.server, p)
	go func() { _ = p.server.Serve(l) }()
}

// kill closes every connection, and the socket, as the end of the process does.
func (p *picker) kill() { p.server.Stop() }

// last returns the newest stream.
func (p *picker) last() *exchange {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.exchanges) == 0 {
		return nil
	}
	return p.exchanges[len(p.exchanges)-1]
}

func (x *exchange) Recv() (*extprocv3.ProcessingRequest, error) {
	r, err := x.BidiStreamingServer.Recv()
	x.mu.Lock()
	defer x.mu.Unlock()
	if err != nil {
		x.ended = err
		return nil, err
	}
	x.frames = append(x.frames, r)
	return r, nil
}

// taken returns the frames so far.
func (x *exchange) taken() []*extprocv3.ProcessingRequest {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.frames)
}

// seen returns the frames so far, each as one word or two.
func (x *exchange) seen() []string {
	var out []string
	for _, r := range x.taken() {
		s := strings.TrimPrefix(fmt.Sprintf("%T", r.Request), "*ext_procv3.ProcessingRequest_")
		switch {
		case r.GetRequestHeaders() != nil:
			s += end(r.GetRequestHeaders().EndOfStream)
		case r.GetRequestBody() != nil:
			s += fmt.Sprintf(" %d", len(r.GetRequestBody().Body)) + end(r.GetRequestBody().EndOfStream)
		case r.GetResponseHeaders() != nil:
			s += end(r.GetResponseHeaders().EndOfStream)
		case r.GetResponseBody() != nil:
			s += fmt.Sprintf(" %d", len(r.GetResponseBody().Body)) + end(r.GetResponseBody().EndOfStream)
		}
		out = append(out, s)
	}
	return out
}

func end(eos bool) string {
	if eos {
		return " end"
	}
	return ""
}

// frame returns the first frame of which what returns true.
func (x *exchange) frame(what func(*extprocv3.ProcessingRequest) bool) *extprocv3.ProcessingRequest {
	for _, r := range x.taken() {
		if what(r) {
			return r
		}
	}
	return nil
}

func isResponseHeaders(r *extprocv3.ProcessingRequest) bool { return r.GetResponseHeaders() != nil }

func headerValues(m *corev3.HeaderMap, name string) (out []string) {
	for _, h := range m.GetHeaders() {
		if h.Key == name {
			out = append(out, string(h.RawValue)+h.Value)
		}
	}
	return out
}

func option(name, value string) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{
		Header: &corev3.HeaderValue{Key: name, RawValue: []byte(value)}, AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}
}

// picked is the protocol's answer: header and metadata.
func picked(dest string) (*extprocv3.CommonResponse, *structpb.Struct) {
	m, _ := structpb.NewStruct(map[string]any{"envoy.lb": map[string]any{destination: dest}})
	return &extprocv3.CommonResponse{HeaderMutation: &extprocv3.HeaderMutation{
		SetHeaders: []*corev3.HeaderValueOption{option(destination, dest)},
	}}, m
}

// takeRequest reads the whole request.
func (x *exchange) takeRequest() (body []byte, trailers bool, err error) {
	for {
		r, err := x.Recv()
		if err != nil {
			return nil, false, err
		}
		switch {
		case r.GetRequestHeaders() != nil && r.GetRequestHeaders().EndOfStream:
			return nil, false, nil
		case r.GetRequestHeaders() != nil && x.buffered:
			if err := x.Send(passOnHeaders()); err != nil {
				return nil, false, err
			}
		case r.GetRequestBody() != nil:
			body = append(body, r.GetRequestBody().Body...)
			if r.GetRequestBody().EndOfStream {
				return body, false, nil
			}
		case r.GetRequestTrailers() != nil:
			return body, true, nil
		}
	}
}

// route sends the request to dest with its own body.
func (x *exchange) route(dest string, body []byte, trailers bool) error {
	common, meta := picked(dest)
	common.ClearRouteCache = x.anew
	headers := x.frame(func(r *extprocv3.ProcessingRequest) bool { return r.GetRequestHeaders() != nil }).GetRequestHeaders()
	if x.buffered && !headers.EndOfStream {
		return x.Send(&extprocv3.ProcessingResponse{DynamicMetadata: meta, Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{Response: common}}})
	}
	if err := x.Send(&extprocv3.ProcessingResponse{DynamicMetadata: meta, Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{Response: common}}}); err != nil {
		return err
	}
	if headers.EndOfStream {
		return nil
	}
	for first := true; first || len(body) > 0; first = false {
		n := min(len(body), 62000)
		m := streamed(body[:n], n == len(body) && !trailers)
		body = body[n:]
		if err := x.Send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{Response: m}}}); err != nil {
			return err
		}
	}
	if trailers {
		return x.Send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestTrailers{RequestTrailers: &extprocv3.TrailersResponse{}}})
	}
	return nil
}

func streamed(b []byte, eos bool) *extprocv3.CommonResponse {
	return &extprocv3.CommonResponse{BodyMutation: &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_StreamedResponse{
		StreamedResponse: &extprocv3.StreamedBodyResponse{Body: b, EndOfStream: eos},
	}}}
}

// answer answers one frame of the response, and says what it was.
func (x *exchange) answer() (*extprocv3.ProcessingRequest, error) {
	r, err := x.Recv()
	if err != nil {
		return nil, err
	}
	return r, x.Send(passOn(r))
}

func passOnHeaders() *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{}}}
}

func passOn(r *extprocv3.ProcessingRequest) *extprocv3.ProcessingResponse {
	switch {
	case r.GetResponseHeaders() != nil:
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{}}}
	case r.GetResponseBody() != nil:
		b := r.GetResponseBody()
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: &extprocv3.BodyResponse{Response: streamed(b.Body, b.EndOfStream)}}}
	default:
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseTrailers{ResponseTrailers: &extprocv3.TrailersResponse{}}}
	}
}

// serve picks dest and passes everything on, to the stream's end.
func (x *exchange) serve(dest string) error {
	body, trailers, err := x.takeRequest()
	if err == nil {
		err = x.route(dest, body, trailers)
	}
	for err == nil {
		_, err = x.answer()
	}
	return nil
}

// backend is a worker that tells what it got.
type backend struct {
	*httptest.Server
	addr string
	mu   sync.Mutex
	got  []received
}

type received struct {
	header http.Header
	body   int
}

func (b *backend) requests() []received {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.got)
}

// newBackend's answer is f's, or its own address when f is nil.
func newBackend(t *testing.T, f http.HandlerFunc) *backend {
	t.Helper()
	b := &backend{}
	b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		b.mu.Lock()
		b.got = append(b.got, received{r.Header.Clone(), int(n)})
		b.mu.Unlock()
		if f != nil {
			f(w, r)
			return
		}
		_, _ = io.WriteString(w, b.addr)
	}))
	b.addr = b.Listener.Addr().String()
	t.Cleanup(func() {
		b.CloseClientConnections()
		b.Close()
	})
	return b
}

// facts is a gateway with a picker that a test writes.
type facts struct {
	t       *testing.T
	envoy   *stack.Envoy
	picker  *picker
	manager string // stat prefix of the listener with the picker's filter
}

// envoyMinor is the version of this Envoy: 40 of 1.40.0.
var envoyMinor = sync.OnceValue(func() int { return stack.EnvoyMinor(envoyPath) })

// saysServed tells whether this Envoy's override policy can say who served.
func saysServed() bool { return envoyMinor() >= 38 }

// newFacts starts Envoy in front of a picker that runs script for each stream.
func newFacts(t *testing.T, p envoy.GatewayParams, script func(x *exchange) error) *facts {
	t.Helper()
	return newFactsWith(t, p, false, script)
}

// newFactsWith is newFacts with two legs, where the picker is asked on the main
// leg, and every stream of it is the main leg's: nothing names a prefill cluster.
func newFactsWith(t *testing.T, p envoy.GatewayParams, twoLegs bool, script func(x *exchange) error) *facts {
	t.Helper()
	p.NoServed = !saysServed()
	dir := t.TempDir()
	f := &facts{t: t, picker: &picker{t: t, socket: filepath.Join(dir, "picker.sock")}, manager: "client"}
	if twoLegs {
		f.manager = "main_leg"
	}
	f.picker.script = func(x *exchange) error {
		x.buffered = p.Buffered
		return script(x)
	}
	f.picker.start()
	t.Cleanup(func() { f.picker.kill() })
	p.PluginSocket = f.picker.socket
	ctx, cancel := context.WithCancel(context.Background())
	var err error
	f.envoy, err = stack.StartEnvoy(ctx, stack.EnvoyOptions{Path: envoyPath, Dir: dir, Gateway: &p, TwoLegs: twoLegs})
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("envoy's log:\n%s", lastLines(f.envoy.Log(), 30))
		}
		cancel()
		<-f.envoy.Done()
	})
	return f
}

// send makes one request with a body of n bytes.
func (f *facts) send(n int, headers ...string) *reply {
	return f.sendBody(http.MethodPost, strings.NewReader(strings.Repeat("x", n)), headers...)
}

func (f *facts) sendBody(method string, body io.Reader, headers ...string) *reply {
	ctx, cancel := context.WithTimeout(f.t.Context(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, f.envoy.URL+"/v1/completions", body)
	require.NoError(f.t, err)
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	return roundTrip(client, req)
}

// stream is sendBody that closes begun with the answer's first byte.
func (f *facts) stream(body io.Reader, begun chan struct{}, headers ...string) *reply {
	ctx, cancel := context.WithTimeout(f.t.Context(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.envoy.URL+"/v1/completions", body)
	require.NoError(f.t, err)
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	return readThrough(req, begun)
}

// readThrough makes a request and closes begun with the answer's first byte.
func readThrough(req *http.Request, begun chan struct{}) *reply {
	r := &reply{}
	resp, err := client.Do(req)
	if err != nil {
		r.err = err
		return r
	}
	defer resp.Body.Close()
	r.status, r.header = resp.StatusCode, resp.Header
	first := make([]byte, 1)
	n, err := resp.Body.Read(first)
	close(begun)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	rest, err2 := io.ReadAll(resp.Body)
	r.body, r.err = string(first[:n])+string(rest), errors.Join(err, err2)
	return r
}

// settle waits until Envoy has no stream to the picker, and knows it, or the test
// is over.
func (f *facts) settle() {
	_ = stack.Await(f.t.Context(), "Envoy to know", func() bool {
		n, err := f.envoy.Stat(f.t.Context(), "cluster.extproc.upstream_rq_active")
		return err == nil && n == 0
	})
}

// await polls for what comes a moment later.
func (f *facts) await(what string, ok func() bool) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), 10*time.Second)
	defer cancel()
	require.NoError(f.t, stack.Await(ctx, what, ok))
}
