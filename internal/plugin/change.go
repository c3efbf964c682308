package plugin

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/internal/admin"
	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/redact"
	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// onChange tells every part that keeps facts about workers that the set has changed. The
// parts that a pick reads come first.
func (p *plugin) onChange(old, now *worker.Snapshot, c discovery.Change) {
	if again := returned(c); len(again) > 0 { // another process: what was known of the one before goes with it
		p.follow(now.Without(again))
	}
	p.follow(now)
	// The board is late in the order, since requests see the new set from here on.
	for _, t := range p.board.Follow(now, c, time.Now()) {
		p.onActivation(t)
	}
	p.server.OnChange(old, c)
	p.files.Changed(now.Workers())
	if !c.IsZero() {
		p.log.Info("workers changed", logkey.Revision, now.Revision(), logkey.Workers, len(now.Workers()),
			logkey.Joined, few(now, c.Joined), logkey.Left, few(old, c.Left), logkey.Changed, few(now, c.Changed))
		p.history.moved(old, now, c, time.Now())
		p.history.counted(old, now, c, time.Now())
	}
	p.judgeKeys()
}

// follow tells the parts that keep facts about workers by their ids which workers there are.
func (p *plugin) follow(now *worker.Snapshot) {
	p.book.Update(now)
	p.health.Update(now, time.Now())
	p.reports.Update(now)
	p.events.Update(now) // only this attaches ranks to the index and detaches them
}

// returned are the workers that have left and joined in one change: the view joins changes that come fast.
func returned(c discovery.Change) (ids []worker.ID) {
	for _, id := range c.Left {
		if slices.Contains(c.Joined, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// cut shortens text from outside, for the log and the page, and removes passwords of addresses.
func cut(s string) string {
	const most = 300
	return admin.Cut(redact.Text(s), most)
}

// few lists workers for the log, each with id, role and endpoint. Of many it lists only
// the first.
func few(snap *worker.Snapshot, ids []worker.ID) string {
	return firstOf(len(ids), func(i int) string { return placed(snap, ids[i]) })
}

// firstOf lists the first of n names, and counts the others.
func firstOf(n int, name func(i int) string) string {
	const most = 8
	var names []string
	for i := range min(n, most) {
		names = append(names, name(i))
	}
	return andMore(names, n)
}

// andMore lists names, which are the first of n.
func andMore(names []string, n int) string {
	list := strings.Join(names, ", ")
	if n > len(names) {
		list += fmt.Sprintf(" and %d more", n-len(names))
	}
	return list
}

func endpointOf(snap *worker.Snapshot, r worker.Rank) string {
	if w := snap.Worker(r.ID); w != nil {
		return w.EndpointOf(r.DPRank).String()
	}
	return ""
}

// placed is how people name a worker: its id, its role and its endpoint.
func placed(snap *worker.Snapshot, id worker.ID) string {
	w := snap.Worker(id)
	if w == nil {
		return id.String()
	}
	return named(w)
}

func named(w *worker.Worker) string {
	return w.ID.String() + " (" + w.Role.String() + " " + w.Endpoint.String() + ")"
}

// judgeKeys reports which models can be served again, and which can be served no more, as
// discovery tells: of workers that are set aside and come back there is a line for each.
func (p *plugin) judgeKeys() {
	world, policy := p.board.Load(), p.cfg.Policy()
	now := make(map[worker.Key]string)
	for _, k := range world.AllKeys(time.Now()) {
		if k.Namespace == p.cfg.Namespace && k.Model != worker.NoModel {
			now[k] = policy.Outlook(world, k).Why(world.Pool(k))
		}
	}
	state := map[bool]string{true: "served", false: "refused"}
	for k, why := range now {
		was := p.refused[k]
		switch why {
		case was:
			continue
		case "":
			p.log.Info("model is served again", logkey.Model, k.Model, logkey.After, was)
		default:
			p.log.Warn("model cannot be served", logkey.Model, k.Model, logkey.Reason, why)
		}
		p.history.add(admin.Transition{At: admin.At(time.Now()), What: "requests for " + k.Model, From: state[was == ""], To: state[why == ""], Why: why})
	}
	p.refused = now
}

// onActivation reports one transition, once (docs/behaviour.md#told-once).
func (p *plugin) onActivation(c activation.Change) {
	cause := c.Event.Kind.String()
	p.tele.Instruments.Activation(c.From.String(), c.To.String(), cause)
	p.log.Info("prefill activation", logkey.Model, c.Key.Model, logkey.Namespace, c.Key.Namespace,
		logkey.From, c.From.String(), logkey.To, c.To.String(), logkey.Cause, cause, logkey.WorkerID, c.Event.Worker.String(),
		logkey.Activated, len(c.Activated), logkey.Reactivated, len(c.Reactivated), logkey.Deactivated, len(c.Deactivated),
		logkey.EnforceDisagg, p.cfg.EnforceDisagg)
	p.history.add(admin.Transition{
		At: admin.At(time.Now()), What: "model " + c.Key.Model, From: c.From.String(), To: c.To.String(),
		Why: cause + " " + c.Event.Worker.String() + decodeSides("activated", c.Activated) +
			decodeSides("reactivated", c.Reactivated) + decodeSides("deactivated", c.Deactivated),
	})
}

// decodeSides lists the decode sides of a transition, for the page.
func decodeSides(what string, names []string) string {
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
	p.log.Log(context.Background(), level, "discovery", logkey.Source, t.Source, logkey.From, t.From.String(), logkey.To, t.To.String(),
		logkey.Revision, t.Revision, logkey.Workers, t.Workers, logkey.Cause, t.Cause)
	p.history.add(admin.Transition{At: admin.At(time.Now()), What: t.Source, From: t.From.String(), To: t.To.String(), Why: redact.Text(t.Cause)})
}

func (p *plugin) onProblem(x discovery.Problem) {
	p.log.Warn("discovery problem", logkey.Kind, string(x.Kind), logkey.Source, x.Source, logkey.Key, cut(x.Key), logkey.Problem, cut(x.Text))
}

func (p *plugin) onHealth(t health.Transition) {
	p.tele.Instruments.Aside(t.To.String(), string(t.Reason))
	snap := p.board.Load().Snapshot
	what, at := "worker "+placed(snap, t.Rank.ID), []any{logkey.WorkerID, t.Rank.ID.String(), logkey.Endpoint, endpointOf(snap, t.Rank)}
	if t.OwnPort {
		what, at = fmt.Sprintf("rank %d of %s", t.Rank.DPRank, what), append(at, logkey.DPRank, t.Rank.DPRank)
	}
	level := slog.LevelInfo
	at = append(at, logkey.From, t.From.String(), logkey.Reason, string(t.Reason))
	if t.Reason == health.ReasonLeadsBack { // somebody has to correct the address
		level, at = slog.LevelWarn, append(at, logkey.Problem, leadsBack)
	}
	p.log.Log(context.Background(), level, "worker "+t.To.String(), at...)
	if p.mesh != nil {
		p.mesh.NoteHealth()
	}
	p.server.Away(&t)
	if t.From == health.Aside { // what answers there again may be another process
		p.askAgain(t.Rank.ID)
	}
	p.history.add(admin.Transition{At: admin.At(t.At), What: what, From: t.From.String(), To: t.To.String(), Why: reasonText(t.Reason)})
}
