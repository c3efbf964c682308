package plugin

import (
	"sync"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	grpchealth "google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
)

// The services that a prober may ask for: those of the endpoint picker protocol
// and "", the process as a whole. The charts of the reference pickers ask for
// inference-extension, which the protocol does not name; those pickers answer
// any name with their readiness.
const (
	probeLiveness  = "liveness"
	probeReadiness = "readiness"
	probeCharts    = "inference-extension"
)

// probes answers gRPC health, on the plugin's own listener and on a port of
// its own. Liveness is SERVING from first to last; all else once the worker
// view is there, until the drain begins. Safe for concurrent use.
type probes struct {
	health *grpchealth.Server

	// Guarded by mu, which is held over health's own lock.
	mu       sync.Mutex
	ready    bool
	draining bool
}

func newProbes() *probes {
	p := &probes{health: grpchealth.NewServer()}
	p.health.SetServingStatus(probeLiveness, healthv1.HealthCheckResponse_SERVING)
	p.set(func() {})
	return p
}

// becomeReady is called when the worker view is there.
func (p *probes) becomeReady() { p.set(func() { p.ready = true }) }

// drain is final: a view that comes later makes nothing ready.
func (p *probes) drain() { p.set(func() { p.draining = true }) }

func (p *probes) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	s := healthv1.HealthCheckResponse_NOT_SERVING
	if p.ready && !p.draining {
		s = healthv1.HealthCheckResponse_SERVING
	}
	for _, name := range []string{"", probeReadiness, probeCharts, extprocv3.ExternalProcessor_ServiceDesc.ServiceName} {
		p.health.SetServingStatus(name, s)
	}
}

// newProbeServer serves health alone.
func newProbeServer(p *probes) *grpc.Server {
	s := grpc.NewServer(
		grpc.ConnectionTimeout(10*time.Second),
		grpc.MaxConcurrentStreams(100),
		grpc.MaxRecvMsgSize(4<<10),
		// A prober that vanished holds nothing.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
	)
	healthv1.RegisterHealthServer(s, p.health)
	return s
}
