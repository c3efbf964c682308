package plugin

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/admin"
	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
	"github.com/seed-60ae5743/baton/pkg/kvevents"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

const (
	// eventsGrace is how long a rank's KV events may fail to come before somebody is told:
	// an engine that starts opens the port for them late, and one that restarts is soon back.
	eventsGrace = 30 * time.Second
	eventsEvery = 5 * time.Second // between two looks at the streams
)

// late reports whether a stream of KV events has not been connected for so long that
// somebody has to be told.
func late(r *kvevents.RankStatus, now time.Time) bool {
	return r.State == kvevents.StateConnecting && r.LastError != "" && now.Sub(r.Since) >= eventsGrace
}

// expected reports whether a worker's KV events are to come. From a worker that leaves, is
// set aside or does not answer no events come either, and of that somebody else tells.
func expected(w *worker.Worker, s *standing, f *admin.FactsRow) bool {
	return !w.Draining && s.Health != admin.Aside && f.Answered()
}

// eventWatch tells the log of workers whose KV events do not come, once of each, and all of
// them that are found at one time in one line.
type eventWatch struct {
	log    *slog.Logger
	silent map[worker.ID]bool // the log was told of these
}

// look compares the workers whose events do not come, each with the latest error, with those
// that the log was told of.
func (e *eventWatch) look(snap *worker.Snapshot, now map[worker.ID]string) {
	var newly, again []worker.ID
	for _, id := range slices.Sorted(maps.Keys(now)) {
		if !e.silent[id] {
			newly = append(newly, id)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(e.silent)) {
		if _, still := now[id]; !still && snap.Worker(id) != nil {
			again = append(again, id)
		}
	}
	if len(newly) > 0 {
		e.log.Warn("KV events do not come, so what these workers hold counts for less: compare kv_events in discovery with the ports at which their engines publish",
			logkey.Workers, len(now), logkey.Silent, few(snap, newly), logkey.LastError, now[newly[0]])
	}
	if len(again) > 0 {
		e.log.Info("KV events come again, or are not expected any more", logkey.Workers, len(now), logkey.Heard, few(snap, again))
	}
	e.silent = make(map[worker.ID]bool, len(now))
	for id := range now {
		e.silent[id] = true
	}
}

// watchEvents looks at the streams until ctx ends.
func watchEvents(ctx context.Context, p *plugin) error {
	watch := eventWatch{log: p.log}
	tick := time.NewTicker(eventsEvery)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			snap := p.board.Load().Snapshot
			watch.look(snap, silentWorkers(p, snap, now))
		case <-ctx.Done():
			return nil
		}
	}
}

// silentWorkers returns the workers whose events are to come and do not, each with the
// latest error.
func silentWorkers(p *plugin, snap *worker.Snapshot, now time.Time) map[worker.ID]string {
	out := make(map[worker.ID]string)
	for _, r := range p.events.Status() {
		if out[r.Rank.ID] == "" && late(&r, now) {
			out[r.Rank.ID] = eventError(&r)
		}
	}
	if len(out) == 0 {
		return out
	}
	healths, asked := p.healths(), p.factRows()
	for id := range out {
		w := snap.Worker(id)
		if w == nil {
			delete(out, id)
			continue
		}
		s, f := stateOf(w, healths[id]), asked[id]
		if !expected(w, &s, &f) {
			delete(out, id)
		}
	}
	return out
}

// eventError is the latest error of a stream, which names the address and what has failed.
func eventError(r *kvevents.RankStatus) string {
	return cut(strings.TrimPrefix(r.LastError, "kvevents: "))
}
