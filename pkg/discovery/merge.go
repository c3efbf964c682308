package discovery

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// ProblemKind says what is wrong with an entry.
type ProblemKind string

// The kinds of problem.
const (
	ProblemConflict   ProblemKind = "conflict"   // another entry has its id or its endpoint
	ProblemFault      ProblemKind = "fault"      // the value of its key is not a worker
	ProblemIneligible ProblemKind = "ineligible" // known, but may not be picked: see Ineligible
	ProblemNote       ProblemKind = "note"       // it counts, and its source has something to say of it
	ProblemView       ProblemKind = "view"       // the merged set was refused, through a bug of Baton's
)

// Problem is something about one entry that an operator should see. It is comparable.
type Problem struct {
	Kind   ProblemKind
	Source string
	Key    string
	Worker worker.ID // zero if the entry never held a worker
	Text   string
}

// part is the set of one source.
type part struct {
	source  string
	entries []Entry // sorted by key
}

type claim struct {
	source string
	Entry
}

// merge joins the sets. Earlier parts have precedence. The workers are in no order, and
// no id or endpoint occurs twice. It is pure.
func merge(parts []part) ([]*worker.Worker, []Problem) {
	m := merger{ids: make(map[worker.ID]claim), addrs: make(map[netip.AddrPort]claim)}
	for _, p := range parts {
		for _, e := range ByPrecedence(p.entries) {
			m.add(claim{source: p.source, Entry: e})
		}
	}
	slices.SortFunc(m.problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Kind, b.Kind))
	})
	return m.workers, m.problems
}

// merger is what has been joined so far, and who has which id and address.
type merger struct {
	workers  []*worker.Worker
	problems []Problem
	ids      map[worker.ID]claim
	addrs    map[netip.AddrPort]claim
}

// add takes the worker of an entry into the set, if its id and its addresses are free.
func (m *merger) add(c claim) {
	if c.Fault != "" {
		m.note(ProblemFault, c, "%s", c.Fault)
	}
	w := c.Worker
	if w == nil {
		return
	}
	if o, taken := m.ids[w.ID]; taken {
		m.note(ProblemConflict, c, "id %d is already that of key %q of source %q", w.ID, o.Key, o.source)
		return
	}
	if at, o, taken := takenBy(m.addrs, w); taken {
		m.note(ProblemConflict, c, "endpoint %s is already that of worker %d, key %q of source %q", at, o.Worker.ID, o.Key, o.source)
		return
	}
	m.ids[w.ID] = c
	if !w.Fronted {
		for at := range w.Addresses() {
			m.addrs[at] = c
		}
	}
	m.workers = append(m.workers, w)
	if c.Note != "" {
		m.note(ProblemNote, c, "%s", c.Note)
	}
	if why := Ineligible(w); why != "" {
		m.note(ProblemIneligible, c, "%s", why)
	}
}

func (m *merger) note(kind ProblemKind, c claim, format string, a ...any) {
	p := Problem{Kind: kind, Source: c.source, Key: c.Key, Text: fmt.Sprintf(format, a...)}
	if c.Worker != nil {
		p.Worker = c.Worker.ID
	}
	m.problems = append(m.problems, p)
}

// takenBy returns the claim of an address where w would listen, and false if no address
// of w is taken. Fronted workers share an address.
func takenBy(addrs map[netip.AddrPort]claim, w *worker.Worker) (at netip.AddrPort, by claim, taken bool) {
	if w.Fronted {
		return at, by, false
	}
	for at = range w.Addresses() {
		by, taken = addrs[at]
		if taken {
			return at, by, true
		}
	}
	return at, by, false
}

// ByPrecedence orders the entries of one source, which are sorted by key, by precedence: if
// each entry in turn takes what is free, an id goes to the first key, and an endpoint to the
// entry written last of those that do not drain, else of all. Who drains writes so, and must not
// take the endpoint from who holds it by now. Entries that do not get their id come at the end,
// so that they take no endpoint from a worker of the set.
func ByPrecedence(entries []Entry) []Entry {
	ordered := make([]Entry, 0, len(entries))
	var late []Entry
	seen := make(map[worker.ID]bool, len(entries))
	for _, e := range entries {
		if e.Worker != nil {
			if seen[e.Worker.ID] {
				late = append(late, e)
				continue
			}
			seen[e.Worker.ID] = true
		}
		ordered = append(ordered, e)
	}
	slices.SortStableFunc(ordered, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(a.drains(), b.drains()), cmp.Compare(b.Revision, a.Revision))
	})
	return append(ordered, late...)
}

// drains is 1 if the entry's worker drains, else 0.
func (e *Entry) drains() int {
	if e.Worker != nil && e.Worker.Draining {
		return 1
	}
	return 0
}
