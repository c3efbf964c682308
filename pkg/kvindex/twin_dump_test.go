package kvindex_test

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/kvindex/oracle"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// TestADumpGivesBackWhatRanksHold dumps a tree in the middle of random operations,
// loads the dump, and removes the blocks one by one. Names, tiers, chains and holes
// must be those of the map that executed every operation.
func TestADumpGivesBackWhatRanksHold(t *testing.T) {
	t.Parallel()
	for name, ranks := range map[string]int{"a few ranks": 6, "many ranks": 80} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seed := kvindex.Seed()
			if seed == 0 {
				seed = uint64(time.Now().UnixNano())
			}
			t.Logf("-model.seed=%d", seed)
			rng := rand.New(rand.NewPCG(seed, 3))
			s := newScript(t, ranks, rng.IntN)
			for _, r := range s.ranks {
				s.tree.Attach(r)
				s.oracle.Attach(r)
			}
			rounds := 40
			if kvindex.FewRounds() {
				rounds = 4
			}
			for range rounds {
				for range 2_000 {
					s.step()
				}
				var there []worker.Rank
				for _, r := range s.ranks {
					if _, ok := s.oracle.Slot(r); ok {
						there = append(there, r)
					}
				}
				dump := kvindex.DumpOf(t, s.tree, there...)
				tree, flat := kvindex.NewTreeFor(t, kvindex.NewSlots()), oracle.New(kvindex.RouteConfig{})
				kvindex.Loaded(t, dump, tree)
				kvindex.Loaded(t, dump, flat)
				s.takeApart(tree, flat, there)
			}
		})
	}
}

// takeApart removes what the ranks hold, in random order, from both indexes and from a
// copy of the oracle.
func (s *script) takeApart(tree *kvindex.Tree, flat *oracle.Map, ranks []worker.Rank) {
	want := s.oracle.Clone() // without a dump, since dumps are what is tested
	some := func() (cs [][]kvindex.LocalHash) {
		for range 20 {
			cs = append(cs, s.chain(1+s.choose(10)))
		}
		return cs
	}
	for _, x := range []checkedIndex{tree, flat} {
		require.NoError(s.t, x.Check())
		kvindex.Alike(s.t, want, x, ranks, some()...)
	}
	for round := range 4 {
		for _, r := range ranks {
			for _, h := range want.Names(r) {
				if round < 3 && s.choose(3) > 0 {
					continue
				}
				for tier := range kvindex.NumTiers {
					e := kvindex.Removed{Blocks: []kvindex.EngineHash{h}, Tier: tier}
					for _, x := range []kvindex.Index{want, tree, flat} {
						require.NoError(s.t, x.Remove(r, e))
					}
				}
			}
		}
		require.NoError(s.t, tree.Check())
		kvindex.Alike(s.t, want, tree, ranks, some()...)
		kvindex.Alike(s.t, want, flat, ranks, some()...)
	}
	require.Zero(s.t, tree.LeftBlocks(), "something is left of nothing")
}

// FuzzReadDump: the tree and the map load every accepted dump kvindex.Alike, and Check of the
// tree passes.
func FuzzReadDump(f *testing.F) {
	whole := kvindex.SmallDump(f)
	head := len(kvindex.DumpMagic) + 1 + kvindex.HashBytes
	f.Add(whole[head : len(whole)-kvindex.HashBytes])
	f.Fuzz(func(t *testing.T, parts []byte) {
		if _, err := kvindex.ReadDump(bytes.NewReader(parts)); err != nil {
			require.ErrorIs(t, err, kvindex.ErrDump)
		}
		d, err := kvindex.ReadDump(bytes.NewReader(kvindex.Sealed(append(slices.Clone(whole[:head]), parts...))))
		if err != nil {
			require.ErrorIs(t, err, kvindex.ErrDump)
			return
		}
		tr, err := kvindex.NewTree(kvindex.TreeConfig{MaxBytes: 1 << 20, NoHugePages: true}, kvindex.NewSlots())
		require.NoError(t, err)
		m := oracle.New(kvindex.RouteConfig{})
		var c kvindex.RankCopy
		var ranks []worker.Rank
		var chains [][]kvindex.LocalHash
		for _, x := range d.Ranks() {
			require.True(t, d.Copy(x.Rank, &c))
			ranks = append(ranks, x.Rank)
			for _, p := range c.Paths() {
				chains = append(chains, p)
			}
			for _, into := range []kvindex.Index{tr, m} {
				into.Attach(x.Rank)
				left, err := c.Load(into)
				require.NoError(t, err)
				st, _ := into.Stats(x.Rank)
				require.LessOrEqual(t, st.Blocks, x.Blocks-left)
			}
		}
		require.NoError(t, tr.Check())
		require.NoError(t, m.Check())
		kvindex.Alike(t, m, tr, ranks, chains...)
	})
}
