package extproc

import (
	"bytes"
	"context"
	"encoding/json"
	"strconv"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// This file is what internal/mesh needs of the server: who this process is to the other replicas, and what
// it has learned.

// Life tells this process from another at the same address.
func (srv *Server) Life() uint64 { return lifeOf(srv.peers.life) }

func lifeOf(text string) uint64 {
	life, _ := strconv.ParseUint(text, 36, 64)
	return life
}

// ReplicaToken names this process to other replicas, and proves that it has their key.
func (srv *Server) ReplicaToken() string { return srv.peers.token }

// Replica reads another replica's token.
func (srv *Server) Replica(token string) (name, addr string, err error) {
	sealed, err := srv.sealer.Open(token)
	if err != nil {
		return "", "", err
	}
	return sealed.Owner, addressOf(sealed.Owner), nil
}

// OnReplica has f called with the address of each other replica that legs make known. f must not block, nor
// call the server. Call it before requests come.
func (srv *Server) OnReplica(f func(addr string)) {
	srv.peers.mu.Lock()
	defer srv.peers.mu.Unlock()
	srv.peers.met = f
}

// LifeAt asks the replica at an address which process it is.
func (srv *Server) LifeAt(ctx context.Context, addr string) (life uint64, answers bool) {
	conn, err := srv.peers.conn(addr)
	if err != nil {
		return 0, false
	}
	text, answers := srv.peers.lifeOf(ctx, conn)
	return lifeOf(text), answers && text != ""
}

// Learned is what this process has learned itself of how long ranks and pairs take.
func (p *Paces) Learned() (json.RawMessage, error) {
	var b bytes.Buffer
	err := p.Write(&b)
	return b.Bytes(), err
}

// Learn takes what another replica has learned, in place of what it said before; nil forgets it. Models that
// nobody serves here are left out.
func (p *Paces) Learn(c *Config, life uint64, learned json.RawMessage) error {
	var in keptPaces
	if learned != nil {
		if err := json.Unmarshal(learned, &in); err != nil {
			return err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	view := c.Board.Load()
	for _, f := range p.fleets {
		f.Share(life, nil)
	}
	for _, f := range p.pairs {
		f.Share(life, nil)
	}
	for _, k := range in.Fleets {
		of := paced{k.Of, k.Role}
		if k.Fleet == nil || view.Pool(k.Of) == nil {
			continue
		}
		if p.fleets[of] == nil {
			p.fleets[of] = new(fleetPace)
		}
		k.Fleet.Keep(func(r worker.Rank) bool { return view.Worker(r.ID) != nil })
		p.fleets[of].Share(life, k.Fleet)
		p.fleets[of].tell(c.Book, view, of)
	}
	for _, k := range in.Pairs {
		if k.Fleet == nil || view.Pool(k.Of) == nil || k.Fleet.Len() > mostPairs {
			continue
		}
		if p.pairs[k.Of] == nil {
			p.pairs[k.Of] = new(pairPace)
		}
		p.pairs[k.Of].Share(life, k.Fleet)
		p.pairs[k.Of].tell(c.Book, k.Of)
	}
	return nil
}
