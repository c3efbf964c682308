package plugin

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/internal/admin"
	"github.com/seed-60ae5743/baton/internal/extproc"
	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
	"github.com/seed-60ae5743/baton/internal/trouble"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// troubleEvery is how often the state is looked at for troubles.
const troubleEvery = 2 * time.Second

// mostWords bounds what is said of a trouble, in bytes.
const mostWords = 1000

// mostNamed is how many workers a trouble names; it counts the others.
const mostNamed = 4

// troubles is the one list of what is wrong: the page, the JSON state, readiness, explain, check,
// the gauge and the log have it from here. Safe for concurrent use.
type troubles struct {
	mu    sync.Mutex
	watch trouble.Watch     // guarded by mu
	last  []trouble.Trouble // guarded by mu: of the latest look; nil: there was none; never changed in place
}

// look judges the state, and tells the log what has begun and ended. The caller must not change
// what it returns.
func look(p *plugin, s *admin.State) []trouble.Trouble {
	ts := judge(s, slices.Concat(p.told.List(), parts(p, s)), lately(p.journal, s.Now))
	p.troubles.mu.Lock()
	defer p.troubles.mu.Unlock()
	begun, ended := p.troubles.watch.Look(ts, s.Now)
	p.troubles.last = append([]trouble.Trouble{}, ts...)
	logTroubles(p.log, begun, ended, s.Now)
	return ts
}

// latest returns what was wrong at the latest look, at most troubleEvery ago.
func (t *troubles) latest() []trouble.Trouble {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last
}

// logTroubles has a line for each trouble that begins and for each that ends.
func logTroubles(log *slog.Logger, begun, ended []trouble.Trouble, now time.Time) {
	for i := range begun {
		if t := &begun[i]; t.LogsBegin() {
			log.Warn("trouble", logkey.Kind, string(t.Kind), logkey.Problem, t.What, logkey.Effect, t.Means(), logkey.Do, t.Help())
		}
	}
	for i := range ended {
		if t := &ended[i]; t.LogsEnd() {
			log.Info("trouble is over", logkey.Kind, string(t.Kind), logkey.Problem, t.What, logkey.Took, now.Sub(t.Since).Round(time.Second))
		}
	}
}

// watchTroubles looks at the state until ctx ends.
func watchTroubles(ctx context.Context, p *plugin) error {
	tick := time.NewTicker(troubleEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			extproc.TryListener(ctx, p.server)
			s := worldOf(p, time.Now())
			look(p, &s)
		case <-ctx.Done():
			return nil
		}
	}
}

// judge lists what is wrong, worst first: by the state, by what parts have told, and by how the
// latest requests have ended.
func judge(s *admin.State, told []trouble.Trouble, l ended) []trouble.Trouble {
	ts := slices.Concat(served(s), workersIn(s), discovered(s), eventsOf(s), l.troubles(), told)
	for i := range ts {
		ts[i].What = admin.Cut(ts[i].What, mostWords) // of names from outside
	}
	trouble.Sort(ts)
	return ts
}

// served lists why requests are refused or wait.
func served(s *admin.State) (ts []trouble.Trouble) {
	if !s.Ready {
		ts = append(ts, trouble.Trouble{Kind: trouble.NotReady, What: "Baton is not ready: " + cmp.Or(s.NotReadyReason, "no reason given")})
	}
	if len(s.Workers) == 0 {
		ts = append(ts, trouble.Trouble{Kind: trouble.NoWorkers, What: "The view has no workers"})
	}
	for i := range s.Keys {
		k := &s.Keys[i]
		name := k.Name()
		if !k.CanServe {
			ts = append(ts, trouble.Trouble{Kind: trouble.ModelUnserved, Subject: name, Since: k.Since.Time,
				What: fmt.Sprintf("Model %s cannot be served: %s", name, cmp.Or(k.Reason, "no reason given"))})
		}
		if k.Full() {
			ts = append(ts, trouble.Trouble{Kind: trouble.QueueFull, Subject: name, What: fmt.Sprintf(
				"The prefill workers of model %s have %d prompt tokens queued, the limit is %d", name, k.QueuedTokens, k.MaxQueuedTokens)})
		}
	}
	if s.BodiesTight {
		ts = append(ts, trouble.Trouble{Kind: trouble.BodiesFull, What: fmt.Sprintf(
			"%d MiB of bodies are in flight, of at most %d MiB", s.BodyBytes>>20, s.BodyLimit>>20)})
	}
	return ts
}

// group is workers of one role with one trouble for one reason.
type group struct {
	kind trouble.Kind
	role worker.Role
	why  string
}

// members are the workers of a group.
type members struct {
	names []string
	n     int
	since time.Time
}

func (m *members) add(name string, since admin.Time) {
	m.n++
	if len(m.names) < mostNamed {
		m.names = append(m.names, name)
	}
	if m.since.IsZero() || !since.IsZero() && since.Before(m.since) {
		m.since = since.Time
	}
}

func (m *members) list() string { return andMore(m.names, m.n) }

// groups collects them in the order in which they are met.
type groups struct {
	order []group
	of    map[group]*members
	roles map[worker.Role]int // workers in all
}

func (g *groups) add(x group, name string, since admin.Time) {
	if g.of[x] == nil {
		g.order = append(g.order, x)
		g.of[x] = &members{}
	}
	g.of[x].add(name, since)
}

// groupWords says what is wrong with the workers of a group.
func groupWords(k trouble.Kind) string {
	return map[trouble.Kind]string{
		trouble.WorkerAside: "set aside", trouble.WorkerRecovering: "coming back", trouble.WorkerSpared: "failing",
		trouble.WorkerDoubted: "doubted", trouble.WorkerUnheard: "not heard from yet", trouble.WorkerStale: "stale: the records have expired",
		trouble.WorkerIneligible: "not used", trouble.FactsFailing: "not telling what they run",
	}[k]
}

// list makes a trouble of each group: of ten workers that are down, one is to be read.
func (g *groups) list() (ts []trouble.Trouble) {
	for _, x := range g.order {
		m := g.of[x]
		ts = append(ts, trouble.Trouble{Kind: x.kind, Subject: x.role.String() + " " + x.why, Count: int64(m.n), Since: m.since,
			What: fmt.Sprintf("%d of %d %s workers %s %s: %s%s", m.n, g.roles[x.role], x.role, isOrAre(m.n), groupWords(x.kind), m.list(), trouble.Because(x.why))})
	}
	return ts
}

func isOrAre(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// workersIn lists what is wrong with workers.
func workersIn(s *admin.State) []trouble.Trouble {
	g := groups{of: map[group]*members{}, roles: map[worker.Role]int{}}
	for i := range s.Workers {
		w := &s.Workers[i]
		g.roles[w.Role]++
		name := fmt.Sprintf("%s (id %s)", w.Endpoint, w.ID)
		add := func(k trouble.Kind, why string, since admin.Time) { g.add(group{k, w.Role, why}, name, since) }
		switch w.Health {
		case admin.Aside:
			add(trouble.WorkerAside, w.Reason, w.Since)
		case admin.Partly:
			g.add(group{trouble.WorkerAside, w.Role, "in part"}, name+": "+w.Reason, w.Since)
		case admin.Recovering:
			add(trouble.WorkerRecovering, w.Reason, w.Since)
		case admin.Unheard:
			if w.Reason != health.NotAsked { // the look may come within the moment until it is
				add(trouble.WorkerUnheard, w.Reason, w.Since)
			}
		case admin.Healthy, admin.Draining:
		}
		switch w.Doubt {
		case "":
		case trouble.WorkerIneligible:
			g.add(group{w.Doubt, w.Role, w.Reason}, name+trouble.Because(w.Facts.Error), w.Since)
		default:
			add(w.Doubt, w.Reason, w.Since)
		}
		if !w.StaleSince.IsZero() {
			add(trouble.WorkerStale, "", w.StaleSince)
		}
		if f := &w.Facts; f.State == "failing" {
			g.add(group{trouble.FactsFailing, w.Role, ""}, name+trouble.Because(f.Error), f.Since)
		}
	}
	return g.list()
}

// discovered lists what is wrong with what discovery tells.
func discovered(s *admin.State) (ts []trouble.Trouble) {
	if s.View.Stale {
		ts = append(ts, trouble.Trouble{Kind: trouble.ViewStale, Since: s.Now.Add(-s.View.Age), What: fmt.Sprintf(
			"The view of the workers, revision %d, is no longer confirmed%s", s.View.Revision, trouble.Because(s.View.StaleReason))})
	}
	for i := range s.Problems {
		x := &s.Problems[i]
		ts = append(ts, trouble.Trouble{Kind: x.Kind, Subject: x.Text, What: x.Text})
	}
	return bounded(ts)
}

// bounded keeps the first few troubles of each kind, and lets the last of them stand for the rest.
func bounded(ts []trouble.Trouble) (out []trouble.Trouble) {
	const most = 8
	n, last := map[trouble.Kind]int{}, map[trouble.Kind]int{}
	for i := range ts {
		k := ts[i].Kind
		n[k]++
		switch {
		case n[k] < most:
			out = append(out, ts[i])
		case n[k] == most:
			last[k] = len(out)
			out = append(out, ts[i])
		default:
			rest := &out[last[k]]
			rest.Count, rest.Subject = int64(n[k]-most+1), "more"
			rest.What = fmt.Sprintf("And %d more like these: see the JSON state", rest.Count)
		}
	}
	return out
}

// eventsOf lists what is wrong with KV events and the index.
func eventsOf(s *admin.State) (ts []trouble.Trouble) {
	for _, x := range []struct {
		kind trouble.Kind
		is   func(*admin.EventStream) bool
		text string
	}{{trouble.KVEventsSilent, (*admin.EventStream).Silent, "do not come"}, {trouble.KVEventsLost, (*admin.EventStream).Partial, "are degraded"}} {
		var in members
		for i := range s.Workers {
			w := &s.Workers[i]
			if r := w.InTrouble(x.is); r != nil {
				in.add(fmt.Sprintf("%s (%d/%d)%s", w.Endpoint, w.ID, r.DPRank, trouble.Because(r.Events.Reason)), r.Events.Since)
			}
		}
		if in.n > 0 {
			ts = append(ts, trouble.Trouble{Kind: x.kind, Count: int64(in.n), Since: in.since,
				What: fmt.Sprintf("KV events of %d of %d workers %s: %s", in.n, len(s.Workers), x.text, in.list())})
		}
	}
	for _, c := range s.Channels {
		if !c.Up {
			ts = append(ts, trouble.Trouble{Kind: trouble.KVChannelDown, Subject: c.Name, Since: c.Since.Time, What: "No KV events come by " + c.Name + trouble.Because(c.Reason)})
		}
	}
	if blocks, ranks := s.Shed(); ranks > 0 {
		ts = append(ts, trouble.Trouble{Kind: trouble.IndexShed, Count: int64(ranks), What: fmt.Sprintf(
			"The index has too little memory, and has dropped %d blocks of %d ranks", blocks, ranks)})
	}
	return ts
}

// parts lists what parts of the plugin know to be wrong.
func parts(p *plugin, s *admin.State) (ts []trouble.Trouble) {
	for _, c := range p.server.ClocksOff() {
		ts = append(ts, trouble.Trouble{Kind: trouble.ClockOff, Subject: c.Host, Count: c.Requests, What: clockText(c)})
	}
	ts = append(ts, differences(p.board.Load().Snapshot, extproc.Differences(p.server))...)
	ts = append(ts, lossTroubles(p.reports.Losses(s.Now))...)
	ts = append(ts, recordTroubles(p.recorder)...)
	for _, text := range extproc.HeldBack(p.server, s.Now) {
		ts = append(ts, trouble.Trouble{Kind: trouble.RequestsHeld, Subject: text, What: text})
	}
	for _, d := range extproc.Doubted(p.server, s.Now) {
		what := fmt.Sprintf("holds less than its KV events say: of %d prompts %d were computed anew, lately %d of %d tokens were cached", d.Prompts, d.Short, d.Delivered, d.Told)
		if d.Mute {
			what = "computes prompts, but sends no KV events"
		}
		ts = append(ts, trouble.Trouble{Kind: trouble.OverlapWrong, Subject: d.Rank.String(), Since: d.Since,
			What: fmt.Sprintf("Rank %d of worker %s %s", d.Rank.DPRank, placed(p.board.Load().Snapshot, d.Rank.ID), what)})
	}
	if at, why, since := extproc.ListenerDown(p.server); at != "" {
		ts = append(ts, trouble.Trouble{Kind: trouble.LegUnreachable, Since: since,
			What: fmt.Sprintf("Envoy's listener for the plugin's own legs cannot be reached at %s (%s)", at, why)})
	}
	for _, k := range p.certs.pairs {
		if why := k.wrong(s.Now); why != "" {
			ts = append(ts, trouble.Trouble{Kind: trouble.Certificate, Subject: k.files[0], What: "The new TLS certificate cannot be read: " + why})
		}
	}
	for _, why := range p.files.Faults() {
		ts = append(ts, trouble.Trouble{Kind: trouble.ModelFiles, Subject: why, What: upper(why)})
	}
	for kind, w := range map[trouble.Kind]string{
		trouble.Exposed: p.cfg.Warning(), trouble.KeyHidden: p.cfg.KeyWarning(), trouble.ConfigIgnored: p.cfg.GoneWarning(),
	} {
		if w != "" {
			ts = append(ts, trouble.Trouble{Kind: kind, What: upper(w)})
		}
	}
	return bounded(append(ts, replicaTroubles(p.mesh, s.Now)...))
}

// upper begins a sentence.
func upper(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

func clockText(c extproc.ClockOff) string {
	where := cmp.Or(c.Host, "the unix socket")
	side := "behind"
	if c.Ahead < 0 {
		side = "ahead of"
	}
	return fmt.Sprintf("The clock of the proxy at %s is %s %s this process's", where, c.Ahead.Abs().Round(time.Second), side)
}
