package extproc

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
)

// A replica knows of the others by their legs, and by their questions. It asks again and again
// whether they answer, so that somebody is told of one that does not. Nothing else follows: Envoy
// finds out by itself.

// replicaKept is how long a replica is asked that has no part in anything any more, and does not
// ask either: it may have been taken away.
const replicaKept = 10 * time.Minute

// SilentReplica is another replica that does not answer.
type SilentReplica struct {
	Address string
	Since   time.Time
}

// SilentReplicas returns the replicas that do not answer now, by address.
func (srv *Server) SilentReplicas() (out []SilentReplica) {
	p := srv.peers
	p.mu.Lock()
	defer p.mu.Unlock()
	for addr, c := range p.conns {
		if c.misses >= carrierMisses {
			out = append(out, SilentReplica{addr, c.silent})
		}
	}
	slices.SortFunc(out, func(a, b SilentReplica) int { return cmp.Compare(a.Address, b.Address) })
	return out
}

// alive answers a replica that asks whether this one is alive. The question has a token with its
// name, so that nobody else can have this process call an address.
func (in inbox) alive(token string) string {
	sealed, err := in.srv.sealer.Open(token)
	if err == nil {
		in.srv.peers.meet(sealed.Owner)
	}
	return in.srv.peers.life
}

// meet notes that the owner of a leg, or who asks, is another replica.
func (p *peers) meet(owner string) {
	addr := addressOf(owner)
	if addr != "" && addr != p.self {
		_, _ = p.conn(addr)
	}
}

// ask asks the replicas whether they answer, until close is called.
func (p *peers) ask() {
	tick := time.NewTicker(carrierEvery)
	defer tick.Stop()
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-tick.C:
		}
		var wg sync.WaitGroup
		for addr, c := range p.known(time.Now()) {
			wg.Go(func() {
				asked := time.Now()
				if _, answers := p.lifeOf(p.ctx, c); p.ctx.Err() == nil {
					p.heard(addr, answers, asked)
				}
			})
		}
		wg.Wait()
	}
}

// known returns the connections to the replicas to ask, by address. It forgets that one does not
// answer that has had no part in anything for long.
func (p *peers) known(now time.Time) map[string]*peerConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make(map[string]*peerConn)
	for addr, c := range p.conns {
		if now.Sub(c.used) < replicaKept {
			out[addr] = c
			continue
		}
		if c.misses >= carrierMisses {
			p.log.Info("a replica that does not answer is asked no more", logkey.Replica, addr)
		}
		c.misses = 0
	}
	return out
}

// heard notes whether the replica has answered a question.
func (p *peers) heard(addr string, answers bool, asked time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.conns[addr]
	if c == nil {
		return // forgotten meanwhile
	}
	if answers {
		if c.misses >= carrierMisses {
			p.log.Info("a replica answers again", logkey.Replica, addr, logkey.Since, c.silent)
		}
		c.misses = 0
		return
	}
	if c.misses == 0 {
		c.silent = asked
	}
	c.misses++
	if c.misses == carrierMisses {
		p.log.Warn("a replica does not answer: it is stopped, cut off, gone or very busy", logkey.Replica, addr)
	}
}
