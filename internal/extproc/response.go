package extproc

import (
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/seed-60ae5743/baton/pkg/prefill"
)

// This file is the only one that builds protos.

// chunkBytes is the largest piece of a streamed body: the portable size of the
// endpoint picker protocol's implementations.
const chunkBytes = 62_000

// setHeader is the protos of one header, allocated together.
type setHeader struct {
	option corev3.HeaderValueOption
	value  corev3.HeaderValue
}

func mutationOf(set []kv, remove []string) *extprocv3.HeaderMutation {
	if len(set) == 0 && len(remove) == 0 {
		return nil
	}
	size := 0
	for i := range set {
		size += len(set[i].value)
	}
	slab := make([]setHeader, len(set))
	list := make([]*corev3.HeaderValueOption, len(set))
	text := make([]byte, 0, size)
	for i := range set {
		h := &slab[i]
		at := len(text)
		text = append(text, set[i].value...)
		h.value.Key, h.value.RawValue = set[i].name, text[at:len(text):len(text)]
		h.option.Header = &h.value
		h.option.AppendAction = corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD
		list[i] = &h.option
	}
	return &extprocv3.HeaderMutation{SetHeaders: list, RemoveHeaders: remove}
}

func continueOf(of message) *extprocv3.ProcessingResponse {
	switch of {
	case ofRequestHeaders:
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{}}}
	case ofRequestBody:
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{}}}
	case ofRequestTrailers:
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestTrailers{RequestTrailers: &extprocv3.TrailersResponse{}}}
	case ofResponseHeaders:
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{}}}
	case ofResponseBody:
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: &extprocv3.BodyResponse{}}}
	default:
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseTrailers{ResponseTrailers: &extprocv3.TrailersResponse{}}}
	}
}

// bufferedRouteOf answers the buffered body with headers and body in one.
func bufferedRouteOf(e *effect, metadata *structpb.Struct) *extprocv3.ProcessingResponse {
	c := &extprocv3.CommonResponse{HeaderMutation: mutationOf(e.set, e.remove)}
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
			Response: &extprocv3.CommonResponse{HeaderMutation: mutationOf(e.set, e.remove)},
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

// metadataOf repeats the destination as envoy.lb metadata: the endpoint picker
// protocol asks for both, and for them to be equal. One is made for each
// address and shared: nobody writes to it.
func (srv *Server) metadataOf(set []kv) *structpb.Struct {
	for i := range set {
		if set[i].name != prefill.HeaderDestination {
			continue
		}
		if m, ok := srv.metadata.Load(set[i].value); ok {
			return m.(*structpb.Struct)
		}
		m := &structpb.Struct{Fields: map[string]*structpb.Value{
			"envoy.lb": structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
				prefill.HeaderDestination: structpb.NewStringValue(set[i].value),
			}}),
		}}
		srv.metadata.Store(set[i].value, m)
		return m
	}
	return nil
}

func relayOf(set []kv) *extprocv3.ProcessingResponse {
	h := &extprocv3.HeadersResponse{}
	if m := mutationOf(set, nil); m != nil {
		h.Response = &extprocv3.CommonResponse{HeaderMutation: m}
	}
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: h}}
}

func immediateResponseOf(im *immediate) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ImmediateResponse{
		ImmediateResponse: &extprocv3.ImmediateResponse{
			Status:  &typev3.HttpStatus{Code: typev3.StatusCode(im.status)},
			Headers: mutationOf(im.set, nil),
			Body:    im.body,
			Details: im.detail,
		},
	}}
}

func extendOf(d time.Duration) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{OverrideMessageTimeout: durationpb.New(max(d, time.Millisecond))}
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
			dst = &h.contentLength
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
			continue
		}
		if kv.RawValue != nil {
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
