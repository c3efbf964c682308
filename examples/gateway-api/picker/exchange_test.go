package main

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/stretchr/testify/require"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/seed-60ae5743/baton/pkg/discovery/record"
)

// TestFrames runs testdata: frames of one request in, frames out.
//
//	workers                 the list, as discovery.file
//	stream                  one request; a line of input is a frame:
//	  headers [end] [mode=M] [hint=JSON]
//	  body N|TEXT [end]     N bytes, or this text, which has no blanks
//	  trailers
//	  response-headers [end] | response-body N|TEXT [end] | response-trailers
func TestFrames(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		p := &picker{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "workers" {
				var err error
				p.workers, err = record.ParseList("workers.yaml", []byte(d.Input))
				require.NoError(t, err)
				return ""
			}
			require.Equal(t, "stream", d.Cmd)
			var out strings.Builder
			var asked, passed []byte
			x := &exchange{choose: p.choose}
			for line := range strings.Lines(d.Input) {
				fmt.Fprintln(&out, ">", strings.TrimSpace(line))
				m := frame(t, strings.Fields(line))
				asked = append(asked, m.GetRequestBody().GetBody()...)
				answers, err := x.take(m)
				for _, a := range answers {
					passed = append(passed, a.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetBody()...)
					fmt.Fprintln(&out, told(t, a))
				}
				if err != nil {
					fmt.Fprintln(&out, "error:", err)
					break
				}
			}
			if x.chosen && !x.over {
				require.Equal(t, asked, passed, "the body passes unchanged")
			}
			return out.String()
		})
	})
}

// TestHealthOfEachServiceOfTheProtocol is that it serves; of another there is none.
func TestHealthOfEachServiceOfTheProtocol(t *testing.T) {
	h := health()
	for _, name := range []string{"liveness", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor"} {
		r, err := h.Check(t.Context(), &healthv1.HealthCheckRequest{Service: name})
		require.NoError(t, err)
		require.Equal(t, healthv1.HealthCheckResponse_SERVING, r.Status)
	}
	_, err := h.Check(t.Context(), &healthv1.HealthCheckRequest{Service: "another"})
	require.Error(t, err)
}

func frame(t *testing.T, words []string) *extprocv3.ProcessingRequest {
	m := &extprocv3.ProcessingRequest{}
	h, b := &extprocv3.HttpHeaders{}, &extprocv3.HttpBody{}
	for i, w := range words[1:] {
		key, value, _ := strings.Cut(w, "=")
		n, err := strconv.Atoi(w)
		switch {
		case w == "end":
			h.EndOfStream, b.EndOfStream = true, true
		case key == "mode":
			m.ProtocolConfig = &extprocv3.ProtocolConfiguration{RequestBodyMode: extprocfilterv3.ProcessingMode_BodySendMode(extprocfilterv3.ProcessingMode_BodySendMode_value[value])}
		case key == "hint":
			v := &structpb.Value{}
			require.NoError(t, protojson.Unmarshal([]byte(value), v))
			m.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
				subsetNamespace: {Fields: map[string]*structpb.Value{subsetKey: v}},
			}}
		case i == 0 && err == nil:
			for b.Body = make([]byte, n); n > 0; n-- {
				b.Body[n-1] = byte(n % 251)
			}
		case i == 0:
			b.Body = []byte(w)
		default:
			require.Fail(t, "no such word", w)
		}
	}
	switch words[0] {
	case "headers":
		m.Request = &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: h}
	case "body":
		m.Request = &extprocv3.ProcessingRequest_RequestBody{RequestBody: b}
	case "trailers":
		m.Request = &extprocv3.ProcessingRequest_RequestTrailers{RequestTrailers: &extprocv3.HttpTrailers{}}
	case "response-headers":
		m.Request = &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: h}
	case "response-body":
		m.Request = &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: b}
	case "response-trailers":
		m.Request = &extprocv3.ProcessingRequest_ResponseTrailers{ResponseTrailers: &extprocv3.HttpTrailers{}}
	case "nothing":
	default:
		require.Fail(t, "no such frame", words[0])
	}
	return m
}

// told is an answer in one line.
func told(t *testing.T, a *extprocv3.ProcessingResponse) string {
	switch r := a.Response.(type) {
	case *extprocv3.ProcessingResponse_RequestHeaders:
		m := r.RequestHeaders.GetResponse().GetHeaderMutation()
		out := "headers"
		for _, h := range m.GetSetHeaders() {
			out += " " + h.Header.Key + "=" + string(h.Header.RawValue)
		}
		for _, name := range m.GetRemoveHeaders() {
			out += " -" + name
		}
		return out + " metadata=" + a.DynamicMetadata.Fields[destinationNamespace].GetStructValue().Fields[destination].GetStringValue()
	case *extprocv3.ProcessingResponse_RequestBody:
		return streamed("body", r.RequestBody)
	case *extprocv3.ProcessingResponse_RequestTrailers:
		return "trailers"
	case *extprocv3.ProcessingResponse_ResponseHeaders:
		return "response-headers"
	case *extprocv3.ProcessingResponse_ResponseBody:
		return streamed("response-body", r.ResponseBody)
	case *extprocv3.ProcessingResponse_ResponseTrailers:
		return "response-trailers"
	case *extprocv3.ProcessingResponse_ImmediateResponse:
		i := r.ImmediateResponse
		return fmt.Sprintf("immediate %d %s", i.Status.Code, i.Body)
	}
	require.Fail(t, "no such answer", "%T", a.Response)
	return ""
}

func streamed(what string, b *extprocv3.BodyResponse) string {
	s := b.GetResponse().GetBodyMutation().GetStreamedResponse()
	out := fmt.Sprintf("%s %d", what, len(s.GetBody()))
	if s.GetEndOfStream() {
		out += " end"
	}
	return out
}
