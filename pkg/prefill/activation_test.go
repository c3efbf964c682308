package prefill

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Verbs of testdata/activation, one a line, told in order:
//
//	decode SIDE ID     a decode worker of the side joins
//	seen ID            a prefill endpoint is known without its facts
//	ready ID           a prefill endpoint is ready
//	gone decode|prefill ID
//	set WORKER…        Follow to the set: p1 (ready), p1? (pending), p1! (unfit), dA1; "left: 1" names workers that were away
//
// Each verb prints its transition, if there is one, and the state after it.
func TestActivationScenarios(t *testing.T) {
	datadriven.RunTest(t, "testdata/activation", func(t *testing.T, d *datadriven.TestData) string {
		require.Equal(t, "key", d.Cmd)
		var a Activation
		var b strings.Builder
		for line := range strings.SplitSeq(d.Input, "\n") {
			fmt.Fprintf(&b, "%s\n", line)
			for _, ev := range scenarioEvents(t, &a, strings.Fields(line)) {
				if tr, changed := a.Apply(ev); changed {
					fmt.Fprintf(&b, "  %s\n", tr)
				}
				require.NoError(t, a.check())
			}
			fmt.Fprintf(&b, "  = %s; can serve enforced: %t\n", a.String(), a.CanServe(true))
		}
		return b.String()
	})
}

func scenarioEvents(t *testing.T, a *Activation, f []string) []ActivationEvent {
	id := func(s string) worker.ID {
		id, err := worker.ParseID(s)
		require.NoError(t, err)
		return id
	}
	switch f[0] {
	case "decode":
		return []ActivationEvent{{Kind: DecodeJoined, Side: f[1], Worker: id(f[2])}}
	case "seen":
		return []ActivationEvent{{Kind: PrefillSeen, Worker: id(f[1])}}
	case "ready":
		return []ActivationEvent{{Kind: PrefillUp, Worker: id(f[1])}}
	case "gone":
		kind := PrefillLeft
		if f[1] == "decode" {
			kind = DecodeLeft
		}
		return []ActivationEvent{{Kind: kind, Worker: id(f[2])}}
	case "set":
		var present []*worker.Worker
		var left []worker.ID
		grades := map[worker.ID]Grade{}
		for i, w := range f[1:] {
			if w == "left:" {
				for _, l := range f[i+2:] {
					left = append(left, id(l))
				}
				break
			}
			switch w[0] {
			case 'p':
				present = append(present, &worker.Worker{Role: worker.Prefill, ID: id(strings.Trim(w[1:], "?!"))})
			case 'd':
				present = append(present, &worker.Worker{Role: worker.Decode, Deployment: w[1:2], ID: id(strings.Trim(w[2:], "?!"))})
			default:
				present = append(present, &worker.Worker{Role: worker.Aggregated, ID: id(w[1:])})
			}
			last := present[len(present)-1].ID
			switch w[len(w)-1] {
			case '?':
				grades[last] = Pending
			case '!':
				grades[last] = Unfit
			default:
				grades[last] = Ready
			}
		}
		return a.Follow(present, func(w *worker.Worker) Grade { return grades[w.ID] }, left)
	}
	t.Fatalf("verb %q", f[0])
	return nil
}

// check returns an error for the first invariant that does not hold, or nil.
func (a *Activation) check() error {
	counts := map[string]int{}
	for _, name := range a.decode {
		counts[name]++
	}
	if len(counts) != len(a.sides) {
		return fmt.Errorf("prefill: A2: %d sides have decode workers, %d are kept", len(counts), len(a.sides))
	}
	for name, s := range a.sides {
		if want := a.Ready() > 0; (s.state == sideActive) != want {
			return fmt.Errorf("prefill: A1: side %q active: %t; an endpoint is ready: %t", name, !want, want)
		}
		if s.instances != counts[name] || s.instances < 1 {
			return fmt.Errorf("prefill: A2: side %q counts %d instances, %d name it", name, s.instances, counts[name])
		}
	}
	return nil
}

// String shows the whole state on one line, for scenario files. Two activations have
// the same text if and only if their states are equal.
func (a *Activation) String() string {
	var b strings.Builder
	b.WriteString(a.State().String())
	prefill, decode := slices.Sorted(maps.Keys(a.prefill)), slices.Sorted(maps.Keys(a.decode))
	for _, id := range prefill {
		mark := "pending"
		if a.prefill[id] {
			mark = "ready"
		}
		fmt.Fprintf(&b, " prefill/%d=%s", id, mark)
	}
	names := [...]string{sideWaiting: "waiting", sideActive: "active", sideDeactivated: "deactivated"}
	for _, name := range slices.Sorted(maps.Keys(a.sides)) {
		fmt.Fprintf(&b, " side/%s=%s(", name, names[a.sides[name].state])
		first := true
		for _, id := range decode {
			if a.decode[id] != name {
				continue
			}
			if !first {
				b.WriteByte(' ')
			}
			first = false
			fmt.Fprintf(&b, "%d", id)
		}
		b.WriteByte(')')
	}
	return b.String()
}

// String returns the transition on one line.
func (t Transition) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s -> %s by %s %d", t.From, t.To, t.Event.Kind, t.Event.Worker)
	for _, l := range []struct {
		what  string
		sides []string
	}{{"activated", t.Activated}, {"reactivated", t.Reactivated}, {"deactivated", t.Deactivated}} {
		if len(l.sides) > 0 {
			fmt.Fprintf(&b, " %s=%s", l.what, strings.Join(l.sides, ","))
		}
	}
	return b.String()
}

// rule is docs/behaviour.md#all-or-none, computed from what is present and without a
// state machine. The state machine is compared with it.
type rule struct {
	decode map[worker.ID]string
	known  map[worker.ID]bool // known endpoints; true: the endpoint is ready
	// served names the sides that were active at some time since they came.
	served map[string]bool
}

func (r rule) with(ev ActivationEvent) rule {
	n := rule{maps.Clone(r.decode), maps.Clone(r.known), maps.Clone(r.served)}
	switch ev.Kind {
	case DecodeJoined:
		n.decode[ev.Worker] = ev.Side
	case DecodeLeft:
		delete(n.decode, ev.Worker)
	case PrefillSeen:
		n.known[ev.Worker] = false
	case PrefillUp:
		n.known[ev.Worker] = true
	case PrefillLeft:
		delete(n.known, ev.Worker)
	}
	here := map[string]bool{}
	for _, s := range n.decode {
		here[s] = true
	}
	maps.DeleteFunc(n.served, func(s string, _ bool) bool { return !here[s] })
	if n.ready() {
		n.served = here
	}
	return n
}

func (r rule) ready() bool { return slices.Contains(slices.Collect(maps.Values(r.known)), true) }

func (r rule) state() State {
	switch {
	case r.ready():
		return PrefillReady
	case len(r.known) > 0:
		return PrefillPending
	case len(r.served) > 0:
		return Deactivated
	case len(r.decode) > 0:
		return DecodeWaiting
	}
	return Absent
}

func (r rule) sideStates() map[string]string {
	out := map[string]string{}
	for _, s := range r.decode {
		switch {
		case r.ready():
			out[s] = "active"
		case r.served[s]:
			out[s] = "deactivated"
		default:
			out[s] = "waiting"
		}
	}
	return out
}

// copyOf returns a copy that shares nothing with a.
func copyOf(a *Activation) *Activation {
	return &Activation{prefill: maps.Clone(a.prefill), decode: maps.Clone(a.decode), sides: maps.Clone(a.sides)}
}

type node struct {
	a     *Activation
	rule  rule
	depth int
	way   string // the first sequence of events that led here
}

// alphabet returns all events that may happen. There are two decode sides. Each has a
// worker, and the worker that takes its place when it is rebuilt: that one may come
// before or after the lease of the first has ended. There are two prefill endpoints
// likewise, each seen before it is ready.
func alphabet() []ActivationEvent {
	var evs []ActivationEvent
	for _, d := range []struct {
		id   worker.ID
		side string
	}{{1, "A"}, {11, "A"}, {2, "B"}, {12, "B"}} {
		evs = append(evs, ActivationEvent{Kind: DecodeJoined, Worker: d.id, Side: d.side}, ActivationEvent{Kind: DecodeLeft, Worker: d.id})
	}
	for _, id := range []worker.ID{5, 15, 6, 16} {
		for _, k := range []EventKind{PrefillSeen, PrefillUp, PrefillLeft} {
			evs = append(evs, ActivationEvent{Kind: k, Worker: id})
		}
	}
	return evs
}

// This follows every sequence of the alphabet, as a graph: sequences that lead to the
// same state continue alike, so each state is followed only once. It continues beyond
// eight events until it finds no new state, so that longer sequences are covered as
// well.
func TestEverySequenceOfEventsKeepsAllSidesActiveIfAndOnlyIfAnEndpointIsReady(t *testing.T) {
	start := node{a: &Activation{}, rule: rule{map[worker.ID]string{}, map[worker.ID]bool{}, map[string]bool{}}}
	seen := map[string]bool{}
	frontier := []node{start}
	edges, deepest := 0, 0
	for len(frontier) > 0 {
		n := frontier[0]
		frontier = frontier[1:]
		for _, ev := range alphabet() {
			edges++
			next := node{
				a: copyOf(n.a), rule: n.rule.with(ev), depth: n.depth + 1,
				way: fmt.Sprintf("%s; %s %d", n.way, ev.Kind, ev.Worker),
			}
			tr, changed := next.a.Apply(ev)
			judgeStep(t, n, next, tr, changed)
			if key := next.a.String(); !seen[key] {
				seen[key] = true
				deepest = max(deepest, next.depth)
				frontier = append(frontier, next)
			}
		}
	}
	// 16 sets of decode workers with each of the 65 sets of endpoints that have a ready
	// one. With each of the other 16 sets of endpoints, every side of the set either
	// waits or is deactivated.
	require.Len(t, seen, 16*65+(1+3*2+3*2+9*2*2)*16, "distinct states")
	require.GreaterOrEqual(t, deepest, 8)
	t.Logf("%d distinct states, %d steps, deepest %d", len(seen), edges, deepest)
}

func judgeStep(t *testing.T, from, to node, tr Transition, changed bool) {
	t.Helper()
	require.NoError(t, to.a.check(), to.way)
	require.Equal(t, to.rule.state(), to.a.State(), to.way)
	require.Equal(t, maps.Clone(to.rule.known), to.a.prefill, "the cache: %s", to.way)
	before, after := from.rule.sideStates(), to.rule.sideStates()
	names := [...]string{sideWaiting: "waiting", sideActive: "active", sideDeactivated: "deactivated"}
	got := map[string]string{}
	for name, s := range to.a.sides {
		got[name] = names[s.state]
	}
	require.Equal(t, after, got, to.way)
	var activated, reactivated, deactivated []string
	for _, s := range slices.Sorted(maps.Keys(after)) {
		switch was := before[s]; {
		case after[s] == was:
		case after[s] == "active" && was == "deactivated":
			reactivated = append(reactivated, s)
		case after[s] == "active":
			activated = append(activated, s)
		case after[s] == "deactivated":
			deactivated = append(deactivated, s)
		}
	}
	require.Equal(t, [][]string{activated, reactivated, deactivated}, [][]string{tr.Activated, tr.Reactivated, tr.Deactivated}, to.way)
	require.Equal(t, [2]State{from.rule.state(), to.rule.state()}, [2]State{tr.From, tr.To}, to.way)
	require.Equal(t, tr.From != tr.To || len(activated)+len(reactivated)+len(deactivated) > 0, changed, to.way)
	require.Equal(t, to.rule.ready() && len(to.rule.decode) > 0, to.a.CanServe(true), to.way)
	require.True(t, to.a.CanServe(false))
}

// Follow is given sets, not events. Whatever the sets before and now are, the state
// must be that of the present set, and the rule must hold after each event in between.
func TestFollowLeadsFromAnySetToAnyOther(t *testing.T) {
	sets := everySet()
	grade := func(w *worker.Worker) Grade {
		if w.Role == worker.Prefill && w.BlockSize == 0 {
			return Pending
		}
		return Ready
	}
	steps := 0
	for _, from := range sets {
		for _, to := range sets {
			for _, left := range [][]worker.ID{nil, {5}, {1, 5}, {1, 2, 5, 6}} {
				var a Activation
				for _, ev := range a.Follow(from, grade, nil) {
					a.Apply(ev)
				}
				for _, ev := range a.Follow(to, grade, left) {
					a.Apply(ev)
					require.NoError(t, a.check())
					steps++
				}
				require.Empty(t, a.Follow(to, grade, nil), "told twice, the set is news")
				for _, w := range to {
					if w.Role == worker.Prefill {
						require.Contains(t, a.prefill, w.ID)
						require.Equal(t, grade(w) == Ready, a.prefill[w.ID])
					} else {
						require.Contains(t, a.decode, w.ID)
					}
				}
				require.Equal(t, len(to), len(a.prefill)+len(a.decode))
			}
		}
	}
	require.Greater(t, steps, 1000)
}

// everySet returns all sets of two decode workers of two sides and two prefill
// endpoints; each endpoint is absent, pending or ready.
func everySet() [][]*worker.Worker {
	var sets [][]*worker.Worker
	for n := range 2 * 2 * 3 * 3 {
		var ws []*worker.Worker
		for i, d := range []string{"A", "B"} {
			if n>>i&1 == 1 {
				ws = append(ws, &worker.Worker{ID: worker.ID(i + 1), Role: worker.Decode, Deployment: d})
			}
		}
		for i, s := range []int{n / 4 % 3, n / 12} {
			if s > 0 {
				ws = append(ws, &worker.Worker{ID: worker.ID(i + 5), Role: worker.Prefill, BlockSize: uint32(s - 1)})
			}
		}
		sets = append(sets, ws)
	}
	return sets
}

func TestAnEndpointThatIsReplacedBetweenTwoSetsDeactivatesNobody(t *testing.T) {
	var a Activation
	ready := func(*worker.Worker) Grade { return Ready }
	d := &worker.Worker{ID: 1, Role: worker.Decode, Deployment: "A"}
	for _, ev := range a.Follow([]*worker.Worker{d, {ID: 5, Role: worker.Prefill}}, ready, nil) {
		a.Apply(ev)
	}
	for _, ev := range a.Follow([]*worker.Worker{d, {ID: 15, Role: worker.Prefill}}, ready, nil) {
		tr, _ := a.Apply(ev)
		require.Empty(t, tr.Deactivated)
	}
	require.Equal(t, "prefill-ready prefill/15=ready side/A=active(1)", a.String())
}
