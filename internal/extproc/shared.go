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

// AsReplica is a server as other replicas see it.
type AsReplica struct{ srv *Server }

// ReplicaOf returns how other replicas see a server.
func ReplicaOf(srv *Server) AsReplica { return AsReplica{srv} }

// Life tells this process from another at the same address.
func (r AsReplica) Life() uint64 { return lifeOf(r.srv.peers.life) }

func lifeOf(text string) uint64 {
	life, _ := strconv.ParseUint(text, 36, 64)
	return life
}

// Token names this process to other replicas, and proves that it has their key.
func (r AsReplica) Token() string { return r.srv.peers.token }

// Open reads another replica's token.
func (r AsReplica) Open(token string) (name, addr string, err error) {
	sealed, err := r.srv.sealer.Open(token)
	if err != nil {
		return "", "", err
	}
	return sealed.Owner, addressOf(sealed.Owner), nil
}

// OnOther has f called with the address of each other replica that legs make known. f must not block, nor
// call the server. Call it before requests come.
func (r AsReplica) OnOther(f func(addr string)) {
	p := r.srv.peers
	p.mu.Lock()
	defer p.mu.Unlock()
	p.met = f
}

// LifeAt asks the replica at an address which process it is.
func (r AsReplica) LifeAt(ctx context.Context, addr string) (life uint64, answers bool) {
	conn, err := r.srv.peers.conn(addr)
	if err != nil {
		return 0, false
	}
	text, answers := r.srv.peers.lifeOf(ctx, conn)
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
