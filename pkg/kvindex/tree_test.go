package kvindex

import (
	"flag"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

var treeOpsFlag = flag.Int("model.treeops", 1_000_000, "operations of the tree's model test")

// slow says that this is the race detector's build, in which tests have fewer rounds.
const slow = MostBytes < 1<<28

// fewRounds reports whether random tests run only a part of their rounds: under the
// race detector, and with -short, as in make test-unit.
func fewRounds() bool { return slow || testing.Short() }

func newTree(t testing.TB, slots *Slots) *Tree {
	return newTreeOf(t, slots, TreeConfig{MaxBytes: 32 << 20, NoHugePages: true})
}

func newTreeOf(t testing.TB, slots *Slots, c TreeConfig) *Tree {
	tr, err := NewTree(c, slots)
	require.NoError(t, err)
	return tr
}

// twinRoute makes routed prompts expire early, and exceed the most blocks.
var twinRoute = RouteConfig{TTL: 50 * time.Second, PredictedTTL: 20 * time.Second, MaxBlocks: 120}

// twin is a tree, and the map that says what the tree should answer.
type twin struct {
	t      testing.TB
	tree   *Tree
	oracle *plainMap
	ranks  []worker.Rank
	now    time.Time
	a, b   Overlap
}

func newTwin(t testing.TB, ranks int) *twin {
	w := &twin{t: t, now: time.Unix(1000, 0), oracle: newPlainMapOf(NewSlots(), twinRoute)}
	w.tree = newTreeOf(t, NewSlots(), TreeConfig{MaxBytes: 32 << 20, NoHugePages: true, Route: twinRoute})
	for id := range ranks {
		w.ranks = append(w.ranks, worker.Rank{ID: worker.ID(id/2 + 1), DPRank: worker.DPRank(id % 2)})
	}
	return w
}

func (w *twin) store(r worker.Rank, e Stored) {
	require.ErrorIs(w.t, w.tree.Store(r, e), w.oracle.Store(r, e), "store %s %+v", r, e)
}

func (w *twin) remove(r worker.Rank, e Removed) {
	require.ErrorIs(w.t, w.tree.Remove(r, e), w.oracle.Remove(r, e))
}

func (w *twin) compare(chain []LocalHash) {
	w.tree.Overlap(chain, &w.a)
	w.oracle.Overlap(chain, &w.b)
	if !slices.Equal(w.b.Blocks, w.a.Blocks) { // for all views, since both number them in the same way
		require.Equal(w.t, w.b.Blocks, w.a.Blocks, "overlap %v", chain)
	}
}

func (w *twin) compareStats() {
	for _, r := range w.ranks {
		want, ok := w.oracle.Stats(r)
		got, have := w.tree.Stats(r)
		require.Equal(w.t, ok, have)
		require.Equal(w.t, want, got, "stats of %s", r)
	}
}

// script makes operations from choices, which come from a random source or from a
// fuzzer's bytes.
type script struct {
	twin
	held   map[worker.Rank][]EngineHash // all names that were stored, newest last
	paths  map[EngineHash][]LocalHash
	choose func(n int) int
}

func (s *script) chain(n int) (c []LocalHash) {
	for range n {
		c = append(c, LocalHash(1+s.choose(2)))
	}
	return c
}

// name returns an engine hash for a path; now and then it is the hash of another path.
func (s *script) name(path []LocalHash) EngineHash {
	h := EngineHash(len(path))
	for _, p := range path {
		h = h*3 + EngineHash(p)
	}
	if s.choose(40) == 0 {
		h++
	}
	return h
}

func (s *script) step() {
	r := s.ranks[s.choose(len(s.ranks))]
	tier := Tier(0)
	if s.choose(4) == 0 {
		tier = Tier(s.choose(int(numTiers)))
	}
	s.now = s.now.Add(time.Duration(s.choose(3)-1) * 300 * time.Millisecond)
	switch k := s.choose(240); {
	case k >= 200:
		s.routeSome(r)
	case k < 10:
		require.Equal(s.t, s.oracle.Attach(r), s.tree.Attach(r))
	case k < 11:
		s.oracle.Detach(r)
		s.tree.Detach(r)
	case k < 12:
		require.ErrorIs(s.t, s.tree.Clear(r), s.oracle.Clear(r))
	case k < 110:
		s.storeSome(r, tier)
	case k < 160:
		s.removeSome(r, tier)
	default:
		s.compare(s.chain(s.choose(14)))
	}
}

func (s *script) storeSome(r worker.Rank, tier Tier) {
	var path []LocalHash
	e := Stored{Tier: tier}
	if old := s.held[r]; len(old) > 0 && s.choose(4) > 0 {
		e.Parent, e.HasParent = old[max(0, len(old)-1-s.choose(6))], true
		path = slices.Clone(s.paths[e.Parent])
	} else if s.choose(8) == 0 {
		path = s.chain(s.choose(4))
		e.Parent, e.HasParent = s.name(path), true
	}
	for range s.choose(6) {
		path = append(path, s.chain(1)...)
		h := s.name(path)
		e.Blocks = append(e.Blocks, Block{Engine: h, Local: path[len(path)-1]})
		if len(path) < 40 {
			s.held[r] = append(s.held[r], h)
			s.paths[h] = slices.Clone(path)
		}
	}
	s.store(r, e)
	if n := len(s.held[r]); n > 200 {
		s.held[r] = slices.Clone(s.held[r][n/2:])
	}
	if s.choose(4) == 0 {
		s.compare(append(path, s.chain(1)...))
	}
}

// routeSome routes a prompt that may be held already, as a whole or in part, by this
// rank or another.
func (s *script) routeSome(r worker.Rank) {
	s.now = s.now.Add(time.Duration(s.choose(8)) * time.Second)
	if s.choose(8) == 0 {
		require.Equal(s.t, s.oracle.Expire(s.now), s.tree.Expire(s.now))
		return
	}
	chain := s.chain(s.choose(10))
	if old := s.held[s.ranks[s.choose(len(s.ranks))]]; len(old) > 0 && s.choose(3) > 0 {
		chain = append(slices.Clone(s.paths[old[len(old)-1-s.choose(min(len(old), 20))]]), chain...)
	}
	g := Guess(s.choose(2))
	require.Equal(s.t, s.oracle.Route(r, chain, g, s.now), s.tree.Route(r, chain, g, s.now))
	if s.choose(4) == 0 {
		s.compare(append(chain, s.chain(1)...))
	}
}

func (s *script) removeSome(r worker.Rank, tier Tier) {
	e := Removed{Tier: tier}
	old := s.held[r]
	for range s.choose(5) {
		switch {
		case s.choose(10) == 0 || len(old) == 0:
			e.Blocks = append(e.Blocks, s.name(s.chain(1+s.choose(5))))
		default:
			e.Blocks = append(e.Blocks, old[s.choose(len(old))])
		}
	}
	s.remove(r, e)
}

func newScript(t testing.TB, ranks int, choose func(int) int) *script {
	return &script{
		twin: *newTwin(t, ranks), choose: choose,
		held: map[worker.Rank][]EngineHash{}, paths: map[EngineHash][]LocalHash{},
	}
}

// TestTreeEqualsMapUnderRandomOperations runs the same random operations on both, and
// compares everything that can be observed. A few ranks make holes and partly held
// runs; many ranks make crowds.
func TestTreeEqualsMapUnderRandomOperations(t *testing.T) {
	t.Parallel() // each half takes seconds of one processor
	for name, ranks := range map[string]int{"a few ranks": 6, "many ranks": 150} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seed := *seedFlag
			if seed == 0 {
				seed = uint64(time.Now().UnixNano())
			}
			t.Logf("-model.seed=%d", seed)
			s := newScript(t, ranks, rand.New(rand.NewPCG(seed, 1)).IntN)
			for _, r := range s.ranks {
				s.tree.Attach(r)
				s.oracle.Attach(r)
			}
			ops := *treeOpsFlag / 2
			if fewRounds() {
				ops /= 10
			}
			for op := range ops {
				s.step()
				if op%1024 == 0 {
					require.NoError(t, s.tree.Check(), "operation %d", op)
					s.compareStats()
				}
			}
			for _, r := range s.ranks {
				s.tree.Detach(r)
			}
			require.NoError(t, s.tree.Check())
			require.Zero(t, s.tree.trie.ids.used()+s.tree.trie.blocks.used+s.tree.trie.holders.used+s.tree.ledger.names.segs.used(), "something is left of nothing")
		})
	}
}
