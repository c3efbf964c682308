package plugin

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/internal/admin"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/internal/trouble"
	"github.com/seed-60ae5743/baton/pkg/kvevents"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// observe fills in the gauges for a scrape.
func (p *plugin) observe(o *telemetry.Observation) {
	snap := p.board.Load()
	o.Ready, _ = p.isReady()
	found := p.view.Status()
	v := viewState(&found, snap.Snapshot, time.Now())
	o.Revision, o.Age, o.Stale = v.Revision, v.Age, v.Stale
	o.Expired = int64(len(p.expired.stale()))
	healths := p.healths()
	u := p.server.Usage()
	o.BodyBytes, o.BodyLimit, o.Waiting, o.Still = u.BodyBytes, u.BodyLimit, u.Waiting, u.Still
	o.QueueLimit = p.cfg.Prefill.MaxQueuedISLTokens
	o.Facts = factCounts(p.factRows())
	if p.mesh != nil {
		o.Replicas = p.mesh.Count()
	}
	o.Streams = streamCounts(p.events.Status())
	if ts := p.troubles.latest(); ts != nil {
		o.Troubles = trouble.ByKind(ts)
		o.Silent = o.Troubles[string(trouble.KVEventsSilent)]
	}
	o.Keys, o.Workers = make(map[telemetry.Standing]int64), make(map[telemetry.WorkerState]int64)
	o.Ignored = p.ignored
	o.Problems = int64(len(found.Problems) + len(p.mixed(snap)) + len(unheard(snap.Workers(), p.cfg.Policy().Rules.Listener)))
	for _, k := range snap.AllKeys(time.Now()) {
		if k.Namespace != p.cfg.Namespace || k.Model == worker.NoModel {
			continue
		}
		var q telemetry.Queue
		q.Model = k.Model
		q.Tokens, _ = p.server.Backlog(snap, k)
		o.Queues = append(o.Queues, q)
		o.Pools = poolLoads(o.Pools, p, snap.Pool(k), time.Now())
		o.Keys[telemetry.Standing{Activation: snap.Standing(k).State.String(), CanServe: p.server.Outlook(snap, k).Way != activation.Refused}]++
	}
	now := time.Now()
	for _, w := range snap.Workers() {
		o.Infos = append(o.Infos, telemetry.WorkerInfo{ID: w.ID, Role: w.Role, Endpoint: w.Endpoint.String(), Host: w.Endpoint.AddrPort().Addr().String(), Models: w.Models})
		o.Workers[telemetry.WorkerState{Role: w.Role, State: string(stateOf(w, healths[w.ID]).Health)}]++
		for dp := range worker.DPRank(w.DPSize) {
			r := worker.Rank{ID: w.ID, DPRank: dp}
			l, _ := p.book.Load(r)
			holds, _ := p.book.DecodingBlocks(r, now)
			blocks, shed := p.indexed(r)
			o.Ranks = append(o.Ranks, telemetry.RankLoad{
				Rank: r, Role: w.Role, PrefillTokens: l.PrefillTokens, PrefillRequests: int64(l.PrefillRequests),
				DecodeBlocks: l.DecodeBlocks, DecodingBlocks: holds, DecodeRequests: int64(l.DecodeRequests), IndexBlocks: blocks, IndexShed: shed,
			})
		}
	}
}

// poolLoads appends what the ranks in service of the pool have to do, by the role of their workers.
func poolLoads(dst []telemetry.PoolLoad, p *plugin, pool *worker.Pool, now time.Time) []telemetry.PoolLoad {
	if pool == nil {
		return dst
	}
	for role, ws := range map[worker.Role][]*worker.Worker{worker.Prefill: pool.Prefill, worker.Decode: pool.Decode, worker.Aggregated: pool.Aggregated} {
		x, n := telemetry.PoolLoad{Model: pool.Key.Model, Role: role}, 0
		for _, w := range ws {
			if w.Role == role { // else it is a decode worker that can serve alone
				n += addLoad(&x, p, w, n == 0, now)
			}
		}
		if n > 0 {
			x.Backlog /= float64(n)
			dst = append(dst, x)
		}
	}
	return dst
}

// addLoad adds the worker's ranks in service, and returns how many there are. The flag first says that x has
// none yet.
func addLoad(x *telemetry.PoolLoad, p *plugin, w *worker.Worker, first bool, now time.Time) (ranks int) {
	capacity := int64(min(w.CapacityBlocks, 1<<40))
	for dp := range worker.DPRank(w.DPSize) {
		r := worker.Rank{ID: w.ID, DPRank: dp}
		if !p.health.Allows(r) {
			continue
		}
		busy := p.book.Wait(r, now)
		if first && ranks == 0 || busy < x.LeastBacklog {
			x.LeastBacklog = busy
		}
		x.Backlog, ranks = x.Backlog+busy, ranks+1
		if holds, known := p.book.DecodingBlocks(r, now); known && x.Role != worker.Prefill && capacity > 0 {
			x.Capacity, x.FreeBlocks = x.Capacity+capacity, x.FreeBlocks+max(0, capacity-holds)
		}
	}
	return ranks
}

// factCounts counts workers by what is known of their facts.
func factCounts(rows map[worker.ID]admin.FactsRow) map[string]int64 {
	n := make(map[string]int64)
	for _, r := range rows {
		n[r.State]++
	}
	return n
}

// streamCounts counts ranks by the state of their KV events, as the page shows it.
func streamCounts(ranks []kvevents.RankStatus) map[string]int64 {
	const none, degraded = "none", "degraded"
	out := map[string]int64{
		none: 0, string(admin.Connecting): 0, string(admin.Lost): 0, string(admin.Replaying): 0, degraded: 0, string(admin.Connected): 0,
	}
	for i := range ranks {
		e := eventStream(&ranks[i])
		switch {
		case e.State == admin.NoStream:
			out[none]++
		case e.State == admin.Connected && e.Degraded:
			out[degraded]++
		default:
			out[string(e.State)]++
		}
	}
	return out
}
