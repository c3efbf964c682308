// Command nothing is the yardstick of `make bench`: an external-processing
// server in Go that decides nothing. It reads every message Baton reads, sends
// every kind of answer Baton sends, always the same workers, and returns the
// body as it came wherever Baton has to return one. What Baton costs beyond it
// is what deciding costs.
package main

import (
	"flag"
	"fmt"
	"math"
	"net"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "nothing:", err)
		os.Exit(1)
	}
}

func run() error {
	socket := flag.String("socket", "", "unix socket to listen on")
	decode := flag.String("decode", "", "ip:port of the decode worker of every request")
	prefill := flag.String("prefill", "", "ip:port of the prefill worker; empty: no prefill leg")
	body := flag.Bool("return-body", true, "send the body back where a field would be injected")
	stats := flag.String("stats", "", "file to write allocation totals to on SIGUSR1")
	flag.Parse()
	_ = os.Remove(*socket)
	l, err := net.Listen("unix", *socket)
	if err != nil {
		return err
	}
	srv := grpc.NewServer(grpc.MaxRecvMsgSize(math.MaxInt32), grpc.InitialWindowSize(16<<20), grpc.InitialConnWindowSize(64<<20),
		grpc.MaxConcurrentStreams(math.MaxUint32))
	extprocv3.RegisterExternalProcessorServer(srv, &nothing{decode: *decode, prefill: *prefill, body: *body})
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt, syscall.SIGUSR1)
	go func() {
		for s := range signals {
			if s == syscall.SIGUSR1 {
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				tmp := *stats + ".tmp"
				_ = os.WriteFile(tmp, fmt.Appendf(nil, "%d %d\n", m.TotalAlloc, m.Mallocs), 0o600)
				_ = os.Rename(tmp, *stats)
				continue
			}
			srv.Stop()
		}
	}()
	return srv.Serve(l)
}

type nothing struct {
	extprocv3.UnimplementedExternalProcessorServer
	decode, prefill string
	body            bool
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

func (n *nothing) Process(s extprocv3.ExternalProcessor_ProcessServer) error {
	md, _ := metadata.FromIncomingContext(s.Context())
	leg := len(md.Get("x-baton-filter")) > 0 && md.Get("x-baton-filter")[0] == "prefill"
	pairs := []string{"x-gateway-destination-endpoint", n.decode}
	if n.prefill != "" {
		pairs = append(pairs, "x-prefill-cluster", "prefill_leg")
	}
	if leg {
		pairs = []string{"x-prefill-destination-endpoint", n.prefill}
	}
	duplex := false
	var chunks [][]byte
	for {
		req, err := s.Recv()
		if err != nil {
			return nil
		}
		if c := req.GetProtocolConfig(); c != nil {
			duplex = c.RequestBodyMode == extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED
		}
		var out []*extprocv3.ProcessingResponse
		switch r := req.Request.(type) {
		case *extprocv3.ProcessingRequest_RequestHeaders:
			if !duplex {
				out = append(out, &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{}}})
			}
		case *extprocv3.ProcessingRequest_RequestBody:
			if duplex {
				chunks = append(chunks, r.RequestBody.Body)
				if r.RequestBody.EndOfStream {
					out = n.duplexBody(chunks, pairs)
				}
				break
			}
			c := &extprocv3.CommonResponse{}
			if n.body && (n.prefill != "" || leg) {
				pairs = append(pairs, "content-length", strconv.Itoa(len(r.RequestBody.Body)))
				c.BodyMutation = &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_Body{Body: r.RequestBody.Body}}
			}
			c.HeaderMutation = set(pairs...)
			out = append(out, &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{Response: c}}})
		case *extprocv3.ProcessingRequest_ResponseHeaders:
			if os.Getenv("NOTHING_TRACE") != "" {
				for _, h := range r.ResponseHeaders.Headers.Headers {
					fmt.Fprintln(os.Stderr, leg, "resp", h.Key, string(h.RawValue))
				}
			}
			out = append(out, &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{}}})
		case *extprocv3.ProcessingRequest_ResponseBody:
			b := &extprocv3.BodyResponse{}
			if duplex {
				b.Response = streamed(r.ResponseBody.Body, r.ResponseBody.EndOfStream)
			}
			out = append(out, &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: b}})
		case *extprocv3.ProcessingRequest_ResponseTrailers:
			out = append(out, &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseTrailers{ResponseTrailers: &extprocv3.TrailersResponse{}}})
		}
		for _, o := range out {
			if err := s.Send(o); err != nil {
				return nil
			}
		}
	}
}

func streamed(b []byte, end bool) *extprocv3.CommonResponse {
	return &extprocv3.CommonResponse{BodyMutation: &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_StreamedResponse{
		StreamedResponse: &extprocv3.StreamedBodyResponse{Body: b, EndOfStream: end},
	}}}
}

func (n *nothing) duplexBody(chunks [][]byte, pairs []string) []*extprocv3.ProcessingResponse {
	out := []*extprocv3.ProcessingResponse{{Response: &extprocv3.ProcessingResponse_RequestHeaders{
		RequestHeaders: &extprocv3.HeadersResponse{Response: &extprocv3.CommonResponse{HeaderMutation: set(pairs...)}},
	}}}
	const piece = 62_000
	for i, c := range chunks {
		for len(c) > piece {
			out = append(out, body(c[:piece], false))
			c = c[piece:]
		}
		out = append(out, body(c, i == len(chunks)-1))
	}
	return out
}

func body(b []byte, end bool) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{Response: streamed(b, end)}}}
}

