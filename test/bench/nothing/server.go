package main

import (
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// piece is the largest chunk of a streamed body, as the plugin sends it.
const piece = 62_000

type nothing struct {
	extprocv3.UnimplementedExternalProcessorServer
	decode, prefill string
	body            bool
}

// exchange is one stream: one leg of one request. Owned by its goroutine.
type exchange struct {
	*nothing
	leg    bool // the prefill leg
	duplex bool
	chunks [][]byte
	out    []*extprocv3.ProcessingResponse // what is to be sent next
}

// Process serves one stream.
func (n *nothing) Process(s extprocv3.ExternalProcessor_ProcessServer) error {
	md, _ := metadata.FromIncomingContext(s.Context())
	filter := md.Get("x-baton-filter")
	e := &exchange{nothing: n, leg: len(filter) > 0 && filter[0] == "prefill"}
	for {
		req, err := s.Recv()
		if err != nil {
			return nil // Envoy has left; a failed stream is no news either
		}
		if c := req.GetProtocolConfig(); c != nil {
			e.duplex = c.RequestBodyMode == extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED
		}
		e.out = e.out[:0]
		e.answer(req)
		for _, o := range e.out {
			if err := s.Send(o); err != nil {
				return nil
			}
		}
	}
}

// answer appends to e.out what lets the request go on.
func (e *exchange) answer(req *extprocv3.ProcessingRequest) {
	switch r := req.Request.(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		if !e.duplex { // in full duplex the headers wait for the body
			e.out = append(e.out, &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{}}})
		}
	case *extprocv3.ProcessingRequest_RequestBody:
		e.requestBody(r.RequestBody)
	case *extprocv3.ProcessingRequest_RequestTrailers:
		e.out = append(e.out, &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestTrailers{RequestTrailers: &extprocv3.TrailersResponse{}}})
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		e.out = append(e.out, &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{}}})
	case *extprocv3.ProcessingRequest_ResponseBody:
		b := &extprocv3.BodyResponse{}
		if e.duplex {
			b.Response = streamed(r.ResponseBody.Body, r.ResponseBody.EndOfStream)
		}
		e.out = append(e.out, &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: b}})
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		e.out = append(e.out, &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseTrailers{ResponseTrailers: &extprocv3.TrailersResponse{}}})
	}
}

// requestBody keeps a piece of a streamed body; a whole body is answered.
func (e *exchange) requestBody(b *extprocv3.HttpBody) {
	if e.duplex {
		e.chunks = append(e.chunks, b.Body)
		if b.EndOfStream {
			e.duplexBody()
		}
		return
	}
	pairs := e.destination()
	c := &extprocv3.CommonResponse{}
	if e.body && (e.prefill != "" || e.leg) {
		pairs = append(pairs, "content-length", strconv.Itoa(len(b.Body)))
		c.BodyMutation = &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_Body{Body: b.Body}}
	}
	c.HeaderMutation = set(pairs...)
	e.out = append(e.out, &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{Response: c}}})
}

// duplexBody answers the headers, and the whole body in portable pieces.
func (e *exchange) duplexBody() {
	e.out = append(e.out, &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestHeaders{
		RequestHeaders: &extprocv3.HeadersResponse{Response: &extprocv3.CommonResponse{HeaderMutation: set(e.destination()...)}},
	}})
	for i, c := range e.chunks {
		for len(c) > piece {
			e.out = append(e.out, body(c[:piece], false))
			c = c[piece:]
		}
		e.out = append(e.out, body(c, i == len(e.chunks)-1))
	}
}

// destination returns the headers that route this leg, as name, value, ….
func (e *exchange) destination() []string {
	switch {
	case e.leg:
		return []string{"x-prefill-destination-endpoint", e.prefill}
	case e.prefill != "":
		return []string{"x-gateway-destination-endpoint", e.decode, "x-prefill-cluster", "prefill_leg"}
	default:
		return []string{"x-gateway-destination-endpoint", e.decode}
	}
}

func set(pairs ...string) *extprocv3.HeaderMutation {
	m := &extprocv3.HeaderMutation{}
	for i := 0; i < len(pairs); i += 2 {
		m.SetHeaders = append(m.SetHeaders, &corev3.HeaderValueOption{
			Header:       &corev3.HeaderValue{Key: pairs[i], RawValue: []byte(pairs[i+1])},
			AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
		})
	}
	return m
}

func streamed(b []byte, end bool) *extprocv3.CommonResponse {
	return &extprocv3.CommonResponse{BodyMutation: &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_StreamedResponse{
		StreamedResponse: &extprocv3.StreamedBodyResponse{Body: b, EndOfStream: end},
	}}}
}

func body(b []byte, end bool) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{Response: streamed(b, end)}}}
}

// accessLog takes what Envoy's access log sends and forgets it.
type accessLog struct {
	accesslogv3.UnimplementedAccessLogServiceServer
}

// StreamAccessLogs reads until Envoy leaves.
func (accessLog) StreamAccessLogs(s grpc.ClientStreamingServer[accesslogv3.StreamAccessLogsMessage, accesslogv3.StreamAccessLogsResponse]) error {
	for {
		if _, err := s.Recv(); err != nil {
			return nil
		}
	}
}
