package plugin

import (
	"sync"
	"time"

	"google.golang.org/grpc"
	grpchealth "google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"github.com/seed-60ae5743/baton/internal/wire"
)

// The services for which a prober may ask: those of the endpoint picker protocol and "",
// the whole process. The charts of the reference pickers ask for inference-extension. The
// protocol does not name it; those pickers answer with their readiness whatever the name
// is.
const (
	probeLiveness  = "liveness"
	probeReadiness = "readiness"
	probeCharts    = "inference-extension"
)

// probes answers gRPC health, on the plugin's own listener and on a port of its own.
// Liveness is always SERVING; the other services are, from the first set of workers until
// the drain begins, while there is a pool. Safe for concurrent use.
type probes struct {
	health *grpchealth.Server

	// Guarded by mu. The lock of health is taken while mu is held.
	mu       sync.Mutex
	ready    bool
	absent   bool
	draining bool
}

func newProbes() *probes {
	p := &probes{health: grpchealth.NewServer()}
	p.health.SetServingStatus(probeLiveness, healthv1.HealthCheckResponse_SERVING)
	p.set(func() {})
	return p
}

// becomeReady is called once the board has a set of workers.
func (p *probes) becomeReady() { p.set(func() { p.ready = true }) }

// pools says whether there is none of the pools whose workers are served.
func (p *probes) pools(absent bool) { p.set(func() { p.absent = absent }) }

// drain is final: no later call makes anything ready.
func (p *probes) drain() { p.set(func() { p.draining = true }) }

func (p *probes) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	s := healthv1.HealthCheckResponse_NOT_SERVING
	if p.ready && !p.absent && !p.draining {
		s = healthv1.HealthCheckResponse_SERVING
	}
	for _, name := range []string{"", probeReadiness, probeCharts, wire.ProcessorName()} {
		p.health.SetServingStatus(name, s)
	}
}

// newProbeServer returns a server that serves only health.
func newProbeServer(p *probes) *grpc.Server {
	s := grpc.NewServer(
		grpc.ConnectionTimeout(10*time.Second),
		grpc.MaxConcurrentStreams(100),
		grpc.MaxRecvMsgSize(4<<10),
		// So that a prober that has vanished does not keep a connection.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
	)
	healthv1.RegisterHealthServer(s, p.health)
	return s
}
