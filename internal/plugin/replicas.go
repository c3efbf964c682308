package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/seed-60ae5743/baton/internal/admin"
	"github.com/seed-60ae5743/baton/internal/extproc"
	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/mesh"
	"github.com/seed-60ae5743/baton/internal/replicas"
	"github.com/seed-60ae5743/baton/internal/trouble"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// newMesh makes the part that shares what is booked with other replicas; none if they cannot reach this one.
func newMesh(p *plugin, conf *extproc.Config) error {
	leg := &p.cfg.Leg
	if !leg.Shares() {
		return nil
	}
	listers, closers, err := listersOf(&p.cfg, p.dry)
	p.closers = append(p.closers, closers...)
	if err != nil {
		return err
	}
	self := extproc.ReplicaOf(p.server)
	p.mesh = mesh.New(mesh.Config{
		Self: leg.Self(), Life: self.Life(), Token: self.Token(), Open: self.Open, Credentials: conf.PeerCredentials,
		LifeAt: self.LifeAt, Listers: listers, Book: p.book,
		Routed: func(r worker.Rank, chain []kvindex.LocalHash) {
			p.routes.Heard(r, chain, kvindex.Estimated, time.Now())
		},
		Aside:   func() []worker.Rank { return setAside(p.health) },
		Suspect: func(r worker.Rank) { p.health.Suspect(r, time.Now()) },
		Learned: p.server.Paces.Learned,
		Learn: func(life uint64, learned json.RawMessage) error {
			return p.server.Paces.Learn(conf, life, learned)
		},
		Counted: p.tele.Instruments.Replica, Log: p.log,
	})
	p.routes.Tell(p.mesh.NoteRouted)
	self.OnOther(p.mesh.Meet)
	return nil
}

// join shares what is booked with the other replicas until the function that it returns is called.
func join(ctx context.Context, hub *mesh.Hub) (leave func()) {
	if hub == nil {
		return func() {}
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = hub.Run(ctx)
	}()
	return func() {
		stop()
		<-done
	}
}

// awaitReplicas waits until the other replicas have told what they have booked, for 2 s at most.
func awaitReplicas(ctx context.Context, hub *mesh.Hub) {
	if hub == nil {
		return
	}
	tick := time.NewTicker(readyEvery)
	defer tick.Stop()
	for !hub.Ready() {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

const readyEvery = 20 * time.Millisecond

// setAside are the ranks that this process has set aside by what it has seen. One that is being probed is one
// of them: a worker that takes connections and never answers is probed most of the time.
func setAside(t *health.Tracker) []worker.Rank {
	out := []worker.Rank{}
	for _, h := range t.Status() {
		if h.State == health.Aside || h.State == health.Probing {
			out = append(out, h.Rank)
		}
	}
	return out
}

// replicaRows are the other replicas, for the page.
func replicaRows(hub *mesh.Hub) (rows []admin.ReplicaRow) {
	if hub == nil {
		return nil
	}
	for _, m := range hub.Mates() {
		rows = append(rows, admin.ReplicaRow{
			Address: m.Address, Name: m.Name, State: m.Hearing.String(), Since: admin.At(m.Since), Heard: admin.At(m.Heard), Late: m.Late.Seconds(), Told: m.Told, Error: cut(m.Error),
			Legs: int64(m.Booked.PrefillRequests + m.Booked.DecodeRequests), PrefillTokens: m.Booked.PrefillTokens, DecodeBlocks: m.Booked.DecodeBlocks,
			Sum: fmt.Sprintf("%016x", m.Booked.Sum), DiffersSince: admin.At(m.Differs),
		})
	}
	return rows
}

// replicaTroubles lists what is wrong with sharing with other replicas.
func replicaTroubles(hub *mesh.Hub, now time.Time) (ts []trouble.Trouble) {
	if hub == nil {
		return nil
	}
	for _, m := range hub.Mates() {
		add := func(k trouble.Kind, since time.Time, text string, args ...any) {
			ts = append(ts, trouble.Trouble{Kind: k, Subject: m.Address, Since: since, What: fmt.Sprintf(text, args...)})
		}
		switch {
		case m.Hearing == replicas.Silent:
			add(trouble.ReplicaSilent, m.Heard, "The replica at %s sends no messages", m.Address)
		case m.Hearing == replicas.Unshared:
			add(trouble.ReplicaUnshared, m.Since, "The replica at %s has a version that does not share its bookings", m.Address)
		case m.Hearing == replicas.Unmet && m.Listed && now.Sub(m.Since) > unmetAfter:
			add(trouble.ReplicaUnmet, m.Since, "The replica at %s is listed, but has sent nothing yet", m.Address)
		case !m.Told && m.Error != "" && m.Hearing == replicas.Sharing:
			add(trouble.ReplicaUntold, time.Time{}, "The replica at %s does not get the bookings of this one: %s", m.Address, cut(m.Error))
		case !m.Differs.IsZero() && now.Sub(m.Differs) > differsAfter:
			add(trouble.ReplicaDiffers, m.Differs, "The bookings of the replica at %s, as known here, differ from its own figures", m.Address)
		}
	}
	for _, why := range hub.Faults() {
		ts = append(ts, trouble.Trouble{Kind: trouble.ReplicasUnlisted, Subject: cut(why), What: "Replicas cannot be listed: " + cut(why)})
	}
	return ts
}

const (
	unmetAfter   = 6 * time.Second
	differsAfter = 6 * time.Second // two whole messages
)
