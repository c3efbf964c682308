package blame

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/pagepart"
)

var freshNames = [...]string{"no", "yes", "if another can", "if another can, and this one refuses more than its pool"}

func (f Fresh) String() string { return freshNames[f] }

var avoidNames = [...]string{"nobody", "this worker", "both workers"}

func (a Avoid) String() string { return avoidNames[a] }

const (
	architecture = "../../ARCHITECTURE.md"
	begins       = "<!-- the blame table begins; `make golden` writes it from internal/blame/table.go -->\n"
	ends         = "<!-- the blame table ends -->"
)

// markdown is the table as ARCHITECTURE.md has it.
func markdown() string {
	var b strings.Builder
	b.WriteString("| seen | leg | who ended it, and how that is known | charged | fresh attempt | it avoids | outcome without one |\n| --- | --- | --- | --- | --- | --- | --- |\n")
	for i := range groups {
		g := &groups[i]
		names := make([]string, len(g.legs))
		for i, l := range g.legs {
			names[i] = l.String()
		}
		legs := strings.Join(names, ", ")
		if len(g.legs) == int(numLegs) {
			legs = "any"
		}
		charged := g.row.Charge.String()
		if g.row.Charge.waits() && g.row.Fresh != No {
			charged += ", once a mate has served it"
		}
		if g.row.Pair {
			charged += "; so is the pair"
		}
		if g.row.Suspect {
			charged += "; probed at once"
		}
		out := "the other leg's"
		if g.row.Outcome != notTheLegs {
			out = "`" + string(g.row.Outcome) + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s | %s |\n", g.sight, legs, g.why, charged, g.row.Fresh, g.row.Avoid, out)
	}
	return b.String()
}

// TestTheTableIsThatOfArchitecture holds ARCHITECTURE.md and the code together;
// -rewrite writes it.
func TestTheTableIsThatOfArchitecture(t *testing.T) {
	b, err := os.ReadFile(architecture)
	require.NoError(t, err)
	want, err := pagepart.Replace(string(b), begins, ends, func(string) string { return markdown() })
	require.NoError(t, err)
	_ = datadriven.TestData{} // its package declares -rewrite
	if flag.Lookup("rewrite").Value.String() == "true" {
		require.NoError(t, os.WriteFile(architecture, []byte(want), 0o644))
		return
	}
	require.Equal(t, want, string(b), "make golden")
}

// TestEveryCellKeepsTheInvariants walks the table.
func TestEveryCellKeepsTheInvariants(t *testing.T) {
	above := map[Sight]bool{NotStarted: true, NotSent: true, Overflow: true, Ended: true, TimedOut: true, Aborted: true, Gone: true, CarrierLost: true, Expired: true, ClientLeft: true, Unfinished: true, TooLong: true, Redirected: true, Stale: true}
	seen := make(map[key]bool)
	for _, r := range Rows() {
		name := fmt.Sprintf("%s of %s", r.Sight, r.Leg)
		require.False(t, seen[key{r.Leg, r.Sight}], "%s is there twice", name)
		seen[key{r.Leg, r.Sight}] = true
		require.Equal(t, r, Of(r.Leg, r.Sight), name)
		if r.Sight == Unmade || r.Sight == Raced {
			require.True(t, r.Charge == None && r.Suspect && r.Avoid == It, "E1: %s is no proof", name)
		} else if r.Sight == Stuck {
			require.True(t, r.Charge == None && r.Suspect && r.Fresh == No, "E1: %s is silence alone", name)
		} else if above[r.Sight] {
			require.Zero(t, r.Charge, "E1: %s", name)
			require.False(t, r.Pair || r.Suspect, "E1: %s", name)
		} else {
			require.True(t, r.Charge != None || r.Pair, "E1: %s is evidence on a worker", name)
		}
		require.Equal(t, r.Sight == Served, r.Charge == Credit, "E3: %s", name)
		if r.Charge.waits() {
			require.NotZero(t, r.Fresh, "E4: %s: only another attempt can tell", name)
			require.NotZero(t, r.Avoid, "E5: %s", name)
		}
		if r.Fresh != No && (r.Charge != None || r.Pair) {
			require.NotZero(t, r.Avoid, "E5: %s", name)
		}
		if r.Avoid == Both {
			require.Contains(t, []Leg{Mirrored, Decode}, r.Leg, name)
		}
		require.Equal(t, !r.Leg.Prefill() && (r.Sight == Lost || r.Sight == Raced || r.Sight == Unsent), r.Loses(), "E7: %s", name)
		if !r.Leg.Prefill() && r.Sight != Stuck {
			require.NotEmpty(t, r.Outcome, "E6: %s", name)
		}
	}
	require.Equal(t, Row{Sight: "new", Leg: Alone, Outcome: Failed}, Of(Alone, "new"), "what nobody knows charges nobody")
}

func TestAMateTellsWhoseFaultItWas(t *testing.T) {
	var s Suspects[string]
	s, now := s.And(Suspect[string]{Worker: "a", Charge: Error})
	require.Equal(t, None, now, "it waits for the mate's word")
	s, now = s.And(Suspect[string]{Worker: "b", Charge: Connect})
	require.Equal(t, Connect, now, "a refused connection needs no mate")

	require.Equal(t, []Verdict[string]{{Worker: "a", Charge: Error, Proven: true}}, s.Served(0, "c"))
	require.Empty(t, s.Served(0, "a"), "it has served the request itself")

	_, made := s.Last("c", Error)
	require.False(t, made, "a mate has failed alike: the fault is the request's")
	v, made := s.Last("a", Error)
	require.True(t, made, "only itself has failed so")
	require.Equal(t, Verdict[string]{Worker: "a", Charge: Error}, v)
	v, made = s.Last("c", Refusal)
	require.True(t, made, "that is something else")
	require.Equal(t, Verdict[string]{Worker: "c", Charge: Refusal}, v)
	_, made = s.Last("c", None)
	require.False(t, made)
}

func TestOfAPairTheMateShowsWhichSideItWas(t *testing.T) {
	failed := &[2]string{"p1", "d1"}
	served := func(prefillAlone, decodeAlone bool, by ...string) []Verdict[string] {
		s, now := Suspects[string](nil).And(Suspect[string]{Worker: "d1", Charge: Error, Pair: failed, Lone: [2]bool{prefillAlone, decodeAlone}})
		require.Equal(t, None, now)
		return s.Served(0, by...)
	}
	pair := []Verdict[string]{{Pair: failed, Proven: true}}
	require.Equal(t, pair, served(false, false, "p2", "d2"), "either may be")
	require.Equal(t, pair, served(false, false, "p2", "d1"), "prefill, or the way between the two")
	require.Equal(t, pair, served(false, false, "p1", "d2"), "decode, or the way between the two")
	require.Empty(t, served(false, false, "p1", "d1"))

	require.Equal(t, []Verdict[string]{{Worker: "d1", Charge: Error, Proven: true}}, served(true, false, "p1", "d2"), "it has no other prefill to fail with")
	require.Equal(t, []Verdict[string]{{Worker: "p1", Charge: Error, Proven: true}}, served(false, true, "p2", "d1"), "it has no other decode")
	require.Empty(t, served(true, true, "p1", "d1"))
}

func TestOnlyAFasterMateShowsThatAWorkerWasSlow(t *testing.T) {
	s, now := Suspects[string](nil).And(Suspect[string]{Worker: "a", Charge: Slow, Within: 2 * time.Second})
	require.Equal(t, None, now)
	require.Equal(t, []Verdict[string]{{Worker: "a", Charge: Slow, Proven: true}}, s.Served(time.Second, "b"))
	require.Empty(t, s.Served(2*time.Second, "b"), "it took as long there: the request is what takes long")

	s, _ = Suspects[string](nil).And(Suspect[string]{Worker: "p1", Pair: &[2]string{"p1", "d1"}, Lone: [2]bool{true, false}, Within: 2 * time.Second})
	require.Equal(t, []Verdict[string]{{Worker: "d1", Charge: Slow, Proven: true}}, s.Served(time.Second, "p1", "d2"))
	require.Empty(t, s.Served(2*time.Second, "p1", "d2"))
}

// TestAddingASuspectLeavesOthersAlone: attempts of two requests may begin with the
// same slice.
func TestAddingASuspectLeavesOthersAlone(t *testing.T) {
	add := func(s Suspects[int], w int) Suspects[int] {
		s, _ = s.And(Suspect[int]{Worker: w, Charge: Error})
		return s
	}
	base := add(make(Suspects[int], 0, 8), 1)
	one, two := add(base, 2), add(base, 3)
	require.Equal(t, 2, one[1].Worker)
	require.Equal(t, 3, two[1].Worker)
}
