// Package wiretest makes messages as a data plane sends them, for tests of code that
// reads them.
//
// Contract. Messages are protobuf's own: tests compare with them what is read by hand.
// All that is random comes from the source that is passed in, so that a seed repeats it.
//
// What it does not do: it does not import internal/wire, whose tests use it, and
// does not say what the messages mean.
package wiretest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	datav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/seed-60ae5743/baton/pkg/prefill"
)

// Names of the endpoint picker protocol.
const (
	subsetNamespace = "envoy.lb.subset_hint"
	subsetKey       = "x-gateway-destination-endpoint-subset"
	selection       = "test-epp-endpoint-selection"
	lbNamespace     = "envoy.lb"
	servedKey       = "x-gateway-destination-endpoint-served"
	upstreamAddress = "upstream.address"
)

// Pieces cuts a message anywhere, as gRPC may.
func Pieces(r *rand.Rand, b []byte) mem.BufferSlice {
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
		":method", ":path", ":status", "content-length", "content-encoding", "x-request-id", "traceparent", "tracestate", "x-envoy-attempt-count",
		prefill.HeaderStart, prefill.HeaderLeg, prefill.HeaderDebug, prefill.HeaderLocalReply, "x-timeout", "x-worker-instance-id", "x-prefiller-host-port", "cookie", "x-other", "",
		prefill.HeaderPrefillCluster, "x-baton-other", selection,
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

// RandomRequest returns a message of any kind, or of none, with or without metadata and
// attributes.
func RandomRequest(r *rand.Rand) *extprocv3.ProcessingRequest {
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
		names := []string{"a", subsetKey, servedKey, upstreamAddress}
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
		req.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"x": some(), lbNamespace: some(), subsetNamespace: some()}}
	}
	return req
}

// Plausible returns the messages of one request, in their order.
func Plausible(path string, body, answer []byte) []*extprocv3.ProcessingRequest {
	return []*extprocv3.ProcessingRequest{
		{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: HeaderMap(":method", "POST", ":path", path)}}},
		RequestBody(string(body)),
		ResponseHeaders("200"),
		{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{Body: answer, EndOfStream: true}}},
	}
}

// HeaderMap makes the headers of a message from pairs of name and value.
func HeaderMap(pairs ...string) *corev3.HeaderMap {
	m := &corev3.HeaderMap{}
	for i := 0; i < len(pairs); i += 2 {
		m.Headers = append(m.Headers, &corev3.HeaderValue{Key: pairs[i], RawValue: []byte(pairs[i+1])})
	}
	return m
}

// Post makes the headers of a request, with those in pairs of name and value. The filter
// buffers its body.
func Post(path string, pairs ...string) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{
		ProtocolConfig: &extprocv3.ProtocolConfiguration{RequestBodyMode: extprocfilterv3.ProcessingMode_BUFFERED},
		Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{
			Headers: HeaderMap(append([]string{":method", "POST", ":path", path}, pairs...)...),
		}},
	}
}

// RequestBody makes the whole body of a request.
func RequestBody(body string) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{
		Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: []byte(body), EndOfStream: true}},
	}
}

// ResponseHeaders makes the headers of an answer, with those in pairs of name and value.
func ResponseHeaders(status string, pairs ...string) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{
		Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{
			Headers: HeaderMap(append([]string{":status", status}, pairs...)...),
		}},
	}
}

// SetHeaders returns the headers that m sets, by name.
func SetHeaders(m *extprocv3.HeaderMutation) map[string]string {
	out := make(map[string]string)
	for _, h := range m.GetSetHeaders() {
		out[h.GetHeader().GetKey()] = string(h.GetHeader().GetRawValue())
	}
	return out
}

// Logs makes a message of an access log from entries.
func Logs(entries ...*datav3.HTTPAccessLogEntry) *accesslogv3.StreamAccessLogsMessage {
	return &accesslogv3.StreamAccessLogsMessage{LogEntries: &accesslogv3.StreamAccessLogsMessage_HttpLogs{
		HttpLogs: &accesslogv3.StreamAccessLogsMessage_HTTPAccessLogEntries{LogEntry: entries},
	}}
}

// Entry makes an entry of an access log about an attempt whose answer has some bytes.
func Entry(of datav3.AccessLogType, attempt string) *datav3.HTTPAccessLogEntry {
	return &datav3.HTTPAccessLogEntry{
		CommonProperties: &datav3.AccessLogCommon{AccessLogType: of},
		Request:          &datav3.HTTPRequestProperties{RequestHeaders: map[string]string{prefill.HeaderAttempt: attempt}, UpstreamHeaderBytesSent: 9},
		Response:         &datav3.HTTPResponseProperties{ResponseBodyBytes: 9},
	}
}
