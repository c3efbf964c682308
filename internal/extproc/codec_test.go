package extproc

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/seed-60ae5743/baton/internal/pin"
	"github.com/seed-60ae5743/baton/internal/subset"
	"github.com/seed-60ae5743/baton/pkg/prefill"
)

// The functions from here to the first test say with protos what the codec says
// by hand: they are what it is compared with.

// bufferedRouteOf answers the buffered body with headers and body in one.
func bufferedRouteOf(e *effect, metadata *structpb.Struct) *extprocv3.ProcessingResponse {
	c := &extprocv3.CommonResponse{HeaderMutation: mutationOf(e.set, e.remove), ClearRouteCache: e.newRoute}
	if e.body != nil {
		c.BodyMutation = &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_Body{Body: e.body}}
	}
	return &extprocv3.ProcessingResponse{
		Response:        &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{Response: c}},
		DynamicMetadata: metadata,
	}
}

// streamedHeadersOf answers the request headers of a full-duplex stream, once
// its body is complete.
func streamedHeadersOf(e *effect, metadata *structpb.Struct) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{
			Response: &extprocv3.CommonResponse{HeaderMutation: mutationOf(e.set, e.remove), ClearRouteCache: e.newRoute},
		}},
		DynamicMetadata: metadata,
	}
}

// chunkOf is one piece of a full-duplex body, of the request or the response.
func chunkOf(response bool, piece []byte, last bool) *extprocv3.ProcessingResponse {
	b := &extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{
		BodyMutation: &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_StreamedResponse{
			StreamedResponse: &extprocv3.StreamedBodyResponse{Body: piece, EndOfStream: last},
		}},
	}}
	if response {
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: b}}
	}
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: b}}
}

// withToken adds the token of who reads the answer's first events.
func withToken(metadata *structpb.Struct, token string) *structpb.Struct {
	out := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	maps.Copy(out.Fields, metadata.GetFields())
	out.Fields["baton"] = structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{"leg": structpb.NewStringValue(token)}})
	return out
}

func relayOf(set []kv) *extprocv3.ProcessingResponse {
	h := &extprocv3.HeadersResponse{}
	if m := mutationOf(set, nil); m != nil {
		h.Response = &extprocv3.CommonResponse{HeaderMutation: m}
	}
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: h}}
}

// headersOf copies what routing reads out of a header map.
func headersOf(m *corev3.HeaderMap, timeoutHeader string) *headers {
	h := new(headers)
	for _, kv := range m.GetHeaders() {
		var dst *string
		switch kv.Key {
		case ":method":
			dst = &h.method
		case ":path":
			dst = &h.path
		case ":status":
			dst = &h.status
		case "content-length":
			h.length = bodyLengthOf(kv.Value + string(kv.RawValue))
			continue
		case "x-request-id":
			dst = &h.requestID
		case "traceparent":
			dst = &h.traceparent
		case "tracestate":
			dst = &h.tracestate
		case "x-envoy-attempt-count":
			dst = &h.attemptCount
		case prefill.HeaderStart:
			dst = &h.start
		case prefill.HeaderLeg:
			dst = &h.leg
		case prefill.HeaderDebug:
			dst = &h.debug
		case prefill.HeaderLocalReply:
			dst = &h.localReply
		case timeoutHeader:
			dst = &h.timeout
		default:
			v := kv.Value
			if len(kv.RawValue) > 0 {
				v = string(kv.RawValue)
			}
			switch {
			case pin.Known([]byte(kv.Key)):
				h.named = append(h.named, pin.Header{Name: kv.Key, Value: v})
			case kv.Key == subset.Header:
				h.selection = append(h.selection, v)
			case strange([]byte(kv.Key)):
				h.strange = append(h.strange, kv.Key)
			}
			continue
		}
		if len(kv.RawValue) > 0 {
			*dst = string(kv.RawValue)
		} else {
			*dst = kv.Value
		}
	}
	return h
}

// eventOf turns a message into an event. ok is false for a message that has no
// kind that we know.
func eventOf(req *extprocv3.ProcessingRequest, timeoutHeader string) (ev *event, ok bool) {
	ev = new(event)
	switch r := req.Request.(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		ev.kind, ev.endOfStream = evRequestHeaders, r.RequestHeaders.GetEndOfStream()
		ev.headers = headersOf(r.RequestHeaders.GetHeaders(), timeoutHeader)
	case *extprocv3.ProcessingRequest_RequestBody:
		ev.kind, ev.body, ev.endOfStream = evRequestBody, r.RequestBody.GetBody(), r.RequestBody.GetEndOfStream()
	case *extprocv3.ProcessingRequest_RequestTrailers:
		ev.kind = evRequestTrailers
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		ev.kind, ev.endOfStream = evResponseHeaders, r.ResponseHeaders.GetEndOfStream()
		ev.headers = headersOf(r.ResponseHeaders.GetHeaders(), timeoutHeader)
	case *extprocv3.ProcessingRequest_ResponseBody:
		ev.kind, ev.body, ev.endOfStream = evResponseBody, r.ResponseBody.GetBody(), r.ResponseBody.GetEndOfStream()
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		ev.kind = evResponseTrailers
	default:
		return ev, false
	}
	return ev, true
}

// hintsOf copies what the data plane says beside a message.
func hintsOf(req *extprocv3.ProcessingRequest) *hints {
	h := hints{
		subset: req.GetMetadataContext().GetFilterMetadata()[subset.Namespace].GetFields()[subset.Key],
		served: req.GetMetadataContext().GetFilterMetadata()[lbNamespace].GetFields()[servedKey].GetStringValue(),
	}
	for _, filter := range req.GetAttributes() {
		h.upstream = cmp.Or(filter.GetFields()[upstreamAddress].GetStringValue(), h.upstream)
	}
	if h == (hints{}) {
		return nil
	}
	return &h
}

func requireSameHints(t *testing.T, want, got *hints) {
	t.Helper()
	if got != nil && *got == (hints{}) {
		got = nil
	}
	if want == nil || got == nil {
		require.Equal(t, want, got)
		return
	}
	require.True(t, proto.Equal(want.subset, got.subset))
	require.Equal(t, want.subset == nil, got.subset == nil)
	require.Equal(t, []string{want.served, want.upstream}, []string{got.served, got.upstream})
}

// pieces cuts a message as gRPC may: anywhere.
func pieces(r *rand.Rand, b []byte) mem.BufferSlice {
	var out mem.BufferSlice
	for len(b) > 0 {
		n := min(len(b), 1+r.IntN(len(b)))
		out = append(out, mem.SliceBuffer(b[:n]))
		b = b[n:]
	}
	return out
}

func randomHeaders(r *rand.Rand) *corev3.HeaderMap {
	names := []string{
		":method", ":path", ":status", "content-length", "x-request-id", "traceparent", "tracestate", "x-envoy-attempt-count",
		prefill.HeaderStart, prefill.HeaderLeg, prefill.HeaderDebug, prefill.HeaderLocalReply, "x-timeout", "x-worker-instance-id", "x-prefiller-host-port", "cookie", "x-other", "",
		prefill.HeaderPrefillCluster, "x-baton-other", subset.Header,
	}
	m := &corev3.HeaderMap{}
	for range r.IntN(20) {
		h := &corev3.HeaderValue{Key: names[r.IntN(len(names))]}
		v := strings.Repeat("v", r.IntN(40)) + fmt.Sprint(r.IntN(1000))
		if r.IntN(2) == 0 {
			h.RawValue = []byte(v)
		} else {
			h.Value = v
		}
		m.Headers = append(m.Headers, h)
	}
	return m
}

func randomRequest(r *rand.Rand) *extprocv3.ProcessingRequest {
	req := &extprocv3.ProcessingRequest{}
	body := &extprocv3.HttpBody{Body: bytes.Repeat([]byte("x"), r.IntN(10_000)), EndOfStream: r.IntN(2) == 0}
	hdr := &extprocv3.HttpHeaders{Headers: randomHeaders(r), EndOfStream: r.IntN(2) == 0}
	switch r.IntN(7) {
	case 0:
		req.Request = &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: hdr}
	case 1:
		req.Request = &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: hdr}
	case 2:
		req.Request = &extprocv3.ProcessingRequest_RequestBody{RequestBody: body}
	case 3:
		req.Request = &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: body}
	case 4:
		req.Request = &extprocv3.ProcessingRequest_RequestTrailers{RequestTrailers: &extprocv3.HttpTrailers{Trailers: randomHeaders(r)}}
	case 5:
		req.Request = &extprocv3.ProcessingRequest_ResponseTrailers{ResponseTrailers: &extprocv3.HttpTrailers{}}
	}
	if r.IntN(2) == 0 {
		req.ProtocolConfig = &extprocv3.ProtocolConfiguration{
			RequestBodyMode: extprocfilterv3.ProcessingMode_BodySendMode(r.IntN(5)), ResponseBodyMode: extprocfilterv3.ProcessingMode_BodySendMode(r.IntN(5)),
		}
	}
	if r.IntN(3) == 0 {
		names := []string{"a", subset.Key, servedKey, upstreamAddress}
		values := []any{"192.0.2.1:80", []any{"192.0.2.1:80", "b"}, 1.5, nil}
		some := func() *structpb.Struct {
			m := map[string]any{}
			for range r.IntN(4) {
				m[names[r.IntN(len(names))]] = values[r.IntN(len(values))]
			}
			s, err := structpb.NewStruct(m)
			if err != nil {
				panic(err)
			}
			return s
		}
		req.Attributes = map[string]*structpb.Struct{"envoy.filters.http.ext_proc": some()}
		req.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"x": some(), lbNamespace: some(), subset.Namespace: some()}}
	}
	return req
}

// TestRequestsAreReadAsProtobufReadsThem compares the codec with protobuf on
// random messages, cut anywhere.
func TestRequestsAreReadAsProtobufReadsThem(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	c := newCodec(new(bufferPool), "x-timeout")
	for range 3000 {
		req := randomRequest(r)
		b, err := proto.Marshal(req)
		require.NoError(t, err)
		want, known := eventOf(req, "x-timeout")
		want.fullDuplex = req.GetProtocolConfig().GetRequestBodyMode() == extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED
		want.answerDuplex = req.GetProtocolConfig().GetResponseBodyMode() == extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED
		want.answerBodies = req.GetProtocolConfig().GetResponseBodyMode() != extprocfilterv3.ProcessingMode_NONE
		want.hints = hintsOf(req)
		var in incoming
		require.NoError(t, c.Unmarshal(pieces(r, b), &in))
		require.Equal(t, known, in.ev.kind != 0)
		if !known {
			continue
		}
		require.Equal(t, want.kind, in.ev.kind)
		require.Equal(t, want.endOfStream, in.ev.endOfStream)
		require.Equal(t, want.fullDuplex, in.ev.fullDuplex)
		require.Equal(t, want.answerDuplex, in.ev.answerDuplex)
		require.Equal(t, want.answerBodies, in.ev.answerBodies)
		requireSameHints(t, want.hints, in.ev.hints)
		require.Equal(t, want.headers, in.ev.headers)
		require.True(t, bytes.Equal(want.body, in.ev.body))
		if len(in.ev.body) > 0 {
			require.GreaterOrEqual(t, cap(in.ev.body)-len(in.ev.body), injectRoom, "room for what is injected")
		}
		c.buffers.put(in.ev.body)
	}
}

// FuzzRequests: no message makes the codec panic, or read another thing than protobuf
// does; what protobuf refuses is not compared.
func FuzzRequests(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		b, err := proto.Marshal(randomRequest(r))
		require.NoError(f, err)
		f.Add(b, uint64(len(b)))
	}
	f.Add([]byte{0x22, 0x05, 0x0a, 0xff, 0xff, 0xff, 0x7f}, uint64(3))
	for _, hint := range []string{`["10.0.0.1:80",1,null]`, `"10.0.0.1,[fd00::1]:80"`, `{"a":[]}`, "null", "true"} {
		var v structpb.Value
		require.NoError(f, v.UnmarshalJSON([]byte(hint)))
		req := plausible("/v1/completions", nil, nil)[0]
		req.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
			subset.Namespace: {Fields: map[string]*structpb.Value{subset.Key: &v}},
			lbNamespace:      {Fields: map[string]*structpb.Value{servedKey: structpb.NewStringValue("10.0.0.1:80")}},
		}}
		req.Attributes = map[string]*structpb.Struct{"envoy.filters.http.ext_proc": {Fields: map[string]*structpb.Value{upstreamAddress: &v}}}
		b, err := proto.Marshal(req)
		require.NoError(f, err)
		f.Add(b, uint64(len(b)))
		f.Add(append(b, b...), uint64(1))
		f.Add(bytes.ReplaceAll(b, []byte("10.0.0.1"), []byte("10.0.\xff.1")), uint64(2))
	}
	kinds := plausible("/v1/completions", []byte("{}"), []byte("1"))
	kinds[0].GetRequestHeaders().EndOfStream = true
	kinds[1].GetRequestBody().EndOfStream = false
	var two []byte // the last one counts
	for _, req := range kinds {
		b, err := proto.Marshal(req)
		require.NoError(f, err)
		two = append(two, b...)
		f.Add(two, uint64(2))
	}
	c := newCodec(new(bufferPool), "x-timeout")
	f.Fuzz(func(t *testing.T, b []byte, cut uint64) { requireReadAlike(t, c, b, cut) })
}

func requireSame(t *testing.T, want *extprocv3.ProcessingResponse, got *outgoing) {
	t.Helper()
	var m extprocv3.ProcessingResponse
	require.NoError(t, proto.Unmarshal(got.buffers().Materialize(), &m))
	require.True(t, proto.Equal(want, &m), "want %v\ngot  %v", want, &m)
}

// TestAnswersAreWrittenAsProtobufWritesThem compares every message that is
// written by hand with its proto.
func TestAnswersAreWrittenAsProtobufWritesThem(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	pool := new(bufferPool)
	for i := range 500 {
		var set []kv
		for range r.IntN(24) {
			set = append(set, kv{"x-" + strings.Repeat("k", r.IntN(200)), strings.Repeat("v", r.IntN(300))})
		}
		var remove []string
		for range r.IntN(4) {
			remove = append(remove, "x-gone"+strings.Repeat("g", r.IntN(150)))
		}
		var metadata *structpb.Struct
		var meta []byte
		if i%2 == 0 {
			metadata = destinationMetadata("10.0.0.1:80")
			var err error
			meta, err = proto.Marshal(&extprocv3.ProcessingResponse{DynamicMetadata: metadata})
			require.NoError(t, err)
		}
		body := bytes.Repeat([]byte("b"), 1+r.IntN(100_000))
		e := &effect{set: set, remove: remove, body: body}
		if i%3 == 0 {
			e.token, e.newRoute = strings.Repeat("t", 1+r.IntN(300)), r.IntN(2) == 0
			metadata = withToken(metadata, e.token)
		}
		x := extrasOf(e, meta)
		requireSame(t, bufferedRouteOf(e, metadata), bodyAnswer(set, remove, pool.lend(body), x))
		e.body = nil
		want := bufferedRouteOf(e, metadata)
		requireSame(t, want, bodyAnswer(set, remove, nil, x))
		if len(set)+len(remove) > 0 || x.newRoute {
			requireSame(t, streamedHeadersOf(e, metadata), headersAnswer(fieldAnswerRequestHeaders, set, remove, x))
		}
		requireSame(t, relayOf(set), headersAnswer(fieldAnswerResponseHeaders, set, nil, extras{}))
		for _, last := range []bool{false, true} {
			for _, piece := range [][]byte{body, nil} {
				requireSame(t, chunkOf(false, piece, last), chunkAnswer(fieldAnswerRequestBody, pool.lend(piece), last))
				requireSame(t, chunkOf(true, piece, last), chunkAnswer(fieldAnswerResponseBody, pool.lend(piece), last))
			}
		}
	}
	requireSame(t, continueOf(ofRequestHeaders), headersAnswer(fieldAnswerRequestHeaders, nil, nil, extras{}))
	requireSame(t, continueOf(ofResponseHeaders), headersAnswer(fieldAnswerResponseHeaders, nil, nil, extras{}))
}

// countingPool counts what comes back.
type countingPool struct {
	*bufferPool
	puts int
}

func (p *countingPool) Put(b *[]byte) {
	p.puts++
	p.bufferPool.Put(b)
}

// TestASplitBodyGoesBackToThePoolOnce sends a body in pieces as a full-duplex
// stream does.
func TestASplitBodyGoesBackToThePoolOnce(t *testing.T) {
	pool := &countingPool{bufferPool: new(bufferPool)}
	body := append(pool.get(200_000), bytes.Repeat([]byte("b"), 200_000)...)
	rest := mem.NewBuffer(&body, pool)
	var whole []byte
	for rest.Len() > chunkBytes {
		var piece mem.Buffer
		piece, rest = mem.SplitUnsafe(rest, chunkBytes)
		whole = append(whole, piece.ReadOnlyData()...)
		piece.Free()
	}
	whole = append(whole, rest.ReadOnlyData()...)
	rest.Free()
	require.True(t, bytes.Equal(body, whole))
	require.Equal(t, 1, pool.puts)
}
