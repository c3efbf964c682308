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

// setAside are the ranks that this process has set aside by what it has seen.
func setAside(t *health.Tracker) []worker.Rank {
	out := []worker.Rank{}
	for _, h := range t.Status() {
		if h.State == health.Aside {
			out = append(out, h.Rank)
		}
	}
	return out
}

// replicaRows are the other replicas, for the page.
func replicaRows(hub *mesh.Hub, now time.Time) (rows []admin.ReplicaRow, warnings []admin.Warning) {
	if hub == nil {
		return nil, nil
	}
	warn := func(text string, args ...any) {
		warnings = append(warnings, admin.Warning{Tag: "REPLICA", Text: fmt.Sprintf(text, args...)})
	}
	for _, m := range hub.Mates() {
		row := admin.ReplicaRow{
			Address: m.Address, Name: m.Name, State: m.Hearing.String(), Since: m.Since, Heard: m.Heard, Late: m.Late.Seconds(), Told: m.Told, Error: cut(m.Error),
			Legs: int64(m.Booked.PrefillRequests + m.Booked.DecodeRequests), PrefillTokens: m.Booked.PrefillTokens, DecodeBlocks: m.Booked.DecodeBlocks,
			Sum: fmt.Sprintf("%016x", m.Booked.Sum), DiffersSince: m.Differs,
		}
		rows = append(rows, row)
		since := now.Sub(m.Since).Round(time.Second)
		switch {
		case m.Hearing == replicas.Silent:
			warn("What the replica at %s books has not been heard for %s, so it counts less and less here: see whether it hangs or is cut off", m.Address, now.Sub(m.Heard).Round(time.Second))
		case m.Hearing == replicas.Unshared:
			warn("The replica at %s is of a version that does not share what it books: until it is updated each of the two picks as if it were alone", m.Address)
		case m.Hearing == replicas.Unmet && m.Listed && since > unmetAfter:
			warn("The replica at %s is listed, and has not been heard for %s: see whether it runs, whether it can reach this one at leg.advertise, and whether both have the same leg.key_file", m.Address, since)
		case !m.Told && m.Error != "" && m.Hearing == replicas.Sharing:
			warn("The replica at %s does not get what is booked here: %s", m.Address, cut(m.Error))
		case !m.Differs.IsZero() && now.Sub(m.Differs) > differsAfter:
			warn("What is held here of the bookings of the replica at %s has differed from what it says for %s: the two know different workers", m.Address, now.Sub(m.Differs).Round(time.Second))
		}
	}
	for _, why := range hub.Faults() {
		warn("Replicas cannot be listed: %s. Those that are known stay known", cut(why))
	}
	return rows, warnings
}

const (
	unmetAfter   = 10 * time.Second
	differsAfter = 10 * time.Second // three whole messages
)
