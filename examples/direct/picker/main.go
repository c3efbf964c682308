// Command picker is another endpoint picker, as small as one can be: it speaks
// the Gateway API inference extension's endpoint picker protocol, and in turn
// chooses a prefill and a decode worker from the list that the router reads.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/seed-60ae5743/baton/pkg/discovery/record"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "picker:", err)
		os.Exit(1)
	}
}

func run() error {
	listen := flag.String("listen", "127.0.0.1:9003", "where Envoy asks")
	list := flag.String("workers", "", "the workers, as the router's discovery.file")
	flag.Parse()
	text, err := os.ReadFile(*list)
	if err != nil {
		return err
	}
	workers, err := record.ParseList(*list, text)
	if err != nil {
		return err
	}
	p := &picker{}
	for _, w := range workers {
		switch w.Role {
		case worker.Prefill:
			p.prefill = append(p.prefill, w.Endpoint.String())
		case worker.Decode:
			p.decode = append(p.decode, w.Endpoint.String())
		case worker.Aggregated:
		}
	}
	if len(p.prefill) == 0 || len(p.decode) == 0 {
		return fmt.Errorf("%s: expected prefill and decode workers", *list)
	}
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	g := grpc.NewServer()
	extprocv3.RegisterExternalProcessorServer(g, p)
	context.AfterFunc(ctx, g.Stop)
	return g.Serve(l)
}

// picker chooses in turn: the decode workers go round once for each prefill
// worker, so that every pair comes.
type picker struct {
	extprocv3.UnimplementedExternalProcessorServer
	prefill, decode []string
	turn            atomic.Uint64
}

// The headers by which the choice is told.
const (
	destination = "x-gateway-destination-endpoint" // endpoint picker protocol, decode
	prefiller   = "x-prefiller-host-port"          // llm-d's, prefill
)

// Process answers one request's messages. A streamed body is sent back as it
// comes, its headers first; a buffered one needs no answer but "go on".
func (p *picker) Process(s extprocv3.ExternalProcessor_ProcessServer) error {
	streamed := false
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if c := m.GetProtocolConfig(); c != nil {
			streamed = c.GetRequestBodyMode() == extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED
		}
		var answer *extprocv3.ProcessingResponse
		switch r := m.Request.(type) {
		case *extprocv3.ProcessingRequest_RequestHeaders:
			answer = p.choose()
		case *extprocv3.ProcessingRequest_RequestBody:
			answer = passOn(r.RequestBody, streamed)
		case *extprocv3.ProcessingRequest_RequestTrailers:
			answer = &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestTrailers{RequestTrailers: &extprocv3.TrailersResponse{}}}
		default:
			return fmt.Errorf("picker: %T was not asked for", r)
		}
		if err := s.Send(answer); err != nil {
			return err
		}
	}
}

func (p *picker) choose() *extprocv3.ProcessingResponse {
	n := p.turn.Add(1) - 1
	decode := p.decode[n%uint64(len(p.decode))]
	prefill := p.prefill[n/uint64(len(p.decode))%uint64(len(p.prefill))]
	set := func(name, value string) *corev3.HeaderValueOption {
		return &corev3.HeaderValueOption{
			Header:       &corev3.HeaderValue{Key: name, RawValue: []byte(value)},
			AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
		}
	}
	return &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{
			Response: &extprocv3.CommonResponse{HeaderMutation: &extprocv3.HeaderMutation{
				SetHeaders: []*corev3.HeaderValueOption{set(destination, decode), set(prefiller, prefill)},
			}},
		}},
		// The protocol wants the destination in both places, and equal.
		DynamicMetadata: &structpb.Struct{Fields: map[string]*structpb.Value{
			"envoy.lb": structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{destination: structpb.NewStringValue(decode)}}),
		}},
	}
}

func passOn(b *extprocv3.HttpBody, streamed bool) *extprocv3.ProcessingResponse {
	r := &extprocv3.BodyResponse{}
	if streamed {
		r.Response = &extprocv3.CommonResponse{BodyMutation: &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_StreamedResponse{
			StreamedResponse: &extprocv3.StreamedBodyResponse{Body: b.GetBody(), EndOfStream: b.GetEndOfStream()},
		}}}
	}
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: r}}
}
