package kvindex_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// The verbs of testdata. A block is written a, b, …: its local hash is the hash of that
// name. Its engine hash is that of the name as well, or of engine if it is written
// name=engine.
//
//	attach 7/0                      slot of the rank
//	detach 7/0
//	store 7/0 [parent=b] [tier=host] a b=x c
//	remove 7/0 [tier=host] a b
//	clear 7/0
//	overlap a b c                   for each rank that has any, rank:blocks on Device, +h on Host, +d on Disk, +e on External
//	overlap-run n                   the blocks 1 … n as the chain
//	store-run 7/0 n                 the same blocks stored as one event
//	stats 7/0
//	slots                           the numbering
//	route 7/0 at=1s [predicted] a b c   prints when Expire has to be called next
//	route-run 7/0 at=1s n           the blocks 1 … n
//	expire at=1s                    prints when Expire has to be called next
//
// Routed prompts last 10 s, predicted ones 2 s, and have at most six blocks together.
// overlap shows as +r how many routed blocks there are beyond those on Device. Check
// runs after every verb. Both implementations answer every file.
func TestScenarios(t *testing.T) {
	for name, index := range map[string]func() (checkedIndex, numbers){
		"map": mapOf(scenarioRoute), "tree": treeOf(t, scenarioRoute),
	} {
		t.Run(name, func(t *testing.T) { walkScenarios(t, index) })
	}
}

var scenarioRoute = kvindex.RouteConfig{TTL: 10 * time.Second, PredictedTTL: 2 * time.Second, MaxBlocks: 6}

func walkScenarios(t *testing.T, index func() (checkedIndex, numbers)) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		if strings.Contains(path, "/fuzz/") {
			t.Skip("the fuzzer's corpus")
		}
		if strings.Contains(path, "/vectors/") {
			t.Skip("not scenarios: read by TestHashesMatchVectorsOfAnotherImplementation")
		}
		s := &scenario{}
		s.m, s.slots = index()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var out strings.Builder
			for line := range strings.Lines(d.Cmd + " " + args(d) + "\n" + d.Input) {
				if f := strings.Fields(line); len(f) > 0 {
					s.do(t, f[0], f[1:], &out)
					if err := s.m.Check(); err != nil {
						fmt.Fprintln(&out, err)
					}
				}
			}
			return out.String()
		})
	})
}

func args(d *datadriven.TestData) string {
	var out []string
	for _, a := range d.CmdArgs {
		if len(a.Vals) > 0 {
			out = append(out, a.Key+"="+a.Vals[0])
		} else {
			out = append(out, a.Key)
		}
	}
	return strings.Join(out, " ")
}

type scenario struct {
	slots numbers
	m     checkedIndex
	ranks []worker.Rank // all ranks of the file so far, sorted
	dst   kvindex.Overlap
}

func blockOf(name string) kvindex.Block {
	local, engine, ok := strings.Cut(name, "=")
	if !ok {
		engine = local
	}
	return kvindex.Block{Engine: kvindex.EngineHash(nameHash(engine)), Local: kvindex.LocalHash(nameHash(local))}
}

func nameHash(name string) uint64 {
	var h uint64
	for _, c := range name {
		h = h<<8 | uint64(c)
	}
	return h
}

func (s *scenario) rank(t *testing.T, text string) worker.Rank {
	id, dp, _ := strings.Cut(text, "/")
	n, err := worker.ParseID(id)
	if err != nil {
		t.Fatal(err)
	}
	p, err := strconv.ParseUint(dp, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	r := worker.Rank{ID: n, DPRank: worker.DPRank(p)}
	if !slices.Contains(s.ranks, r) {
		s.ranks = append(s.ranks, r)
		slices.SortFunc(s.ranks, func(a, b worker.Rank) int { return strings.Compare(a.String(), b.String()) })
	}
	return r
}

func (s *scenario) do(t *testing.T, verb string, f []string, out *strings.Builder) {
	opts := map[string]string{}
	f = slices.DeleteFunc(slices.Clone(f), func(a string) bool {
		k, v, ok := strings.Cut(a, "=")
		if ok && (k == "parent" || k == "tier" || k == "at") {
			opts[k] = v
			return true
		}
		return false
	})
	tier := kvindex.Tier(max(0, slices.Index(kvindex.TierNames(), opts["tier"])))
	at, _ := time.ParseDuration(opts["at"])
	now := time.Unix(1000, 0).Add(at)
	var r worker.Rank
	if len(f) > 0 && strings.Contains(f[0], "/") {
		r, f = s.rank(t, f[0]), f[1:]
	}
	var blocks []kvindex.Block
	for _, a := range f {
		blocks = append(blocks, blockOf(a))
	}
	chain := func(bs []kvindex.Block) (c []kvindex.LocalHash) {
		for _, b := range bs {
			c = append(c, b.Local)
		}
		return c
	}
	report := func(err error) {
		if err != nil {
			fmt.Fprintln(out, err)
		} else {
			fmt.Fprintln(out, "ok")
		}
	}
	switch verb {
	case "attach":
		fmt.Fprintln(out, "slot", s.m.Attach(r))
	case "detach":
		s.m.Detach(r)
		report(nil)
	case "store":
		e := kvindex.Stored{Blocks: blocks, Tier: tier}
		if p := opts["parent"]; p != "" {
			e.Parent, e.HasParent = kvindex.EngineHash(nameHash(p)), true
		}
		report(s.m.Store(r, e))
	case "store-run":
		report(s.m.Store(r, kvindex.Stored{Blocks: run(t, f[0])}))
	case "remove":
		e := kvindex.Removed{Tier: tier}
		for _, b := range blocks {
			e.Blocks = append(e.Blocks, b.Engine)
		}
		report(s.m.Remove(r, e))
	case "clear":
		report(s.m.Clear(r))
	case "overlap", "overlap-run":
		if verb == "overlap-run" {
			blocks = run(t, f[0])
		}
		s.m.Overlap(chain(blocks), &s.dst)
		s.writeOverlap(out)
	case "route", "route-run":
		guess := kvindex.Estimated
		if f[0] == "predicted" {
			guess, blocks = kvindex.Predicted, blocks[1:]
		}
		if verb == "route-run" {
			blocks = run(t, f[0])
		}
		writeNext(out, s.m.Route(r, chain(blocks), guess, now))
	case "expire":
		writeNext(out, s.m.Expire(now))
	case "stats":
		st, ok := s.m.Stats(r)
		if !ok {
			fmt.Fprintln(out, "no such rank")
			return
		}
		fmt.Fprintf(out, "blocks=%d tiers=%v routed=%d stored=%d duplicates=%d unknown_parents=%d conflicts=%d removed=%d unknown_removes=%d clears=%d\n",
			st.Blocks, st.TierBlocks, st.Routed, st.Stored, st.Duplicates, st.UnknownParents, st.Conflicts, st.Removed, st.UnknownRemoves, st.Clears)
	case "slots":
		for _, r := range s.ranks {
			if n, ok := s.slots.Slot(r); ok {
				fmt.Fprintf(out, "%s=%d\n", r, n)
			}
		}
		fmt.Fprintln(out, "length", s.slots.Len())
	default:
		t.Fatalf("unknown verb %q", verb)
	}
}

func (s *scenario) writeOverlap(out *strings.Builder) {
	var got []string
	for _, r := range s.ranks {
		n, ok := s.slots.Slot(r)
		held := s.slots.Held(n, &s.dst)
		if !ok || held == (kvindex.Held{}) {
			continue
		}
		text := fmt.Sprintf("%s:%d", r, held.Device)
		for _, more := range []struct {
			n    uint32
			unit string
		}{{held.Host, "h"}, {held.Disk, "d"}, {held.External, "e"}, {held.Routed - min(held.Routed, held.Device), "r"}} {
			if more.n > 0 {
				text += fmt.Sprintf("+%d%s", more.n, more.unit)
			}
		}
		got = append(got, text)
	}
	if got == nil {
		got = []string{"none"}
	}
	fmt.Fprintln(out, strings.Join(got, " "))
}

func writeNext(out *strings.Builder, next time.Time) {
	if next.IsZero() {
		fmt.Fprintln(out, "nothing")
	} else {
		fmt.Fprintln(out, "next at", next.Sub(time.Unix(1000, 0)))
	}
}

func run(t *testing.T, text string) (out []kvindex.Block) {
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		out = append(out, kvindex.Block{Engine: kvindex.EngineHash(i + 1), Local: kvindex.LocalHash(i + 1)})
	}
	return out
}
