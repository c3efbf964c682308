package extproc

import (
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/seed-60ae5743/baton/pkg/prefill"
)

// This file is the only one that builds protos; encode.go writes the frequent
// messages without them.

// chunkBytes is the largest piece of a streamed body: the portable size of the
// endpoint picker protocol's implementations.
const chunkBytes = 62_000

func mutationOf(set []kv, remove []string) *extprocv3.HeaderMutation {
	if len(set) == 0 && len(remove) == 0 {
		return nil
	}
	m := &extprocv3.HeaderMutation{RemoveHeaders: remove}
	for _, h := range set {
		m.SetHeaders = append(m.SetHeaders, &corev3.HeaderValueOption{
			Header:       &corev3.HeaderValue{Key: h.name, RawValue: []byte(h.value)},
			AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
		})
	}
	return m
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

// metadataOf repeats the destination as envoy.lb metadata: the endpoint picker
// protocol asks for both, and for them to be equal. It is written once for each
// address and shared.
func (srv *Server) metadataOf(set []kv) []byte {
	for i := range set {
		if set[i].name != prefill.HeaderDestination {
			continue
		}
		if strings.Contains(set[i].value, ",") { // there are too many lists to keep
			b, _ := proto.Marshal(&extprocv3.ProcessingResponse{DynamicMetadata: destinationMetadata(set[i].value)})
			return b
		}
		if m, ok := srv.metadata.Load(set[i].value); ok {
			return m.([]byte)
		}
		b, err := proto.Marshal(&extprocv3.ProcessingResponse{DynamicMetadata: destinationMetadata(set[i].value)})
		if err != nil {
			return nil // an address that is no UTF-8: there is none
		}
		srv.metadata.Store(set[i].value, b)
		return b
	}
	return nil
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

func destinationMetadata(address string) *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{
		"envoy.lb": structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
			prefill.HeaderDestination: structpb.NewStringValue(address),
		}}),
	}}
}
