package plugin

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/admin"
	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/trouble"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// standing is a state, its reason, and when it began.
type standing struct {
	admin.Health
	why   string
	since time.Time
	doubt trouble.Kind // what is wrong with a worker in service; "": nothing
}

// standingOf is how the page shows one entry of health.
func standingOf(h *health.RankHealth) standing {
	s := standing{Health: admin.Healthy, since: h.Since}
	switch {
	case h.State == health.Aside || h.State == health.Probing:
		s.Health, s.why = admin.Aside, reasonText(h.Reason)
	case h.State == health.Recovering:
		s.Health, s.why = admin.Recovering, string(h.Reason)
	case h.SparedFor != "":
		s.why = "failing (" + string(h.SparedFor) + "), kept in service: too many are set aside"
		s.doubt = trouble.WorkerSpared
	case h.State == health.Doubted:
		s.why = "doubted: " + string(h.Reason) + "; it is probed, and picked only where no mate is healthy"
		s.doubt = trouble.WorkerDoubted
	case h.Unheard != "":
		s.Health, s.why = admin.Unheard, h.Unheard
	case h.Suspected:
		s.why = "suspected: it is probed"
	}
	return s
}

// leadsBack says what health.ReasonLeadsBack is, and what to do.
const leadsBack = "its endpoint or its bootstrap address leads back to this router: a Baton answers there; correct that address in discovery"

// reasonText is how people read a reason.
func reasonText(r health.Reason) string {
	if r == health.ReasonLeadsBack {
		return leadsBack
	}
	return string(r)
}

// stateOf is how the page shows a worker. It is aside if all its ranks are, and partly
// aside, with their names, if some are. since is when the last of its ranks became aside,
// or healthy, if all of them are; else when the first of the ranks in question did.
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
	var unheard int
	var doubt trouble.Kind
	for i := range hs {
		s := standingOf(&hs[i])
		all.add(s.since)
		doubt = cmp.Or(doubt, s.doubt)
		switch s.Health {
		case admin.Aside:
			aside.add(s.since)
		case admin.Recovering:
			recovering.add(s.since)
		case admin.Unheard:
			unheard++
		case admin.Healthy, admin.Partly, admin.Draining:
		}
		if s.why != "" {
			which = append(which, fmt.Sprintf("rank %d: %s", hs[i].Rank.DPRank, s.why))
		}
	}
	out := standing{Health: admin.Healthy, since: all.last, why: strings.Join(which, "; "), doubt: doubt}
	switch {
	case aside.n == len(hs):
		out.Health = admin.Aside
	case aside.n > 0:
		out.Health, out.since = admin.Partly, aside.first
	case recovering.n > 0:
		out.Health, out.since = admin.Recovering, recovering.first
	case unheard == len(hs):
		out.Health = admin.Unheard
	}
	return out
}

// asideOf says of workers that are set aside since when all of them are, and why.
func asideOf(ws []*worker.Worker, healths map[worker.ID][]health.RankHealth) (since time.Time, why string) {
	var all span
	var whys []string
	for _, w := range ws {
		if s := stateOf(w, healths[w.ID]); s.Health == admin.Aside {
			all.add(s.since)
			whys = append(whys, s.why)
		}
	}
	slices.Sort(whys)
	return all.last, strings.Join(slices.Compact(whys), ", ")
}

// span holds of some times their number, the first and the last.
type span struct {
	n           int
	first, last time.Time
}

func (x *span) add(at time.Time) {
	x.n++
	if x.n == 1 || at.Before(x.first) {
		x.first = at
	}
	if at.After(x.last) {
		x.last = at
	}
}
