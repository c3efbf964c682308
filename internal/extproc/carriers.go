package extproc

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seed-60ae5743/baton/internal/blame"
)

// A leg that another replica carries ends for its owner when that replica says so. One
// that has died says nothing: its owner asks, while it has legs there, whether it is
// still alive.

const (
	carrierEvery   = 2 * time.Second
	carrierTimeout = 2 * time.Second
	carrierMisses  = 2 // questions in a row without an answer: within 8 s of its death
)

// guests are the prefill legs of other replicas' requests that run here, by their
// tokens. The zero value is ready. Safe for concurrent use.
type guests struct {
	mu sync.Mutex
	m  map[string]*prefillStream
}

func (g *guests) add(token string, s *prefillStream) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.m == nil {
		g.m = make(map[string]*prefillStream)
	}
	g.m[token] = s
}

func (g *guests) remove(token string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.m, token)
}

func (g *guests) find(token string) *prefillStream {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.m[token]
}

func (g *guests) len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.m)
}

// carriers knows at which replicas legs of ours run. Safe for concurrent use.
type carriers struct {
	mu      sync.Mutex
	watched map[string]bool // guarded by mu; by address
}

// carriedBy notes that a leg of the attempt runs at another replica.
func (srv *Server) carriedBy(s *mainStream, addr string) {
	if addr == "" {
		return
	}
	s.mu.Lock()
	s.carrier = addr
	s.mu.Unlock()
	c := &srv.carriers
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watched[addr] {
		return
	}
	if c.watched == nil {
		c.watched = make(map[string]bool)
	}
	c.watched[addr] = srv.engines.run(func() { srv.watch(addr) })
}

// watch asks a replica whether it is alive while legs of ours run there.
func (srv *Server) watch(addr string) {
	tick := time.NewTicker(carrierEvery)
	defer tick.Stop()
	misses := 0
	for {
		select {
		case <-srv.legs.Done():
			return
		case <-tick.C:
		}
		if srv.unwatch(addr) {
			return
		}
		if misses++; srv.alive(addr) {
			misses = 0
		}
		if misses >= carrierMisses {
			misses = 0
			for _, s := range srv.at(addr) {
				s.post(&event{kind: evLeg, leg: legReport{state: legFailed, reason: blame.CarrierLost}})
				s.post(&event{kind: evLeg, leg: legReport{state: legEnded, reason: blame.CarrierLost}})
			}
		}
	}
}

// unwatch ends the watch where no leg of ours runs there any more. A leg that comes
// meanwhile finds the watch, or starts one.
func (srv *Server) unwatch(addr string) bool {
	if len(srv.at(addr)) > 0 {
		return false
	}
	c := &srv.carriers
	set := func(watched bool) (was bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		was, c.watched[addr] = c.watched[addr], watched
		return was
	}
	set(false)
	return len(srv.at(addr)) == 0 || set(true)
}

// at lists the attempts whose leg runs at a replica.
func (srv *Server) at(addr string) (out []*mainStream) {
	for _, s := range srv.attempts.all() {
		s.mu.Lock()
		if s.carrier == addr {
			out = append(out, s)
		}
		s.mu.Unlock()
	}
	return out
}

// alive asks a replica for something that it refuses. Whatever it answers, it is alive.
func (srv *Server) alive(addr string) bool {
	conn, err := srv.peers.conn(addr)
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(srv.legs, carrierTimeout)
	defer cancel()
	err = conn.Invoke(ctx, legsReport, wrapperspb.Bytes([]byte("{}")), new(wrapperspb.BytesValue))
	c := status.Code(err)
	return c != codes.Unavailable && c != codes.DeadlineExceeded && c != codes.Canceled
}
