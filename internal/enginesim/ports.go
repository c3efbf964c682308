package enginesim

import (
	"context"
	"net"
	"net/http"
	"slices"
	"time"
)

// bindAPI binds the HTTP API: one port, or one for each rank.
func (s *Sim) bindAPI() error {
	var err error
	if s.cfg.PortPerRank {
		host, _, _ := net.SplitHostPort(s.cfg.Listen)
		s.ports, err = listenRange(host, portOf(s.cfg.Listen), s.cfg.DPSize)
	} else {
		var ln net.Listener
		ln, err = net.Listen("tcp", s.cfg.Listen)
		s.ports = []net.Listener{ln}
	}
	if err != nil {
		s.ports = nil
		return err
	}
	for _, ln := range s.ports {
		s.addrs = append(s.addrs, ln.Addr().String())
	}
	s.api = &http.Server{
		Handler: s.apiHandler(), ConnState: s.connState, ReadHeaderTimeout: time.Minute,
		BaseContext: func(ln net.Listener) context.Context {
			return context.WithValue(s.runCtx, portKey{}, slices.Index(s.addrs, ln.Addr().String()))
		},
	}
	return nil
}

// portKey is the key of the port's index in a request's context.
type portKey struct{}

// rankAsked returns the rank at whose own port a request came, or -1 if all ranks share a
// port.
func (s *Sim) rankAsked(ctx context.Context) int {
	if i, ok := ctx.Value(portKey{}).(int); ok && s.cfg.PortPerRank {
		return i
	}
	return -1
}

// Addr returns the "host:port" of the HTTP API, or rank 0's if each rank has its own.
func (s *Sim) Addr() string { return s.addrs[0] }

// RankAddr returns the "host:port" of the HTTP API for one rank.
func (s *Sim) RankAddr(rank int) string {
	if s.cfg.PortPerRank {
		return s.addrs[rank]
	}
	return s.addrs[0]
}

// URL returns the base URL of the HTTP API at Addr.
func (s *Sim) URL() string { return "http://" + s.Addr() }

// serveAPI serves the HTTP API at one port. After the fault "refuse" has closed the port
// and ended, it serves there again.
func (s *Sim) serveAPI(i int) {
	for s.runCtx.Err() == nil {
		s.portMu.Lock()
		ln := s.ports[i]
		s.portMu.Unlock()
		if ln != nil {
			_ = s.api.Serve(ln)
		}
		s.awaitReopen(i)
	}
}

// awaitReopen waits until the port may be open and opens it.
func (s *Sim) awaitReopen(i int) {
	for s.runCtx.Err() == nil {
		f, left, changed := s.fault.peek()
		if !f.closes(s.addrs[i]) {
			ln, err := net.Listen("tcp", s.addrs[i])
			if err == nil {
				s.portMu.Lock()
				s.ports[i] = ln
				s.portMu.Unlock()
				return
			}
			left = 10 * time.Millisecond // another process has the port for the moment
		}
		var timer <-chan time.Time
		if left > 0 {
			timer = time.After(left)
		}
		select {
		case <-s.runCtx.Done():
		case <-changed:
		case <-timer:
		}
	}
}

// closePorts stops listening and closes idle connections. A busy connection is closed
// when its next request comes.
func (s *Sim) closePorts() {
	s.portMu.Lock()
	defer s.portMu.Unlock()
	f, _, _ := s.fault.peek()
	for i, ln := range s.ports {
		if ln != nil && f.closes(s.addrs[i]) {
			_ = ln.Close()
			s.ports[i] = nil
		}
	}
	for c, state := range s.conns {
		if (state == http.StateIdle || state == http.StateNew) && f.closes(c.LocalAddr().String()) {
			_ = c.Close()
		}
	}
}
