package extproc

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/leg"
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

// carrier is a replica at which a leg of ours runs.
type carrier struct {
	addr string
	life string // of its process; empty: it has not said
}

// carriers knows at which replicas legs of ours run. Safe for concurrent use.
type carriers struct {
	mu      sync.Mutex
	watched map[carrier]bool // guarded by mu
}

// carriedBy notes that a leg of the attempt runs at another replica.
func (srv *Server) carriedBy(s *mainStream, at carrier) {
	if at.addr == "" {
		return
	}
	s.mu.Lock()
	s.carrier = at
	s.mu.Unlock()
	c := &srv.carriers
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watched[at] {
		return
	}
	if c.watched == nil {
		c.watched = make(map[carrier]bool)
	}
	c.watched[at] = srv.engines.run(func() { srv.watch(at) })
}

// watch asks a replica whether it is alive while legs of ours run there.
func (srv *Server) watch(at carrier) {
	tick := time.NewTicker(carrierEvery)
	defer tick.Stop()
	misses := 0
	for {
		select {
		case <-srv.legs.Done():
			return
		case <-tick.C:
		}
		if srv.unwatch(at) {
			return
		}
		switch srv.pulse(at) {
		case alive:
			misses = 0
		case silent:
			misses++
		case replaced:
			misses = carrierMisses
		}
		if misses >= carrierMisses {
			misses = 0
			for _, s := range srv.at(at) {
				s.post(just(leg.Event{Kind: leg.EventLeg, Leg: leg.Report{State: leg.Failed, Reason: blame.CarrierLost}}))
				s.post(just(leg.Event{Kind: leg.EventLeg, Leg: leg.Report{State: leg.Ended, Reason: blame.CarrierLost}}))
			}
		}
	}
}

// unwatch ends the watch where no leg of ours runs there any more. A leg that comes
// meanwhile finds the watch, or starts one.
func (srv *Server) unwatch(at carrier) bool {
	if len(srv.at(at)) > 0 {
		return false
	}
	c := &srv.carriers
	set := func(watched bool) (was bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		was = c.watched[at]
		if watched {
			c.watched[at] = true
		} else {
			delete(c.watched, at) // a process that has ended is not there again
		}
		return was
	}
	set(false)
	return len(srv.at(at)) == 0 || set(true)
}

// at lists the attempts whose leg runs at a replica.
func (srv *Server) at(at carrier) (out []*mainStream) {
	for _, s := range srv.attempts.all() {
		s.mu.Lock()
		if s.carrier == at {
			out = append(out, s)
		}
		s.mu.Unlock()
	}
	return out
}

// pulse is what asking a replica whether it is alive has shown.
type pulse uint8

const (
	silent   pulse = iota // no answer, which may be the network's doing
	replaced              // another process is there: what the one before carried is lost
	alive
)

// pulse asks whether a replica is alive. If there is no connection it waits for one, since the
// replica may have been away and be back.
func (srv *Server) pulse(at carrier) pulse {
	conn, err := srv.peers.conn(at.addr)
	if err != nil {
		return silent
	}
	ctx, cancel := context.WithTimeout(srv.legs, carrierTimeout)
	defer cancel()
	var life wrapperspb.BytesValue
	err = conn.Invoke(ctx, legsAlive, wrapperspb.Bytes(nil), &life)
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return silent
	case codes.OK:
		if at.life != "" && string(life.GetValue()) != at.life {
			return replaced
		}
	}
	return alive // whatever it answers: an older one does not know the question
}
