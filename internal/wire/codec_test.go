package wire

import (
	"bytes"
	"cmp"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/seed-60ae5743/baton/internal/pin"
	"github.com/seed-60ae5743/baton/internal/wire/wiretest"
	"github.com/seed-60ae5743/baton/pkg/prefill"
)

// testConfig is what the plugin says to the codec.
var testConfig = Config{TimeoutHeader: "x-timeout", Named: pin.Known}

// The functions from here to the first test say with protos what the codec says
// by hand: they are what it is compared with.

// bufferedRouteOf answers the buffered body with headers and body in one.
func bufferedRouteOf(e *Route, metadata *structpb.Struct) *extprocv3.ProcessingResponse {
	c := &extprocv3.CommonResponse{HeaderMutation: mutates(e.Set, e.Remove), ClearRouteCache: e.NewRoute}
	if e.Body != nil {
		c.BodyMutation = &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_Body{Body: e.Body}}
	}
	return &extprocv3.ProcessingResponse{
		Response:        &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{Response: c}},
		DynamicMetadata: metadata,
	}
}

// streamedHeadersOf answers the request headers of a full-duplex stream, once
// its body is complete.
func streamedHeadersOf(e *Route, metadata *structpb.Struct) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{
			Response: &extprocv3.CommonResponse{HeaderMutation: mutates(e.Set, e.Remove), ClearRouteCache: e.NewRoute},
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

// continueOf lets a message pass.
func continueOf(of Kind) *extprocv3.ProcessingResponse {
	switch of {
	case RequestHeaders:
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{}}}
	case RequestBody:
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{}}}
	case RequestTrailers:
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestTrailers{RequestTrailers: &extprocv3.TrailersResponse{}}}
	case ResponseHeaders:
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{}}}
	case ResponseBody:
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: &extprocv3.BodyResponse{}}}
	default:
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseTrailers{ResponseTrailers: &extprocv3.TrailersResponse{}}}
	}
}

// destinationMetadata is a destination as envoy.lb metadata.
func destinationMetadata(address string) *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{
		lbNamespace: structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
			prefill.HeaderDestination: structpb.NewStringValue(address),
		}}),
	}}
}

// withToken adds the token of who reads the answer's first events.
func withToken(metadata *structpb.Struct, token string) *structpb.Struct {
	out := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	maps.Copy(out.Fields, metadata.GetFields())
	out.Fields["baton"] = structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{"leg": structpb.NewStringValue(token)}})
	return out
}

func relayOf(set []Header) *extprocv3.ProcessingResponse {
	h := &extprocv3.HeadersResponse{}
	if m := mutates(set, nil); m != nil {
		h.Response = &extprocv3.CommonResponse{HeaderMutation: m}
	}
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: h}}
}

// headersOf copies what routing reads out of a header map.
func headersOf(m *corev3.HeaderMap, timeoutHeader string) *Headers {
	h := new(Headers)
	for _, kv := range m.GetHeaders() {
		var dst *string
		switch kv.Key {
		case ":method":
			dst = &h.Method
		case ":path":
			dst = &h.Path
		case ":status":
			dst = &h.Status
		case "content-length":
			h.Length = LengthOf(kv.Value + string(kv.RawValue))
			continue
		case "content-encoding":
			h.Encoded = true // no value of wiretest is identity
			continue
		case "x-request-id":
			dst = &h.RequestID
		case "traceparent":
			dst = &h.Traceparent
		case "tracestate":
			dst = &h.Tracestate
		case "x-envoy-attempt-count":
			dst = &h.AttemptCount
		case prefill.HeaderStart:
			dst = &h.Start
		case prefill.HeaderLeg:
			dst = &h.Leg
		case prefill.HeaderDebug:
			dst = &h.Debug
		case prefill.HeaderLocalReply:
			dst = &h.LocalReply
		case prefill.HeaderError:
			dst = &h.Error
		case timeoutHeader:
			dst = &h.Timeout
		default:
			v := kv.Value
			if len(kv.RawValue) > 0 {
				v = string(kv.RawValue)
			}
			switch {
			case pin.Known([]byte(kv.Key)):
				h.Named = append(h.Named, Header{Name: kv.Key, Value: v})
			case kv.Key == HeaderSelection:
				h.Selection = append(h.Selection, v)
			case Strange([]byte(kv.Key)):
				h.Strange = append(h.Strange, kv.Key)
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

// messageOf turns a message into ours. ok is false for a message that has no
// kind that we know.
func messageOf(req *extprocv3.ProcessingRequest, timeoutHeader string) (ev *Message, ok bool) {
	ev = new(Message)
	switch r := req.Request.(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		ev.Kind, ev.EndOfStream = RequestHeaders, r.RequestHeaders.GetEndOfStream()
		ev.Headers = headersOf(r.RequestHeaders.GetHeaders(), timeoutHeader)
	case *extprocv3.ProcessingRequest_RequestBody:
		ev.Kind, ev.Body, ev.EndOfStream = RequestBody, r.RequestBody.GetBody(), r.RequestBody.GetEndOfStream()
	case *extprocv3.ProcessingRequest_RequestTrailers:
		ev.Kind = RequestTrailers
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		ev.Kind, ev.EndOfStream = ResponseHeaders, r.ResponseHeaders.GetEndOfStream()
		ev.Headers = headersOf(r.ResponseHeaders.GetHeaders(), timeoutHeader)
	case *extprocv3.ProcessingRequest_ResponseBody:
		ev.Kind, ev.Body, ev.EndOfStream = ResponseBody, r.ResponseBody.GetBody(), r.ResponseBody.GetEndOfStream()
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		ev.Kind = ResponseTrailers
	default:
		return ev, false
	}
	return ev, true
}

// hintsOf copies what the data plane says beside a message.
func hintsOf(req *extprocv3.ProcessingRequest) *Hints {
	h := Hints{
		Subset: req.GetMetadataContext().GetFilterMetadata()[SubsetNamespace].GetFields()[SubsetKey],
		Served: req.GetMetadataContext().GetFilterMetadata()[lbNamespace].GetFields()[servedKey].GetStringValue(),
	}
	for _, filter := range req.GetAttributes() {
		h.Upstream = cmp.Or(filter.GetFields()[upstreamAddress].GetStringValue(), h.Upstream)
	}
	if h == (Hints{}) {
		return nil
	}
	return &h
}

func requireSameHints(t *testing.T, want, got *Hints) {
	t.Helper()
	if got != nil && *got == (Hints{}) {
		got = nil
	}
	if want == nil || got == nil {
		require.Equal(t, want, got)
		return
	}
	require.True(t, proto.Equal(want.Subset, got.Subset))
	require.Equal(t, want.Subset == nil, got.Subset == nil)
	require.Equal(t, []string{want.Served, want.Upstream}, []string{got.Served, got.Upstream})
}

// TestRequestsAreReadAsProtobufReadsThem compares the codec with protobuf on
// random messages, cut anywhere.
func TestRequestsAreReadAsProtobufReadsThem(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	c := NewCodec(new(Pool), testConfig)
	for range 3000 {
		req := wiretest.RandomRequest(r)
		b, err := proto.Marshal(req)
		require.NoError(t, err)
		want, known := messageOf(req, "x-timeout")
		want.FullDuplex = req.GetProtocolConfig().GetRequestBodyMode() == extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED
		want.AnswerDuplex = req.GetProtocolConfig().GetResponseBodyMode() == extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED
		want.AnswerBodies = req.GetProtocolConfig().GetResponseBodyMode() != extprocfilterv3.ProcessingMode_NONE
		want.Hints = hintsOf(req)
		var in Message
		require.NoError(t, c.Unmarshal(wiretest.Pieces(r, b), &in))
		require.Equal(t, known, in.Kind != 0)
		if !known {
			continue
		}
		require.Equal(t, want.Kind, in.Kind)
		require.Equal(t, want.EndOfStream, in.EndOfStream)
		require.Equal(t, want.FullDuplex, in.FullDuplex)
		require.Equal(t, want.AnswerDuplex, in.AnswerDuplex)
		require.Equal(t, want.AnswerBodies, in.AnswerBodies)
		requireSameHints(t, want.Hints, in.Hints)
		require.Equal(t, want.Headers, in.Headers)
		require.True(t, bytes.Equal(want.Body, in.Body))
		if len(in.Body) > 0 {
			require.GreaterOrEqual(t, cap(in.Body)-len(in.Body), BodyRoom, "room for what is injected")
		}
		c.buffers.Return(in.Body)
	}
}

// FuzzRequests: no message makes the codec panic, or read another thing than protobuf
// does; what protobuf refuses is not compared.
func FuzzRequests(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		b, err := proto.Marshal(wiretest.RandomRequest(r))
		require.NoError(f, err)
		f.Add(b, uint64(len(b)))
	}
	f.Add([]byte{0x22, 0x05, 0x0a, 0xff, 0xff, 0xff, 0x7f}, uint64(3))
	for _, hint := range []string{`["10.0.0.1:80",1,null]`, `"10.0.0.1,[fd00::1]:80"`, `{"a":[]}`, "null", "true"} {
		var v structpb.Value
		require.NoError(f, v.UnmarshalJSON([]byte(hint)))
		req := wiretest.Plausible("/v1/completions", nil, nil)[0]
		req.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
			SubsetNamespace: {Fields: map[string]*structpb.Value{SubsetKey: &v}},
			lbNamespace:     {Fields: map[string]*structpb.Value{servedKey: structpb.NewStringValue("10.0.0.1:80")}},
		}}
		req.Attributes = map[string]*structpb.Struct{"envoy.filters.http.ext_proc": {Fields: map[string]*structpb.Value{upstreamAddress: &v}}}
		b, err := proto.Marshal(req)
		require.NoError(f, err)
		f.Add(b, uint64(len(b)))
		f.Add(append(b, b...), uint64(1))
		f.Add(bytes.ReplaceAll(b, []byte("10.0.0.1"), []byte("10.0.\xff.1")), uint64(2))
	}
	kinds := wiretest.Plausible("/v1/completions", []byte("{}"), []byte("1"))
	kinds[0].GetRequestHeaders().EndOfStream = true
	kinds[1].GetRequestBody().EndOfStream = false
	var two []byte // the last one counts
	for _, req := range kinds {
		b, err := proto.Marshal(req)
		require.NoError(f, err)
		two = append(two, b...)
		f.Add(two, uint64(2))
	}
	c := NewCodec(new(Pool), testConfig)
	f.Fuzz(func(t *testing.T, b []byte, cut uint64) { requireReadAlike(t, c, b, cut) })
}

func requireSame(t *testing.T, want *extprocv3.ProcessingResponse, got Reply) {
	t.Helper()
	var m extprocv3.ProcessingResponse
	require.NoError(t, proto.Unmarshal(got.buffers().Materialize(), &m))
	require.True(t, proto.Equal(want, &m), "want %v\ngot  %v", want, &m)
}

// TestAnswersAreWrittenAsProtobufWritesThem compares every message that is
// written by hand with its proto.
func TestAnswersAreWrittenAsProtobufWritesThem(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	pool := new(Pool)
	for i := range 500 {
		var set []Header
		for range r.IntN(24) {
			set = append(set, Header{"x-" + strings.Repeat("k", r.IntN(200)), strings.Repeat("v", r.IntN(300))})
		}
		var remove []string
		for range r.IntN(4) {
			remove = append(remove, "x-gone"+strings.Repeat("g", r.IntN(150)))
		}
		var metadata *structpb.Struct
		if i%2 == 0 {
			metadata = destinationMetadata("10.0.0.1:80")
			set = append(set, Header{prefill.HeaderDestination, "10.0.0.1:80"})
		}
		body := bytes.Repeat([]byte("b"), 1+r.IntN(100_000))
		e := &Route{Set: set, Remove: remove, Body: body}
		if i%3 == 0 {
			e.Token, e.NewRoute = strings.Repeat("t", 1+r.IntN(300)), r.IntN(2) == 0
			metadata = withToken(metadata, e.Token)
		}
		w := NewWriter(pool)
		requireSame(t, bufferedRouteOf(e, metadata), w.Route(e))
		e.Body = nil
		if len(set)+len(remove) > 0 || e.NewRoute {
			requireSame(t, bufferedRouteOf(e, metadata), w.Route(e))
			requireSame(t, streamedHeadersOf(e, metadata), w.RouteHeaders(e))
		}
		requireSame(t, relayOf(set), Relay(ResponseHeaders, set, nil, ""))
		for _, last := range []bool{false, true} {
			for _, piece := range [][]byte{body, nil} {
				requireSame(t, chunkOf(false, piece, last), chunkAnswer(RequestBody, pool.lend(piece), last))
				requireSame(t, chunkOf(true, piece, last), chunkAnswer(ResponseBody, pool.lend(piece), last))
			}
		}
	}
	for of := RequestHeaders; of < Malformed; of++ {
		requireSame(t, continueOf(of), Continue(of))
	}
}

// countingPool counts what comes back.
type countingPool struct {
	*Pool
	puts int
}

func (p *countingPool) Put(b *[]byte) {
	p.puts++
	p.Pool.Put(b)
}

// TestASplitBodyGoesBackToThePoolOnce sends a body in pieces as a full-duplex
// stream does.
func TestASplitBodyGoesBackToThePoolOnce(t *testing.T) {
	pool := &countingPool{Pool: new(Pool)}
	body := append(pool.Borrow(200_000), bytes.Repeat([]byte("b"), 200_000)...)
	rest := mem.NewBuffer(&body, pool)
	var whole []byte
	for rest.Len() > ChunkBytes {
		var piece mem.Buffer
		piece, rest = mem.SplitUnsafe(rest, ChunkBytes)
		whole = append(whole, piece.ReadOnlyData()...)
		piece.Free()
	}
	whole = append(whole, rest.ReadOnlyData()...)
	rest.Free()
	require.True(t, bytes.Equal(body, whole))
	require.Equal(t, 1, pool.puts)
}

// requireReadAlike holds what the codec reads of a message to what protobuf does.
func requireReadAlike(t *testing.T, c *Codec, b []byte, cut uint64) {
	var in Message
	data := wiretest.Pieces(rand.New(rand.NewPCG(cut, cut)), b)
	require.NoError(t, c.Unmarshal(data, &in))
	defer func() { c.buffers.Return(in.Body) }()
	var req extprocv3.ProcessingRequest
	err := proto.Unmarshal(b, &req)
	if err != nil || in.Kind == Malformed {
		return // text that is no UTF-8, which we do not look at; or groups, which nobody sends
	}
	want, known := messageOf(&req, "x-timeout")
	require.Equal(t, known, in.Kind != 0)
	requireSameConfig(t, &req, &in)
	if !known {
		return
	}
	require.Equal(t, want.Kind, in.Kind)
	require.Equal(t, want.EndOfStream, in.EndOfStream)
	require.True(t, bytes.Equal(want.Body, in.Body))
	require.Equal(t, want.Headers, in.Headers)
	if fieldsOf(b, fieldAttributes) <= 1 { // of several, which one counts is a matter of order
		requireSameHints(t, hintsOf(&req), in.Hints)
	}
}

// requireSameConfig compares what is said of bodies.
func requireSameConfig(t *testing.T, req *extprocv3.ProcessingRequest, ev *Message) {
	answers := req.GetProtocolConfig().GetResponseBodyMode()
	require.Equal(t, req.GetProtocolConfig().GetRequestBodyMode() == extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED, ev.FullDuplex)
	require.Equal(t, answers == extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED, ev.AnswerDuplex)
	require.Equal(t, answers != extprocfilterv3.ProcessingMode_NONE, ev.AnswerBodies)
}

// fieldsOf counts how often a message has a field.
func fieldsOf(b []byte, field protowire.Number) (n int) {
	_ = each(b, func(num protowire.Number, _ uint64, _ []byte) error {
		if num == field {
			n++
		}
		return nil
	})
	return n
}

// TestALargeMessageIsReadIntoItsOwnSize is the buffered body mode's way.
func TestALargeMessageIsReadIntoItsOwnSize(t *testing.T) {
	t.Parallel()
	const size = 10_000_000
	inner := protowire.AppendBytes(protowire.AppendTag(nil, fieldBody, protowire.BytesType), make([]byte, size))
	msg := protowire.AppendBytes(protowire.AppendTag(nil, fieldRequestBody, protowire.BytesType), inner)
	var in Message
	require.NoError(t, NewCodec(new(Pool), testConfig).Unmarshal(mem.BufferSlice{mem.SliceBuffer(msg)}, &in))
	require.Len(t, in.Body, size)
	require.GreaterOrEqual(t, cap(in.Body), size+BodyRoom)
	require.LessOrEqual(t, cap(in.Body), size*11/10)
}

// TestABodyIsEncodedUnlessItsCodingIsIdentity: each of several headers counts, and each coding in one.
func TestABodyIsEncodedUnlessItsCodingIsIdentity(t *testing.T) {
	for _, c := range []struct {
		values []string
		want   bool
	}{
		{nil, false},
		{[]string{""}, false},
		{[]string{"identity"}, false},
		{[]string{" Identity, identity,"}, false},
		{[]string{"gzip"}, true},
		{[]string{"GZIP"}, true},
		{[]string{"identity, br"}, true},
		{[]string{"zstd", "identity"}, true},
	} {
		m := &corev3.HeaderMap{}
		for _, v := range c.values {
			m.Headers = append(m.Headers, &corev3.HeaderValue{Key: "content-encoding", RawValue: []byte(v)})
		}
		var got Message
		raw, err := proto.Marshal(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{
			RequestHeaders: &extprocv3.HttpHeaders{Headers: m},
		}})
		require.NoError(t, err)
		require.NoError(t, NewCodec(new(Pool), testConfig).Unmarshal(mem.BufferSlice{mem.SliceBuffer(raw)}, &got))
		require.Equal(t, c.want, got.Headers.Encoded, "%q", c.values)
	}
}

// mutates is the proto of a change of headers; nil: there is none.
func mutates(set []Header, remove []string) *extprocv3.HeaderMutation {
	if len(set)+len(remove) == 0 {
		return nil
	}
	m := mutationOf(set)
	m.RemoveHeaders = remove
	return m
}
