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
	ProblemConflict   ProblemKind = "conflict"   // its id or endpoint is another's
	ProblemFault      ProblemKind = "fault"      // its value is not a worker
	ProblemIneligible ProblemKind = "ineligible" // known, but may not be picked: see Ineligible
	ProblemView       ProblemKind = "view"       // the merged set could not be built; a fault of Baton's
)

// Problem is something about one entry that an operator should see. It is
// comparable.
type Problem struct {
	Kind   ProblemKind
	Source string
	Key    string
	Worker worker.ID // zero when the entry never held one
	Text   string
}

// part is one source's set.
type part struct {
	source  string
	entries []Entry // sorted by key
}

type claim struct {
	source string
	Entry
}

// merge joins the sets. Earlier parts have precedence; the workers come in no
// order, no id or endpoint twice. It is pure.
func merge(parts []part) ([]*worker.Worker, []Problem) {
	var (
		workers  []*worker.Worker
		problems []Problem
		ids      = make(map[worker.ID]claim)
		addrs    = make(map[netip.AddrPort]claim)
	)
	note := func(kind ProblemKind, c claim, format string, a ...any) {
		p := Problem{Kind: kind, Source: c.source, Key: c.Key, Text: fmt.Sprintf(format, a...)}
		if c.Worker != nil {
			p.Worker = c.Worker.ID
		}
		problems = append(problems, p)
	}
	for _, p := range parts {
		for _, e := range byPrecedence(p.entries) {
			c := claim{source: p.source, Entry: e}
			if e.Fault != "" {
				note(ProblemFault, c, "%s", e.Fault)
			}
			w := e.Worker
			if w == nil {
				continue
			}
			if o, taken := ids[w.ID]; taken {
				note(ProblemConflict, c, "id %d is already that of key %q of source %q", w.ID, o.Key, o.source)
				continue
			}
			if at, o, taken := takenBy(addrs, w); taken {
				note(ProblemConflict, c, "endpoint %s is already that of worker %d, key %q of source %q", at, o.Worker.ID, o.Key, o.source)
				continue
			}
			ids[w.ID] = c
			if !w.Fronted {
				for at := range w.Addresses() {
					addrs[at] = c
				}
			}
			workers = append(workers, w)
			if why := Ineligible(w); why != "" {
				note(ProblemIneligible, c, "%s", why)
			}
		}
	}
	slices.SortFunc(problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Kind, b.Kind))
	})
	return workers, problems
}

// takenBy finds who listens already where w would. Fronted workers share an
// address.
func takenBy(addrs map[netip.AddrPort]claim, w *worker.Worker) (at netip.AddrPort, by claim, taken bool) {
	if w.Fronted {
		return at, by, false
	}
	for at = range w.Addresses() {
		if by, taken = addrs[at]; taken {
			return at, by, true
		}
	}
	return at, by, false
}

// byPrecedence orders one source's entries so that taking what is still free
// gives an endpoint to the entry written last, and an id to the first key.
// Entries that lose their id by that rule are moved to the end: they must not
// take an endpoint from a worker of the set.
func byPrecedence(entries []Entry) []Entry {
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
	slices.SortStableFunc(ordered, func(a, b Entry) int { return cmp.Compare(b.Revision, a.Revision) })
	return append(ordered, late...)
}
