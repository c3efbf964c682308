// Command picker is an endpoint picker that follows the Gateway API inference
// extension's protocol (GAIE proposal 004) and is as small as one can be. It
// reads each request's model, and in turn chooses a decode and a prefill worker
// that serve it, from a list of workers as the router reads it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/signal"
	"syscall"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	grpchealth "google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/seed-60ae5743/baton/pkg/discovery/record"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "picker:", err)
		os.Exit(1)
	}
}

func run() error {
	listen := flag.String("listen", "127.0.0.1:9002", "where Envoy asks; health is served there, too")
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
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	g := grpc.NewServer(grpc.MaxRecvMsgSize(math.MaxInt32))
	extprocv3.RegisterExternalProcessorServer(g, &server{picker: &picker{workers: workers}})
	healthv1.RegisterHealthServer(g, health())
	context.AfterFunc(ctx, g.Stop)
	return g.Serve(l)
}

// health says of each service that the protocol names that it serves: the list of
// workers has been read by now, and there is no other replica that could lead.
func health() *grpchealth.Server {
	h := grpchealth.NewServer()
	for _, name := range []string{"liveness", "readiness", extprocv3.ExternalProcessor_ServiceDesc.ServiceName} {
		h.SetServingStatus(name, healthv1.HealthCheckResponse_SERVING)
	}
	return h
}

type server struct {
	extprocv3.UnimplementedExternalProcessorServer
	picker *picker
}

// Process carries the messages of one request.
func (s *server) Process(g extprocv3.ExternalProcessor_ProcessServer) error {
	x := &exchange{choose: s.picker.choose}
	for {
		m, err := g.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		answers, err := x.take(m)
		if err != nil {
			return err
		}
		for _, a := range answers {
			if err := g.Send(a); err != nil {
				return err
			}
		}
	}
}
