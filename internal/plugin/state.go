package plugin

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/internal/admin"
	"github.com/seed-60ae5743/baton/internal/extproc"
	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/trouble"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/kvevents"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func (p *plugin) adminConfig() admin.Config {
	return admin.Config{
		Address: p.cfg.Admin.Listen, AllowedHosts: p.cfg.Admin.Hosts, Pprof: p.cfg.Admin.Pprof,
		State: p.state, Trouble: p.troubles.latest, Ready: p.isReady, ReadyKey: p.isKeyReady, Journal: p.journal, Metrics: p.tele.Handler(),
		Explain: p.server.Explain, Index: p.askIndex, IndexDump: p.dumpIndex, Logger: p.log, Hour: p.hour.Spans,
	}
}

func (p *plugin) isReady() (bool, string) {
	switch {
	case !p.board.Load().Ready():
	case p.waiting.Load():
		return false, "engines have not said yet what they are"
	default:
		why := p.pools.why()
		return why == "", why
	}
	why := "no worker view yet"
	for _, s := range p.view.Status().Sources {
		if s.LastError != "" {
			why += "; " + s.Name + ": " + cut(s.LastError)
		}
	}
	return false, why
}

// state collects what the page shows. It is for people, and may be slow.
func (p *plugin) state() admin.State {
	s := worldOf(p, time.Now())
	s.Transitions, s.Lately = p.history.list(), p.history.recently(s.Now)
	p.shown.Do(func() { p.shown.config, _ = p.cfg.Effective() }) // it never changes
	s.Config = p.shown.config
	s.Shadow = shadowState(p)
	s.Troubles = look(p, &s)
	return s
}

// worldOf collects what is so now, without what was before and what is judged of it.
func worldOf(p *plugin, now time.Time) admin.State {
	s := admin.State{Version: Version(), StartedAt: p.started, Now: now}
	s.Ready, s.NotReadyReason = p.isReady()
	u := p.server.Usage()
	s.BodyBytes, s.BodyLimit = u.BodyBytes, u.BodyLimit
	s.BodiesTight = p.server.BodiesTight()
	snap := p.board.Load()
	found := p.view.Status()
	s.View = viewState(&found, snap.Snapshot, s.Now)
	healths := p.healths()
	for _, k := range snap.AllKeys(s.Now) {
		if k.Model == worker.NoModel {
			continue // its workers are shown; as a model it is none
		}
		s.Keys = append(s.Keys, p.keyRow(snap, k, healths))
	}
	for _, x := range found.Problems {
		s.Problems = append(s.Problems, admin.Problem{Kind: trouble.DiscoveryProblem, Text: strings.TrimSpace(x.Source+" "+cut(x.Key)) + ": " + cut(x.Text)})
	}
	for _, text := range p.mixed(snap) {
		s.Problems = append(s.Problems, admin.Problem{Kind: trouble.PoolMixed, Text: text})
	}
	for _, text := range unheard(snap.Workers(), p.cfg.Policy().Rules.Listener) {
		s.Problems = append(s.Problems, admin.Problem{Kind: trouble.ListenerMissing, Text: text})
	}
	streams := make(map[worker.Rank]kvevents.RankStatus)
	for _, r := range p.events.Status() {
		streams[r.Rank] = r
	}
	asked, stale := p.factRows(), p.expired.stale()
	for _, w := range snap.Workers() {
		row := p.workerRow(w, healths[w.ID], streams, asked[w.ID], s.Now)
		row.StaleSince = admin.At(stale[w.ID])
		s.Workers = append(s.Workers, row)
	}
	s.Channels = p.channelRows()
	s.Replicas = replicaRows(p.mesh)
	if p.mesh != nil {
		s.OwnSum = fmt.Sprintf("%016x", p.book.OwnSum())
	}
	return s
}

func viewState(found *discovery.Status, snap *worker.Snapshot, now time.Time) admin.View {
	v := admin.View{Revision: snap.Revision(), Stale: snap.Stale()}
	var names []string
	for _, src := range found.Sources {
		names = append(names, src.Name)
		if src.State != discovery.Watching {
			v.Age = max(v.Age, now.Sub(src.Since))
		}
		if src.State == discovery.Stale {
			v.StaleReason = src.Name + ": " + cut(src.LastError)
		}
	}
	v.Source = strings.Join(names, ", ")
	return v
}

func (p *plugin) keyRow(world *activation.World, k worker.Key, healths map[worker.ID][]health.RankHealth) admin.KeyRow {
	pool := cmp.Or(world.Pool(k), &worker.Pool{})
	row := admin.KeyRow{
		Model: k.Model, Namespace: k.Namespace, Activation: world.Standing(k).State.String(),
		Prefill: len(pool.Prefill), Decode: len(pool.Decode), Aggregated: len(pool.Aggregated),
	}
	o := p.server.Outlook(world, k)
	row.CanServe, row.Reason, row.How = o.Way != activation.Refused, o.Why(world.Pool(k)), o.How(world.Pool(k))
	if at, why, _ := extproc.ListenerDown(p.server); at != "" && o.Way == activation.Apart {
		row.How += ", but no leg reaches Envoy at " + at + " (" + why + ")"
	}
	if o.Aside && !row.CanServe {
		since, why := asideOf(o.Needs(pool), healths)
		row.Since, row.Reason = admin.At(since), row.Reason+": "+why
	}
	if k.Namespace == p.cfg.Namespace {
		row.QueuedTokens, row.MaxQueuedTokens = p.server.Backlog(world, k)
	}
	return row
}

// isKeyReady reports whether requests for the key are served now. If they are not, the
// text says why.
func (p *plugin) isKeyReady(k worker.Key) (bool, string) {
	if ready, why := p.isReady(); !ready {
		return false, why
	}
	world := p.board.Load()
	why := p.server.Outlook(world, k).Why(world.Pool(k))
	return why == "", why
}

// healths returns the health of each worker: one entry, or one for each rank that has a
// port of its own.
func (p *plugin) healths() map[worker.ID][]health.RankHealth {
	out := make(map[worker.ID][]health.RankHealth)
	for _, h := range p.health.Status() {
		out[h.Rank.ID] = append(out[h.Rank.ID], h)
	}
	return out
}

func (p *plugin) workerRow(w *worker.Worker, hs []health.RankHealth, streams map[worker.Rank]kvevents.RankStatus, f admin.FactsRow, now time.Time) admin.WorkerRow {
	s := stateOf(w, hs)
	row := admin.WorkerRow{
		ID: w.ID, Role: w.Role, Engine: w.Engine, Endpoint: w.Endpoint.String(), Models: w.Models, Namespace: w.Namespace,
		Health: s.Health, Reason: s.why, Since: admin.At(s.since), Doubt: s.doubt, Facts: f, Pair: w.Pair,
	}
	if why := discovery.Ineligible(w); why != "" && (row.Reason == "" || w.Fronted) {
		row.Reason = why
		switch {
		case w.Fronted: // it is meant to get none, and nobody expects to hear it
			row.Health = admin.Healthy
		case !w.FactsUnknown || f.Failures > 0: // else its engine is being asked
			row.Doubt = trouble.WorkerIneligible
		}
	}
	for dp := range worker.DPRank(w.DPSize) {
		r := worker.Rank{ID: w.ID, DPRank: dp}
		l := p.book.LoadOfAll(r)
		var own standing
		if len(hs) > 1 && int(dp) < len(hs) {
			own = standingOf(&hs[dp])
			if own.Health == admin.Healthy {
				own = standing{}
			}
		}
		blocks, shed := p.indexed(r)
		stream := streams[r]
		events := eventStream(&stream)
		events.Late = late(&stream, now) && expected(w, &s, &f)
		speed, legs, _ := p.server.Paces.Believed(w, r)
		row.Ranks = append(row.Ranks, admin.RankRow{
			Pace:   admin.Pace{Token: speed.PerToken, Request: speed.PerRequest, Legs: legs, Wait: p.book.Wait(r, now)},
			DPRank: dp, Health: own.Health, Reason: own.why, Requests: int(l.PrefillRequests + l.DecodeRequests), PrefillTokens: l.PrefillTokens,
			DecodeBlocks: l.DecodeBlocks, IndexBlocks: blocks, CapacityBlocks: int64(w.CapacityBlocks),
			ShedBlocks: shed,
			Events:     events,
		})
	}
	return row
}

// indexed returns how many blocks of a rank's cache are known, by its events, or, if it
// has none, by what was routed to it. shed is how many blocks the index had no memory
// for.
func (p *plugin) indexed(r worker.Rank) (blocks, shed int64) {
	st, _ := p.index.Stats(r)
	if !p.events.Tells(r) {
		return int64(st.Routed), int64(st.Shed)
	}
	return int64(st.Blocks), int64(st.Shed)
}
