package core

import (
	"context"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// apiPorts are the ports of the HTTP API: one, or one for each rank. Safe for concurrent
// use.
type apiPorts struct {
	// set by bind, read-only
	s      *Sim
	server *http.Server
	addrs  []string // they stay the same while ports are closed

	mu    sync.Mutex     // guards the fields below
	ports []net.Listener // parallel to addrs; nil while the fault "refuse" closes the port
	conns map[net.Conn]http.ConnState
}

func newAPIPorts(s *Sim) *apiPorts {
	return &apiPorts{s: s, conns: make(map[net.Conn]http.ConnState)}
}

// bind binds the ports.
func (p *apiPorts) bind() error {
	var err error
	cfg := p.s.cfg
	if cfg.PortPerRank {
		host, _, _ := net.SplitHostPort(cfg.Listen)
		p.ports, err = listenRange(host, PortOf(cfg.Listen), cfg.DPSize)
	} else {
		var ln net.Listener
		ln, err = net.Listen("tcp", cfg.Listen)
		p.ports = []net.Listener{ln}
	}
	if err != nil {
		p.ports = nil
		return err
	}
	for _, ln := range p.ports {
		p.addrs = append(p.addrs, ln.Addr().String())
	}
	p.server = &http.Server{
		Handler: p.s.Pages.Handler(), ConnState: p.connState, ReadHeaderTimeout: time.Minute,
		BaseContext: func(ln net.Listener) context.Context {
			return context.WithValue(p.s.runCtx, portKey{}, slices.Index(p.addrs, ln.Addr().String()))
		},
	}
	return nil
}

// portKey is the key of the port's index in a request's context.
type portKey struct{}

// rankAsked returns the rank at whose own port a request came, or -1 if all ranks share a
// port.
func (p *apiPorts) rankAsked(ctx context.Context) int {
	if i, ok := ctx.Value(portKey{}).(int); ok && p.s.cfg.PortPerRank {
		return i
	}
	return -1
}

func (p *apiPorts) connState(c net.Conn, state http.ConnState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch state {
	case http.StateClosed, http.StateHijacked:
		delete(p.conns, c)
	case http.StateNew, http.StateActive, http.StateIdle:
		p.conns[c] = state
	}
}

// serve serves the HTTP API at one port. After the fault "refuse" has closed the port and
// ended, it serves there again.
func (p *apiPorts) serve(i int) {
	for p.s.runCtx.Err() == nil {
		p.mu.Lock()
		ln := p.ports[i]
		p.mu.Unlock()
		if ln != nil {
			_ = p.server.Serve(ln)
		}
		p.awaitReopen(i)
	}
}

// awaitReopen waits until the port may be open and opens it.
func (p *apiPorts) awaitReopen(i int) {
	for p.s.runCtx.Err() == nil {
		f, left, changed := p.s.fault.peek()
		if !f.closes(p.addrs[i]) {
			ln, err := net.Listen("tcp", p.addrs[i])
			if err == nil {
				p.mu.Lock()
				p.ports[i] = ln
				p.mu.Unlock()
				return
			}
			left = 10 * time.Millisecond // another process has the port for the moment
		}
		var timer <-chan time.Time
		if left > 0 {
			timer = time.After(left)
		}
		select {
		case <-p.s.runCtx.Done():
		case <-changed:
		case <-timer:
		}
	}
}

// refuse stops listening where the fault closes ports, and closes idle connections. A busy
// connection is closed when its next request comes.
func (p *apiPorts) refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	f, _, _ := p.s.fault.peek()
	for i, ln := range p.ports {
		if ln != nil && f.closes(p.addrs[i]) {
			_ = ln.Close()
			p.ports[i] = nil
		}
	}
	for c, state := range p.conns {
		if (state == http.StateIdle || state == http.StateNew) && f.closes(c.LocalAddr().String()) {
			_ = c.Close()
		}
	}
}

// closeAll closes the ports.
func (p *apiPorts) closeAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, ln := range p.ports {
		if ln != nil {
			_ = ln.Close()
		}
	}
}

// cut closes all connections, without the handshake of a server that stops.
func (p *apiPorts) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		if t, ok := c.(*net.TCPConn); ok {
			_ = t.SetLinger(0)
		}
		_ = c.Close()
	}
}
