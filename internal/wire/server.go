package wire

import (
	"context"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
)

// Register adds Envoy's two services to g, a server with a Codec. Each stream of the
// external processor is passed to process, each stream of the access log to logs. A
// stream ends when its handler returns, with the error that the handler returns.
func Register(g grpc.ServiceRegistrar, process func(*Stream) error, logs func(*Logs) error) {
	extprocv3.RegisterExternalProcessorServer(g, &processor{process: process})
	accesslogv3.RegisterAccessLogServiceServer(g, &accessLog{logs: logs})
}

// ProcessorName returns the name of the external processor's service, under which probes
// may ask for its health.
func ProcessorName() string { return extprocv3.ExternalProcessor_ServiceDesc.ServiceName }

type processor struct {
	extprocv3.UnimplementedExternalProcessorServer
	process func(*Stream) error
}

// Process implements extprocv3.ExternalProcessorServer.
func (p *processor) Process(g extprocv3.ExternalProcessor_ProcessServer) error {
	return p.process(&Stream{grpc: g})
}

type accessLog struct {
	accesslogv3.UnimplementedAccessLogServiceServer
	logs func(*Logs) error
}

// StreamAccessLogs implements accesslogv3.AccessLogServiceServer.
func (a *accessLog) StreamAccessLogs(g accesslogv3.AccessLogService_StreamAccessLogsServer) error {
	return a.logs(&Logs{grpc: g})
}

// Stream is one stream of the external processor. One goroutine may receive while another
// sends.
type Stream struct {
	grpc grpc.ServerStream
	out  Reply // the reply that is being sent: gRPC takes a pointer to it
}

// Context is the stream's context. It holds the filter's initial metadata.
func (s *Stream) Context() context.Context { return s.grpc.Context() }

// Recv reads the next message into m. An error means that the stream has ended: Envoy
// half-closes or cancels it, at an answer's end and when the client vanishes alike.
func (s *Stream) Recv(m *Message) error { return s.grpc.RecvMsg(m) }

// Send sends one reply. An error means that the stream has ended; Recv then returns one
// too.
func (s *Stream) Send(r Reply) error {
	s.out = r
	err := s.grpc.SendMsg(&s.out)
	s.out = Reply{}
	return err
}
