package kvindex_test

import (
	"flag"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/kvindex/oracle"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

var treeOpsFlag = flag.Int("model.treeops", 1_000_000, "operations of the tree's model test")

// twinRoute makes routed prompts expire early, and exceed the most blocks.
var twinRoute = kvindex.RouteConfig{TTL: 50 * time.Second, PredictedTTL: 20 * time.Second, MaxBlocks: 120}

// twin is a tree, and the map that says what the tree should answer.
type twin struct {
	t      testing.TB
	tree   *kvindex.Tree
	oracle *oracle.Map
	ranks  []worker.Rank
	now    time.Time
	a, b   kvindex.Overlap
}

func newTwin(t testing.TB, ranks int) *twin {
	w := &twin{t: t, now: time.Unix(1000, 0), oracle: oracle.New(twinRoute)}
	w.tree = kvindex.NewTreeOf(t, kvindex.NewSlots(), kvindex.TreeConfig{MaxBytes: 32 << 20, NoHugePages: true, Route: twinRoute})
	for id := range ranks {
		w.ranks = append(w.ranks, worker.Rank{ID: worker.ID(id/2 + 1), DPRank: worker.DPRank(id % 2)})
	}
	return w
}

func (w *twin) store(r worker.Rank, e kvindex.Stored) {
	require.ErrorIs(w.t, w.tree.Store(r, e), w.oracle.Store(r, e), "store %s %+v", r, e)
}

func (w *twin) remove(r worker.Rank, e kvindex.Removed) {
	require.ErrorIs(w.t, w.tree.Remove(r, e), w.oracle.Remove(r, e))
}

func (w *twin) compare(chain []kvindex.LocalHash) {
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
	held   map[worker.Rank][]kvindex.EngineHash // all names that were stored, newest last
	paths  map[kvindex.EngineHash][]kvindex.LocalHash
	choose func(n int) int
}

func (s *script) chain(n int) (c []kvindex.LocalHash) {
	for range n {
		c = append(c, kvindex.LocalHash(1+s.choose(2)))
	}
	return c
}

// name returns an engine hash for a path; now and then it is the hash of another path.
func (s *script) name(path []kvindex.LocalHash) kvindex.EngineHash {
	h := kvindex.EngineHash(len(path))
	for _, p := range path {
		h = h*3 + kvindex.EngineHash(p)
	}
	if s.choose(40) == 0 {
		h++
	}
	return h
}

func (s *script) step() {
	r := s.ranks[s.choose(len(s.ranks))]
	tier := kvindex.Tier(0)
	if s.choose(4) == 0 {
		tier = kvindex.Tier(s.choose(int(kvindex.NumTiers)))
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

func (s *script) storeSome(r worker.Rank, tier kvindex.Tier) {
	var path []kvindex.LocalHash
	e := kvindex.Stored{Tier: tier}
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
		e.Blocks = append(e.Blocks, kvindex.Block{Engine: h, Local: path[len(path)-1]})
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
	g := kvindex.Guess(s.choose(2))
	require.Equal(s.t, s.oracle.Route(r, chain, g, s.now), s.tree.Route(r, chain, g, s.now))
	if s.choose(4) == 0 {
		s.compare(append(chain, s.chain(1)...))
	}
}

func (s *script) removeSome(r worker.Rank, tier kvindex.Tier) {
	e := kvindex.Removed{Tier: tier}
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
		held: map[worker.Rank][]kvindex.EngineHash{}, paths: map[kvindex.EngineHash][]kvindex.LocalHash{},
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
			seed := kvindex.Seed()
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
			if kvindex.FewRounds() {
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
			require.Zero(t, s.tree.Left(), "something is left of nothing")
		})
	}
}

// TestRanksThatOnlyRoutingNamesComeAndGo: a rank that only Route has named keeps its
// slot while it has something, and loses it when others come later. Attached ranks
// stay.
func TestRanksThatOnlyRoutingNamesComeAndGo(t *testing.T) {
	for name, index := range map[string]func() (checkedIndex, numbers){
		"map":  mapOf(kvindex.RouteConfig{TTL: 120 * time.Second, PredictedTTL: 10 * time.Second, MaxBlocks: 500_000}),
		"tree": treeOf(t, kvindex.RouteConfig{}),
	} {
		t.Run(name, func(t *testing.T) {
			x, slots := index()
			for i := range 10 {
				x.Attach(kvindex.RankOf(i))
			}
			now := time.Unix(1000, 0)
			for i := 10; i < 3000; i++ {
				x.Route(kvindex.RankOf(i), []kvindex.LocalHash{1, 2}, kvindex.Estimated, now)
				now = now.Add(10 * time.Second) // twelve ranks have something at any time
				_, kept := slots.Slot(kvindex.RankOf(max(i-11, 0)))
				require.True(t, kept)
				if i%100 == 0 {
					require.NoError(t, x.Check())
				}
			}
			require.LessOrEqual(t, slots.Len(), 4*kvindex.GroupSlots)
			for i := range 10 {
				_, ok := x.Slot(kvindex.RankOf(i))
				require.True(t, ok)
			}
			var dst kvindex.Overlap
			x.Overlap([]kvindex.LocalHash{1, 2}, &dst)
			for i := 2988; i < 3000; i++ {
				s, ok := slots.Slot(kvindex.RankOf(i))
				require.True(t, ok)
				require.Equal(t, kvindex.Held{Routed: 2}, slots.Held(s, &dst))
			}
			_, ok := slots.Slot(kvindex.RankOf(11))
			require.False(t, ok)

			// A rank that is attached afterwards is like any kvindex.Other.
			s := x.Attach(kvindex.RankOf(2999))
			x.Expire(now.Add(time.Hour))
			require.NoError(t, x.Store(kvindex.RankOf(2999), kvindex.Stored{Blocks: kvindex.SeqRun(1, 1)}))
			x.Overlap([]kvindex.LocalHash{1, 2}, &dst)
			require.Equal(t, kvindex.Held{Device: 1}, slots.Held(s, &dst))
			require.NoError(t, x.Check())
		})
	}
}

// FuzzTreeEqualsMap makes the choices of the model test from the input's bytes.
func FuzzTreeEqualsMap(f *testing.F) {
	f.Add([]byte("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"))
	f.Add([]byte{0, 0, 1, 0, 0, 1, 0, 5, 60, 0, 1, 3, 1, 0, 1, 0, 1, 60, 0, 1, 3, 2, 0, 0, 0, 120, 1, 0, 0, 190, 3})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<12 {
			return
		}
		// Trees are freed only by the garbage collector, so they are small.
		small, err := kvindex.NewTree(kvindex.TreeConfig{MaxBytes: kvindex.LeastBytes, NoHugePages: true, Route: twinRoute}, kvindex.NewSlots())
		require.NoError(t, err)
		s := newScript(t, 4, func(n int) int {
			if len(data) == 0 {
				return 0
			}
			c := int(data[0])
			data = data[1:]
			return c % n
		})
		small.SetSeeds(1) // otherwise coverage would differ from run to run
		s.tree = small
		for _, r := range s.ranks {
			s.tree.Attach(r)
			s.oracle.Attach(r)
		}
		for len(data) > 0 {
			s.step()
		}
		require.NoError(t, s.tree.Check())
		s.compareStats()
	})
}

// checkedIndex is an index whose invariants can be checked: a Tree or a Map.
type checkedIndex interface {
	kvindex.Index
	Check() error
}

// numbers are the slots of an index.
type numbers interface {
	Slot(worker.Rank) (kvindex.Slot, bool)
	Len() int
	Held(kvindex.Slot, *kvindex.Overlap) kvindex.Held
}

func mapOf(c kvindex.RouteConfig) func() (checkedIndex, numbers) {
	return func() (checkedIndex, numbers) {
		m := oracle.New(c)
		return m, m.Numbers()
	}
}

func treeOf(t testing.TB, c kvindex.RouteConfig) func() (checkedIndex, numbers) {
	return func() (checkedIndex, numbers) {
		slots := kvindex.NewSlots()
		return kvindex.NewTreeOf(t, slots, kvindex.TreeConfig{MaxBytes: 32 << 20, NoHugePages: true, Route: c}), slots
	}
}
