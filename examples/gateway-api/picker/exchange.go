package main

import (
	"encoding/json"
	"fmt"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

// The protocol's names.
const (
	destination          = "x-gateway-destination-endpoint" // a header, and a key of the metadata
	destinationNamespace = "envoy.lb"
	subsetNamespace      = "envoy.lb.subset_hint"
	subsetKey            = "x-gateway-destination-endpoint-subset"

	// prefiller is llm-d's: the protocol has no word for a prefill worker.
	prefiller = "x-prefiller-host-port"
)

const (
	maxBody  = 64 << 20
	maxChunk = 62_000 // some proxies take no more than 64 KiB in one message
)

// exchange is the messages of one request. Bodies are streamed, and the order of
// the protocol is kept: the request is read to its end, for the model is in it;
// then go the headers with the destination, the body in pieces, the trailers.
// Not safe for concurrent use.
type exchange struct {
	choose func(model string, s *subset) (choice, bool)

	subset *subset
	body   []byte
	chosen bool // the request has been answered; a second end of it is none
	over   bool // refused: nothing may follow
}

// end is what the request ends with.
type end int

const (
	headersEnd end = iota
	bodyEnd
	trailersEnd
)

// take answers one message. What it returns is due in this order.
func (x *exchange) take(m *extprocv3.ProcessingRequest) ([]*extprocv3.ProcessingResponse, error) {
	if x.over {
		return nil, nil
	}
	if c := m.GetProtocolConfig(); c != nil && c.GetRequestBodyMode() != extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED {
		return nil, status.Errorf(codes.FailedPrecondition, "request_body_mode is %s: the protocol wants FULL_DUPLEX_STREAMED", c.GetRequestBodyMode())
	}
	out := &extprocv3.ProcessingResponse{}
	switch r := m.GetRequest().(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		x.subset = subsetOf(m.GetMetadataContext().GetFilterMetadata())
		if !r.RequestHeaders.GetEndOfStream() {
			return nil, nil // the model is in the body
		}
		return x.decide(headersEnd), nil
	case *extprocv3.ProcessingRequest_RequestBody:
		return x.read(r.RequestBody), nil
	case *extprocv3.ProcessingRequest_RequestTrailers:
		out.Response = &extprocv3.ProcessingResponse_RequestTrailers{RequestTrailers: &extprocv3.TrailersResponse{}}
		if x.chosen {
			return []*extprocv3.ProcessingResponse{out}, nil
		}
		answers := x.decide(trailersEnd)
		if !x.over {
			answers = append(answers, out)
		}
		return answers, nil

	// Of the answer nothing is wanted: it goes back as it comes. A picker that keeps
	// load would read here who has served, in the metadata of destinationNamespace.
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		out.Response = &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{}}
	case *extprocv3.ProcessingRequest_ResponseBody:
		out.Response = &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: piece(r.ResponseBody.GetBody(), r.ResponseBody.GetEndOfStream())}
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		out.Response = &extprocv3.ProcessingResponse_ResponseTrailers{ResponseTrailers: &extprocv3.TrailersResponse{}}
	default:
		return nil, status.Errorf(codes.InvalidArgument, "%T is not of the protocol", r)
	}
	return []*extprocv3.ProcessingResponse{out}, nil
}

// read takes a piece of the request's body. Some Envoys send the end of a large
// one twice (envoyproxy/envoy#46237).
func (x *exchange) read(b *extprocv3.HttpBody) []*extprocv3.ProcessingResponse {
	if x.chosen {
		return nil
	}
	if len(x.body)+len(b.GetBody()) > maxBody {
		return x.refuse(typev3.StatusCode_PayloadTooLarge, "body_too_large", "The request body is too large.")
	}
	x.body = append(x.body, b.GetBody()...)
	if !b.GetEndOfStream() {
		return nil
	}
	return x.decide(bodyEnd)
}

// decide answers the whole request, which has been read to its end.
func (x *exchange) decide(by end) []*extprocv3.ProcessingResponse {
	x.chosen = true
	var request struct{ Model string }
	_ = json.Unmarshal(x.body, &request) // what is wrong with a body, the router behind says
	c, ok := x.choose(request.Model, x.subset)
	if !ok {
		return x.refuse(typev3.StatusCode_ServiceUnavailable, "no_endpoint", "No endpoint can take the request.")
	}
	out := []*extprocv3.ProcessingResponse{headers(c)}
	chunks := slices.Collect(slices.Chunk(x.body, maxChunk))
	if by == bodyEnd && len(chunks) == 0 {
		chunks = [][]byte{nil} // an empty body has an end, too
	}
	for i, b := range chunks {
		out = append(out, &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{
			RequestBody: piece(b, by == bodyEnd && i == len(chunks)-1),
		}})
	}
	x.body = nil
	return out
}

// headers tells the destination in both places, equal, as the protocol wants it.
func headers(c choice) *extprocv3.ProcessingResponse {
	set := []*corev3.HeaderValueOption{header(destination, c.decode)}
	mutation := &extprocv3.HeaderMutation{RemoveHeaders: []string{prefiller}} // a client's own is nobody's word
	if c.prefill != "" {
		set, mutation.RemoveHeaders = append(set, header(prefiller, c.prefill)), nil
	}
	mutation.SetHeaders = set
	return &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{
			Response: &extprocv3.CommonResponse{HeaderMutation: mutation, ClearRouteCache: true},
		}},
		DynamicMetadata: &structpb.Struct{Fields: map[string]*structpb.Value{
			destinationNamespace: structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
				destination: structpb.NewStringValue(c.decode),
			}}),
		}},
	}
}

func header(name, value string) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{
		Header:       &corev3.HeaderValue{Key: name, RawValue: []byte(value)},
		AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}
}

// piece is a part of a body on its way.
func piece(b []byte, end bool) *extprocv3.BodyResponse {
	return &extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{BodyMutation: &extprocv3.BodyMutation{
		Mutation: &extprocv3.BodyMutation_StreamedResponse{StreamedResponse: &extprocv3.StreamedBodyResponse{Body: b, EndOfStream: end}},
	}}}
}

// refuse ends the request; nothing may be sent after it.
func (x *exchange) refuse(code typev3.StatusCode, name, message string) []*extprocv3.ProcessingResponse {
	x.over = true
	return []*extprocv3.ProcessingResponse{{Response: &extprocv3.ProcessingResponse_ImmediateResponse{
		ImmediateResponse: &extprocv3.ImmediateResponse{
			Status:  &typev3.HttpStatus{Code: code},
			Headers: &extprocv3.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{header("content-type", "application/json")}},
			Body:    fmt.Appendf(nil, `{"error":{"message":%q,"type":"picker_error","param":null,"code":%q}}`, message, name),
			Details: "picker_" + name,
		},
	}}}
}
