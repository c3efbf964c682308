package plugin

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/internal/admin"
	"github.com/seed-60ae5743/baton/internal/extproc"
	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/telemetry"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/kvevents"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// onChange tells every part that keeps something of a worker that the set has
// changed, those first whose answer a pick needs.
func (p *plugin) onChange(old, now *worker.Snapshot, c discovery.Change) {
	p.book.Update(now)
	p.health.Update(now, time.Now())
	p.reports.Update(now)
	p.events.Update(now) // which attaches ranks to the index and detaches them, and nobody else does
	// Last, since requests see the new set from here on.
	for _, t := range p.board.Follow(now, c, time.Now()) {
		p.onActivation(t)
	}
	p.server.OnChange(old, c)
	if !c.IsZero() {
		p.log.Info("workers changed", "revision", now.Revision(), "workers", len(now.Workers()),
			"joined", few(now, c.Joined), "left", few(old, c.Left), "changed", few(now, c.Changed))
		p.history.moved(old, now, c, time.Now())
	}
	p.judgeKeys()
}

// cut bounds what others have written, for the log and the page.
func cut(s string) string {
	const most = 300
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// few lists workers for the log, the first of many: where each is reached, and its id.
func few(snap *worker.Snapshot, ids []worker.ID) string {
	const most = 8
	var b strings.Builder
	for i, id := range ids {
		if i == most {
			fmt.Fprintf(&b, " and %d more", len(ids)-most)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(placed(snap, id))
	}
	return b.String()
}

func endpointOf(snap *worker.Snapshot, r worker.Rank) string {
	if w := snap.Worker(r.ID); w != nil {
		return w.EndpointOf(r.DPRank).String()
	}
	return ""
}

// placed is what people call a worker: its id, its role and where it is reached.
func placed(snap *worker.Snapshot, id worker.ID) string {
	w := snap.Worker(id)
	if w == nil {
		return id.String()
	}
	return id.String() + " (" + w.Role.String() + " " + w.Endpoint.String() + ")"
}

// judgeKeys tells which models have become, or ceased to be, servable.
func (p *plugin) judgeKeys() {
	world := p.board.Load()
	now := make(map[worker.Key]string)
	for _, k := range world.AllKeys(time.Now()) {
		if k.Namespace == p.cfg.Namespace {
			now[k] = p.server.Outlook(world, k).Why(world.Pool(k))
		}
	}
	for k, why := range now {
		switch was := p.refused[k]; {
		case why == was:
			continue
		case why == "":
			p.log.Info("model is served again", "model", k.Model, "after", was)
		default:
			p.log.Warn("model cannot be served", "model", k.Model, telemetry.KeyReason, why)
		}
		from, to := "served", "served"
		if p.refused[k] != "" {
			from = "refused"
		}
		if why != "" {
			to = "refused"
		}
		p.history.add(admin.Transition{At: time.Now(), What: "requests for " + k.Model, From: from, To: to, Why: why})
	}
	p.refused = now
}

// onActivation tells of one transition, once (docs/behaviour.md#told-once).
func (p *plugin) onActivation(c activation.Change) {
	cause := c.Event.Kind.String()
	p.tele.Instruments.Activation(c.From.String(), c.To.String(), cause)
	p.log.Info("prefill activation", "model", c.Key.Model, "namespace", c.Key.Namespace,
		"from", c.From.String(), "to", c.To.String(), "cause", cause, telemetry.KeyWorkerID, c.Event.Worker.String(),
		"activated", len(c.Activated), "reactivated", len(c.Reactivated), "deactivated", len(c.Deactivated),
		telemetry.KeyEnforceDisagg, p.cfg.EnforceDisagg)
	p.history.add(admin.Transition{
		At: time.Now(), What: "model " + c.Key.Model, From: c.From.String(), To: c.To.String(),
		Why: cause + " " + c.Event.Worker.String() + sides("activated", c.Activated) +
			sides("reactivated", c.Reactivated) + sides("deactivated", c.Deactivated),
	})
}

// sides names the decode sides of a transition for the page.
func sides(what string, names []string) string {
	if len(names) == 0 {
		return ""
	}
	named := make([]string, len(names))
	for i, n := range names {
		named[i] = cmp.Or(n, "(unnamed)")
	}
	return "; " + what + " decode side " + strings.Join(named, ", ")
}

func (p *plugin) onTransition(t discovery.Transition) {
	level := slog.LevelInfo
	if t.To == discovery.Stale || t.Cause != "" {
		level = slog.LevelWarn
	}
	p.log.Log(context.Background(), level, "discovery", "source", t.Source, "from", t.From.String(), "to", t.To.String(),
		"revision", t.Revision, "workers", t.Workers, "cause", t.Cause)
	p.history.add(admin.Transition{At: time.Now(), What: t.Source, From: t.From.String(), To: t.To.String(), Why: t.Cause})
}

func (p *plugin) onProblem(x discovery.Problem) {
	p.log.Warn("discovery problem", "kind", string(x.Kind), "source", x.Source, "key", cut(x.Key), "problem", cut(x.Text))
}

func (p *plugin) onHealth(t health.Transition) {
	p.tele.Instruments.Aside(t.To.String(), string(t.Reason))
	snap := p.board.Load().Snapshot
	what, at := "worker "+placed(snap, t.Rank.ID), []any{telemetry.KeyWorkerID, t.Rank.ID.String(), telemetry.KeyEndpoint, endpointOf(snap, t.Rank)}
	if t.OwnPort {
		what, at = fmt.Sprintf("rank %d of %s", t.Rank.DPRank, what), append(at, telemetry.KeyDPRank, t.Rank.DPRank)
	}
	p.log.Info("worker "+t.To.String(), append(at, "from", t.From.String(), telemetry.KeyReason, string(t.Reason))...)
	if t.Silent() {
		p.server.SetAside(t.Rank, t.OwnPort)
	}
	p.history.add(admin.Transition{At: t.At, What: what, From: t.From.String(), To: t.To.String(), Why: string(t.Reason)})
}

// doubtful reports whether what is known of a rank's cache may be wrong: its
// stream is cut or being caught up with, or some of it is lost.
func doubtful(s kvevents.State) bool {
	switch s {
	case kvevents.StateConnecting, kvevents.StateReplaying, kvevents.StateDegraded:
		return true
	default:
		return false
	}
}

// history keeps the latest changes of state for the page. Safe for concurrent
// use.
type history struct {
	mu   sync.Mutex
	last []admin.Transition // newest first
}

const historySize = 50

// moved adds the workers that have come and gone, one line for each of a few, else one
// for all: a store that comes back with a thousand must not push all else off the page.
func (h *history) moved(before, after *worker.Snapshot, c discovery.Change, now time.Time) {
	const few = 5
	for _, x := range []struct {
		snap     *worker.Snapshot
		ids      []worker.ID
		from, to string
	}{{before, c.Left, "known", "left"}, {after, c.Joined, "unknown", "joined"}} {
		if len(x.ids) > few {
			h.add(admin.Transition{At: now, What: strconv.Itoa(len(x.ids)) + " workers", From: x.from, To: x.to, Why: "discovery"})
			continue
		}
		for _, id := range x.ids {
			h.add(admin.Transition{At: now, What: "worker " + placed(x.snap, id), From: x.from, To: x.to, Why: "discovery"})
		}
	}
}

func newHistory() *history { return &history{} }

func (h *history) add(t admin.Transition) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last = append([]admin.Transition{t}, h.last[:min(len(h.last), historySize-1)]...)
}

func (h *history) list() []admin.Transition {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]admin.Transition(nil), h.last...)
}

func (p *plugin) adminConfig() admin.Config {
	return admin.Config{
		Address: p.cfg.Admin.Listen, AllowedHosts: p.cfg.Admin.Hosts, Pprof: p.cfg.Admin.Pprof,
		State: p.state, Ready: p.isReady, ReadyKey: p.isKeyReady, Journal: p.journal, Metrics: p.tele.Handler(),
		Explain: p.server.Explain, Index: p.askIndex, IndexDump: p.dumpIndex, Logger: p.log,
	}
}

func (p *plugin) isReady() (bool, string) {
	if p.board.Load().Ready() {
		return true, ""
	}
	why := "no worker view yet"
	for _, s := range p.view.Status().Sources {
		if s.LastError != "" {
			why += "; " + s.Name + ": " + s.LastError
		}
	}
	return false, why
}

// state builds what the page shows. It is for people: it may take its time.
func (p *plugin) state() admin.State {
	version := Version()
	s := admin.State{Version: version, StartedAt: p.started, Now: time.Now(), Transitions: p.history.list()}
	s.Ready, s.NotReadyReason = p.isReady()
	s.Config, _ = p.cfg.Effective()
	s.BodyBytes, s.BodyLimit = p.server.Bodies()
	s.BodiesTight = p.server.BodiesTight()
	if w := p.cfg.Warning(); w != "" {
		s.Warnings = append(s.Warnings, admin.Warning{Tag: "OPEN", Text: w})
	}
	snap := p.board.Load()
	found := p.view.Status()
	s.View = viewState(&found, snap.Snapshot, s.Now)
	healths := p.healths()
	for _, k := range snap.AllKeys(s.Now) {
		s.Keys = append(s.Keys, p.keyRow(snap, k))
	}
	for _, x := range found.Problems {
		s.Problems = append(s.Problems, strings.TrimSpace(x.Source+" "+cut(x.Key))+": "+cut(x.Text))
	}
	s.Problems = append(s.Problems, p.mixed(snap)...)
	streams := make(map[worker.Rank]kvevents.RankStatus)
	for _, r := range p.events.Status() {
		streams[r.Rank] = r
	}
	for _, w := range snap.Workers() {
		s.Workers = append(s.Workers, p.workerRow(w, healths[w.ID], streams))
	}
	s.Channels = p.channelRows()
	for _, c := range p.server.ClocksOff() {
		s.Warnings = append(s.Warnings, admin.Warning{Tag: "CLOCK", Text: clockText(c)})
	}
	return s
}

func clockText(c extproc.ClockOff) string {
	where := cmp.Or(c.Host, "the unix socket")
	side := "behind"
	if c.Ahead < 0 {
		side = "ahead of"
	}
	return fmt.Sprintf("The clock of the proxy at %s is %s %s this process's, so deadlines of its requests, %d so far, count from when they reach the plugin: set that clock",
		where, c.Ahead.Abs().Round(time.Second), side, c.Requests)
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
			v.StaleReason = src.Name + ": " + src.LastError
		}
	}
	v.Source = strings.Join(names, ", ")
	return v
}

func (p *plugin) keyRow(world *activation.World, k worker.Key) admin.KeyRow {
	pool := cmp.Or(world.Pool(k), &worker.Pool{})
	row := admin.KeyRow{
		Key: k, Activation: world.Standing(k).State.String(),
		Prefill: len(pool.Prefill), Decode: len(pool.Decode), Aggregated: len(pool.Aggregated),
	}
	o := p.server.Outlook(world, k)
	row.CanServe, row.Reason, row.How = o.Way != activation.Refused, o.Why(world.Pool(k)), o.How(world.Pool(k))
	if k.Namespace == p.cfg.Namespace {
		row.QueuedTokens, row.MaxQueuedTokens = p.server.Backlog(world, k)
	}
	return row
}

// isKeyReady says whether requests for the key are served now.
func (p *plugin) isKeyReady(k worker.Key) (bool, string) {
	if ready, why := p.isReady(); !ready {
		return false, why
	}
	world := p.board.Load()
	why := p.server.Outlook(world, k).Why(world.Pool(k))
	return why == "", why
}

// healths is what is known of the health of each worker: once, or once for each rank that
// has a port of its own.
func (p *plugin) healths() map[worker.ID][]health.RankHealth {
	out := make(map[worker.ID][]health.RankHealth)
	for _, h := range p.health.Status() {
		out[h.Rank.ID] = append(out[h.Rank.ID], h)
	}
	return out
}

// standing is a state with why it is so, and since when.
type standing struct {
	admin.Health
	why   string
	since time.Time
}

// standingOf is what is shown of one of them.
func standingOf(h *health.RankHealth) standing {
	s := standing{Health: admin.Healthy, since: h.Since}
	switch {
	case h.State == health.Aside || h.State == health.Probing:
		s.Health, s.why = admin.Aside, string(h.Reason)
	case h.State == health.Recovering:
		s.Health, s.why = admin.Recovering, string(h.Reason)
	case h.SparedFor != "":
		s.why = "failing (" + string(h.SparedFor) + "), kept: too many are aside"
	case h.Suspected:
		s.why = "suspected: it is probed"
	}
	return s
}

// stateOf is what is shown of a worker. It is aside if all its ranks are; where some are,
// it says which. Aside, or healthy, is the whole of it since the last of its ranks is;
// partly, or recovering, since the first of those that are.
func stateOf(w *worker.Worker, hs []health.RankHealth) standing {
	switch {
	case w.Draining:
		return standing{Health: admin.Draining}
	case len(hs) == 0:
		return standing{Health: admin.Healthy}
	case len(hs) == 1:
		return standingOf(&hs[0])
	}
	var all, aside, recovering span
	var which []string
	for i := range hs {
		s := standingOf(&hs[i])
		all.add(s.since)
		switch s.Health {
		case admin.Aside:
			aside.add(s.since)
		case admin.Recovering:
			recovering.add(s.since)
		case admin.Healthy, admin.Partly, admin.Draining:
		}
		if s.why != "" {
			which = append(which, fmt.Sprintf("rank %d: %s", hs[i].Rank.DPRank, s.why))
		}
	}
	out := standing{Health: admin.Healthy, since: all.last, why: strings.Join(which, "; ")}
	switch {
	case aside.n == len(hs):
		out.Health = admin.Aside
	case aside.n > 0:
		out.Health, out.since = admin.Partly, aside.first
	case recovering.n > 0:
		out.Health, out.since = admin.Recovering, recovering.first
	}
	return out
}

// span is of times: how many, the first and the last.
type span struct {
	n           int
	first, last time.Time
}

func (x *span) add(at time.Time) {
	if x.n++; x.n == 1 || at.Before(x.first) {
		x.first = at
	}
	if at.After(x.last) {
		x.last = at
	}
}

func (p *plugin) workerRow(w *worker.Worker, hs []health.RankHealth, streams map[worker.Rank]kvevents.RankStatus) admin.WorkerRow {
	s := stateOf(w, hs)
	row := admin.WorkerRow{
		ID: w.ID, Role: w.Role, Engine: w.Engine, Endpoint: w.Endpoint.String(), Models: w.Models, Namespace: w.Namespace,
		Health: s.Health, Reason: s.why, Since: s.since,
	}
	if why := discovery.Ineligible(w); why != "" && row.Reason == "" {
		row.Reason = why
	}
	for dp := range worker.DPRank(w.DPSize) {
		r := worker.Rank{ID: w.ID, DPRank: dp}
		l, _ := p.book.Load(r)
		var own standing
		if len(hs) > 1 && int(dp) < len(hs) {
			if own = standingOf(&hs[dp]); own.Health == admin.Healthy {
				own = standing{}
			}
		}
		row.Ranks = append(row.Ranks, admin.RankRow{
			DPRank: dp, Health: own.Health, Reason: own.why, Requests: int(l.PrefillRequests + l.DecodeRequests), PrefillTokens: l.PrefillTokens,
			DecodeBlocks: l.DecodeBlocks, IndexBlocks: p.indexBlocks(w, r), CapacityBlocks: int64(w.CapacityBlocks),
			ShedBlocks: p.indexShed(r),
			Events:     eventStream(streams[r]),
		})
	}
	return row
}

// indexBlocks is what is known of a rank's cache: by its events, or by what was
// routed to it where it publishes none.
func (p *plugin) indexBlocks(w *worker.Worker, r worker.Rank) int64 {
	st, _ := p.index.Stats(r)
	if w.KVEvents.IsZero() && !p.events.Tells(r) {
		return int64(st.Routed)
	}
	return int64(st.Blocks)
}

// indexShed is how many of the rank's blocks the index had no memory for.
func (p *plugin) indexShed(r worker.Rank) int64 {
	st, _ := p.index.Stats(r)
	return int64(st.Shed)
}

// observe fills the gauges at a scrape.
func (p *plugin) observe(o *telemetry.Observation) {
	snap := p.board.Load()
	o.Ready, _ = p.isReady()
	found := p.view.Status()
	v := viewState(&found, snap.Snapshot, time.Now())
	o.Revision, o.Age, o.Stale = v.Revision, v.Age, v.Stale
	healths := p.healths()
	o.BodyBytes, o.BodyLimit = p.server.Bodies()
	o.QueueLimit = p.cfg.Prefill.MaxQueuedISLTokens
	keys := make(map[telemetry.StandingCount]int64)
	o.Problems = int64(len(found.Problems) + len(p.mixed(snap)))
	for _, k := range snap.AllKeys(time.Now()) {
		if k.Namespace != p.cfg.Namespace {
			continue
		}
		var q telemetry.Queue
		q.Model = k.Model
		q.Tokens, _ = p.server.Backlog(snap, k)
		o.Queues = append(o.Queues, q)
		keys[telemetry.StandingCount{Activation: snap.Standing(k).State.String(), CanServe: p.server.Outlook(snap, k).Way != activation.Refused}]++
	}
	for k, n := range keys {
		k.Count = n
		o.Keys = append(o.Keys, k)
	}
	counts, now := make(map[telemetry.WorkerCount]int64), time.Now()
	for _, w := range snap.Workers() {
		counts[telemetry.WorkerCount{Role: w.Role, State: string(stateOf(w, healths[w.ID]).Health)}]++
		for dp := range worker.DPRank(w.DPSize) {
			r := worker.Rank{ID: w.ID, DPRank: dp}
			l, _ := p.book.Load(r)
			holds, _ := p.book.DecodingBlocks(r, now)
			o.Ranks = append(o.Ranks, telemetry.RankLoad{
				Rank: r, Role: w.Role, PrefillTokens: l.PrefillTokens, PrefillRequests: int64(l.PrefillRequests),
				DecodeBlocks: l.DecodeBlocks, DecodingBlocks: holds, DecodeRequests: int64(l.DecodeRequests), IndexBlocks: p.indexBlocks(w, r),
				IndexShed: p.indexShed(r),
			})
		}
	}
	for k, n := range counts {
		k.Count = n
		o.Workers = append(o.Workers, k)
	}
}
