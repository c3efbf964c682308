package extproc

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/leg"
)

// The prefill leg of an attempt may run at another replica than the attempt's owner. That
// replica tells the owner when the leg ends, but not if the replica dies. So the owner asks,
// while legs of its attempts run at a replica, whether the replica is alive.

const (
	carrierEvery   = 2 * time.Second
	carrierTimeout = 2 * time.Second
	carrierMisses  = 2 // questions in a row without an answer; found within 8 s of a death
)

// alive answers a replica that asks whether this one is alive, and which process it is. The question has a
// token with its name, so that nobody else can make a replica known.
func (in inbox) alive(token string) string {
	sealed, err := in.srv.sealer.Open(token)
	if err == nil {
		in.srv.peers.meet(sealed.Owner)
	}
	return in.srv.peers.life
}

// meet says that who asks is another replica.
func (p *peers) meet(owner string) {
	addr := addressOf(owner)
	p.mu.Lock()
	defer p.mu.Unlock()
	if addr != "" && addr != p.self && p.met != nil {
		p.met(addr)
	}
}

// guests are the prefill legs of other replicas' requests that run here, by their
// tokens. The zero value is ready. Safe for concurrent use.
type guests struct {
	mu sync.Mutex // guards m
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

// carrier is another replica at which the leg of an attempt of ours runs.
type carrier struct {
	addr string
	life string // tells its process from another at addr; empty: not known
}

// carriers holds the replicas that are watched while legs of our attempts run there. Safe
// for concurrent use.
type carriers struct {
	mu      sync.Mutex
	watched map[carrier]bool // guarded by mu; false: no watch was started, since the server ends
}

// carriedBy notes at which replica the attempt's leg runs, and begins to watch that replica.
func (c *carriers) carriedBy(s *mainStream, at carrier) {
	if at.addr == "" {
		return
	}
	s.far.carriedBy(at)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watched[at] {
		return
	}
	if c.watched == nil {
		c.watched = make(map[carrier]bool)
	}
	c.watched[at] = s.srv.engines.runOnce(func() { c.watch(s.srv, at) })
}

// watch asks a replica again and again whether it is alive, until no leg of our attempts
// runs there. If the replica has died, watch tells the attempts that their legs have failed
// and ended.
func (c *carriers) watch(srv *Server, at carrier) {
	tick := time.NewTicker(carrierEvery)
	defer tick.Stop()
	misses := 0
	for {
		select {
		case <-srv.legs.Done():
			return
		case <-tick.C:
		}
		if c.unwatch(srv.attempts, at) {
			return
		}
		switch srv.peers.pulse(srv.legs, at) {
		case alive:
			misses = 0
		case silent:
			misses++
		case replaced:
			misses = carrierMisses
		}
		if misses >= carrierMisses {
			misses = 0
			for _, s := range srv.attempts.at(at) {
				s.post(just(leg.Event{Kind: leg.EventLeg, Leg: leg.Report{State: leg.Failed, Reason: blame.CarrierLost}}))
				s.post(just(leg.Event{Kind: leg.EventLeg, Leg: leg.Report{State: leg.Ended, Reason: blame.CarrierLost}}))
			}
		}
	}
}

// unwatch reports whether the watch of a replica has to end, since no leg of our attempts
// runs there any more. For a leg that comes meanwhile, either this watch goes on, or another
// has been started.
func (c *carriers) unwatch(all *registry, at carrier) bool {
	if len(all.at(at)) > 0 {
		return false
	}
	set := func(watched bool) (was bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		was = c.watched[at]
		if watched {
			c.watched[at] = true
		} else {
			delete(c.watched, at) // the entry of a process that has ended is never needed again
		}
		return was
	}
	set(false)
	return len(all.at(at)) == 0 || set(true)
}

// pulse is the outcome of the question whether a replica is alive.
type pulse uint8

const (
	silent   pulse = iota // no answer; the network may be the cause
	replaced              // another process answers: the legs at the one before are lost
	alive
)

// pulse asks a replica whether it is alive.
func (p *peers) pulse(ctx context.Context, at carrier) pulse {
	conn, err := p.conn(at.addr)
	if err != nil {
		return silent
	}
	life, ok := p.lifeOf(ctx, conn)
	switch {
	case !ok:
		return silent
	case at.life != "" && life != "" && life != at.life:
		return replaced
	}
	return alive
}

// lifeOf asks a replica which process it is, and reports whether it answers. Without a connection
// it waits for one, for as long as the call may take, since a replica that was away may be back.
func (p *peers) lifeOf(ctx context.Context, conn grpc.ClientConnInterface) (life string, answers bool) {
	ctx, cancel := context.WithTimeout(ctx, carrierTimeout)
	defer cancel()
	var v wrapperspb.BytesValue
	err := conn.Invoke(ctx, legsAlive, wrapperspb.Bytes([]byte(p.token)), &v)
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return "", false
	}
	return string(v.GetValue()), true // also with an error: a replica of an older version does not know the call
}
