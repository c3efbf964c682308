package plugin

import (
	"fmt"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/admin"
	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

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
		s.why = "failing (" + string(h.SparedFor) + "), kept in service: too many are set aside"
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
