package wire

import (
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

// This file is the only one that builds protos. encode.go writes the frequent messages
// without them.

// replyOf writes one of the rare replies. Its content is ours: if it cannot be written,
// that is a defect.
func replyOf(r *extprocv3.ProcessingResponse) Reply {
	b, err := proto.Marshal(r)
	if err != nil {
		panic("wire: our own message cannot be written: " + err.Error())
	}
	return Reply{head: b}
}

// Extend extends the time for which Envoy waits for the reply to its message.
func Extend(d time.Duration) Reply {
	return replyOf(&extprocv3.ProcessingResponse{OverrideMessageTimeout: durationpb.New(max(d, time.Millisecond))})
}

// Show answers response headers: they wait until Envoy has sent the whole body here, too.
// Envoy does that only where the filter has allow_mode_override and bodies of requests are
// buffered (seen on 1.36 and 1.40).
func Show() Reply {
	return replyOf(&extprocv3.ProcessingResponse{
		Response:     &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{}},
		ModeOverride: &extprocfilterv3.ProcessingMode{ResponseBodyMode: extprocfilterv3.ProcessingMode_BUFFERED, ResponseTrailerMode: extprocfilterv3.ProcessingMode_SEND},
	})
}

// Immediate is an answer that Baton gives in place of a worker.
type Immediate struct {
	Status  int
	Headers []Header
	Body    []byte
	Detail  string // for Envoy's access log
}

// Reply ends the exchange: nothing can be sent after it.
func (im *Immediate) Reply() Reply {
	return replyOf(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ImmediateResponse{
		ImmediateResponse: &extprocv3.ImmediateResponse{
			Status:  &typev3.HttpStatus{Code: typev3.StatusCode(im.Status)},
			Headers: mutationOf(im.Headers),
			Body:    im.Body,
			Details: im.Detail,
		},
	}})
}

// ChunkBytes is the largest piece of a streamed body: the size that all implementations
// of the endpoint picker protocol take.
const ChunkBytes = 62_000

func mutationOf(set []Header) *extprocv3.HeaderMutation {
	m := new(extprocv3.HeaderMutation)
	for _, h := range set {
		m.SetHeaders = append(m.SetHeaders, &corev3.HeaderValueOption{
			Header:       &corev3.HeaderValue{Key: h.Name, RawValue: []byte(h.Value)},
			AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
		})
	}
	return m
}
