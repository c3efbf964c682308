package oracle

import (
	"flag"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

var (
	seedFlag = flag.Uint64("model.seed", 0, "seed of the model test; 0: from the clock")
	opsFlag  = flag.Int("model.ops", 30_000, "operations of the model test")
)

// lists is an index made of lists: it has every block with its whole path.
type lists map[worker.Rank][]listed

type listed struct {
	engine kvindex.EngineHash
	path   []kvindex.LocalHash
	tiers  [numTiers]bool
}

func (l lists) find(r worker.Rank, h kvindex.EngineHash) int {
	return slices.IndexFunc(l[r], func(b listed) bool { return b.engine == h })
}

func (l lists) store(r worker.Rank, e kvindex.Stored) error {
	if _, ok := l[r]; !ok {
		return kvindex.ErrUnknownRank
	}
	var path []kvindex.LocalHash
	used := []kvindex.EngineHash{}
	if e.HasParent {
		i := l.find(r, e.Parent)
		if i < 0 {
			return kvindex.ErrUnknownParent
		}
		path = l[r][i].path
		used = append(used, e.Parent)
	}
	var add []listed
	for _, b := range e.Blocks {
		path = append(slices.Clone(path), b.Local)
		if slices.Contains(used, b.Engine) {
			return kvindex.ErrConflict
		}
		used = append(used, b.Engine)
		if i := l.find(r, b.Engine); i >= 0 && !slices.Equal(l[r][i].path, path) {
			return kvindex.ErrConflict
		}
		add = append(add, listed{engine: b.Engine, path: path})
	}
	for _, b := range add {
		i := l.find(r, b.engine)
		if i < 0 {
			i = len(l[r])
			l[r] = append(l[r], b)
		}
		l[r][i].tiers[e.Tier] = true
	}
	return nil
}

func (l lists) remove(r worker.Rank, e kvindex.Removed) error {
	if _, ok := l[r]; !ok {
		return kvindex.ErrUnknownRank
	}
	for _, h := range e.Blocks {
		if i := l.find(r, h); i >= 0 {
			l[r][i].tiers[e.Tier] = false
			if l[r][i].tiers == [numTiers]bool{} {
				l[r] = slices.Delete(l[r], i, i+1)
			}
		}
	}
	return nil
}

// overlap returns how many leading blocks the rank has on any of the tiers from <= tier
// < to.
func (l lists) overlap(r worker.Rank, chain []kvindex.LocalHash, from, to kvindex.Tier) uint32 {
	for n := 1; n <= len(chain); n++ {
		if !slices.ContainsFunc(l[r], func(b listed) bool {
			return slices.Contains(b.tiers[from:to], true) && slices.Equal(b.path, chain[:n])
		}) {
			return uint32(n - 1)
		}
	}
	return uint32(len(chain))
}

func (l lists) held(r worker.Rank, chain []kvindex.LocalHash) kvindex.Held {
	d, h, k := l.overlap(r, chain, 0, kvindex.Host), l.overlap(r, chain, 0, kvindex.Disk), l.overlap(r, chain, 0, kvindex.External)
	return kvindex.Held{Device: d, Host: h - d, Disk: k - h, External: l.overlap(r, chain, kvindex.External, numTiers)}
}

// TestMapEqualsListsUnderRandomOperations runs the same random operations on Map and on
// lists, and compares everything that can be observed.
func TestMapEqualsListsUnderRandomOperations(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-model.seed=%d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	m, l := New(kvindex.RouteConfig{}), lists{}
	slots := m.Numbers()
	var ranks []worker.Rank
	for id := range 5 {
		ranks = append(ranks, worker.Rank{ID: worker.ID(id + 1)}, worker.Rank{ID: worker.ID(id + 1), DPRank: 1})
	}
	// There are few local hashes and few engine hashes, so that prefixes are shared,
	// parents exist and names collide.
	engine := func(path []kvindex.LocalHash) kvindex.EngineHash {
		h := kvindex.EngineHash(len(path))
		for _, p := range path {
			h = h*3 + kvindex.EngineHash(p)
		}
		if rng.IntN(50) == 0 {
			h++
		}
		return h
	}
	chain := func(n int) (c []kvindex.LocalHash) {
		for range n {
			c = append(c, kvindex.LocalHash(1+rng.IntN(2)))
		}
		return c
	}
	var dst kvindex.Overlap
	ops := *opsFlag
	if kvindex.MostBytes < 1<<28 || testing.Short() { // the race detector's build, or make test-unit
		ops /= 5
	}
	for op := range ops {
		r := ranks[rng.IntN(len(ranks))]
		tier := kvindex.Tier(0)
		if rng.IntN(4) == 0 {
			tier = kvindex.Tier(rng.IntN(int(numTiers)))
		}
		switch k := rng.IntN(100); {
		case k < 5:
			m.Attach(r)
			if _, ok := l[r]; !ok {
				l[r] = []listed{}
			}
		case k < 6:
			m.Detach(r)
			delete(l, r)
		case k < 7:
			err := m.Clear(r)
			if _, ok := l[r]; ok {
				require.NoError(t, err)
				l[r] = []listed{}
			} else {
				require.ErrorIs(t, err, kvindex.ErrUnknownRank)
			}
		case k < 55:
			path := chain(rng.IntN(6))
			e := kvindex.Stored{Tier: tier}
			if held := l[r]; len(path) > 0 || len(held) > 0 && rng.IntN(2) == 0 {
				e.HasParent, e.Parent = true, engine(path)
				if len(held) > 0 && rng.IntN(5) > 0 {
					b := held[rng.IntN(len(held))]
					e.Parent, path = b.engine, slices.Clone(b.path)
				}
			}
			for range rng.IntN(4) {
				path = append(path, chain(1)...)
				e.Blocks = append(e.Blocks, kvindex.Block{Engine: engine(path), Local: path[len(path)-1]})
			}
			want, got := l.store(r, e), m.Store(r, e)
			require.ErrorIs(t, got, want, "operation %d: store %s %+v: want %v, got %v", op, r, e, want, got)
		case k < 80:
			e := kvindex.Removed{Tier: tier, Blocks: []kvindex.EngineHash{engine(chain(1 + rng.IntN(6)))}}
			for range rng.IntN(3) {
				if held := l[r]; len(held) > 0 {
					e.Blocks = append(e.Blocks, held[rng.IntN(len(held))].engine)
				}
			}
			require.Equal(t, l.remove(r, e), m.Remove(r, e))
		default:
			c := chain(rng.IntN(9))
			m.Overlap(c, &dst)
			require.Len(t, dst.Blocks, slots.Len())
			for _, r := range ranks {
				s, ok := m.Slot(r)
				_, want := l[r]
				require.Equal(t, want, ok)
				if ok {
					require.Equal(t, l.held(r, c), slots.Held(s, &dst), "operation %d: overlap %v of %s", op, c, r)
					for v := range numViews {
						if x, ok := slots.View(s, v); ok {
							dst.Blocks[x] = 0
						}
					}
				}
			}
			stray := slices.ContainsFunc(dst.Blocks, func(n uint32) bool { return n != 0 })
			require.False(t, stray, "operation %d: a slot without a rank has overlap", op)
		}
		if op%256 == 0 {
			require.NoError(t, m.Check(), "operation %d", op)
			for r, held := range l {
				st, _ := m.Stats(r)
				require.Equal(t, len(held), st.Blocks)
			}
		}
	}
}
