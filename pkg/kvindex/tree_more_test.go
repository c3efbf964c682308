package kvindex

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

func filledTree(t testing.TB, ranks, blocks int) (*Tree, []LocalHash) {
	tr := newTree(t, NewSlots())
	var chain []LocalHash
	var e Stored
	for i := range blocks {
		chain = append(chain, LocalHash(i+1))
		e.Blocks = append(e.Blocks, Block{Engine: EngineHash(i + 1), Local: LocalHash(i + 1)})
	}
	for i := range ranks {
		r := worker.Rank{ID: worker.ID(i + 1)}
		tr.Attach(r)
		require.NoError(t, tr.Store(r, Stored{Blocks: e.Blocks[:1+i%blocks]}))
	}
	return tr, chain
}

func TestAQueryOfTheTreeAllocatesNothing(t *testing.T) {
	tr, chain := filledTree(t, 300, 100)
	var dst Overlap
	tr.Overlap(chain, &dst)
	require.Len(t, dst.Blocks, 300)
	for i, n := range dst.Blocks {
		require.Equal(t, uint32(1+i%100), n)
	}
	require.Zero(t, dst.At(10_000), "a slot beyond the answer")
	require.Zero(t, testing.AllocsPerRun(100, func() { tr.Overlap(chain, &dst) }))

	tr.Route(worker.Rank{ID: 5}, chain, Estimated, time.Unix(1000, 0))
	tr.Overlap(chain, &dst)
	require.Zero(t, testing.AllocsPerRun(100, func() { tr.Overlap(chain, &dst) }))
}

func TestADecodedBlockAllocatesNothing(t *testing.T) {
	tr, _ := filledTree(t, 1, 10)
	r := worker.Rank{ID: 1}
	require.NoError(t, tr.Store(r, Stored{Blocks: []Block{{1, 1}, {2, 2}}}))
	s := Stored{Parent: 2, HasParent: true, Blocks: []Block{{5000, 5000}}}
	d := Removed{Blocks: []EngineHash{5000}}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		_ = tr.Store(r, s)
		_ = tr.Remove(r, d)
	}))
	again := Stored{Blocks: []Block{{1, 1}}}
	require.Zero(t, testing.AllocsPerRun(100, func() { _ = tr.Store(r, again) }))
}

func TestADetachedRanksSlotHoldsNothingForTheNext(t *testing.T) {
	tr, chain := filledTree(t, 200, 20)
	for i := range 200 {
		if i%3 == 0 {
			tr.Detach(worker.Rank{ID: worker.ID(i + 1)})
		}
	}
	for i := range 67 {
		tr.Attach(worker.Rank{ID: worker.ID(1000 + i)})
	}
	require.NoError(t, tr.Check())
	var dst Overlap
	tr.Overlap(chain, &dst)
	for i, n := range dst.Blocks {
		if want := uint32(1 + i%20); i%3 == 0 {
			require.Zero(t, n)
		} else {
			require.Equal(t, want, n)
		}
	}
}

func TestALongSequenceIsHeldAsFarAsItIsAsked(t *testing.T) {
	tr, chain := filledTree(t, 1, 1)
	r := worker.Rank{ID: 1}
	for n := 1; n < 5000; n++ { // block by block, as an answer grows, over many nodes
		require.NoError(t, tr.Store(r, Stored{Parent: EngineHash(n), HasParent: true, Blocks: []Block{{EngineHash(n + 1), LocalHash(n + 1)}}}))
		chain = append(chain, LocalHash(n+1))
	}
	require.NoError(t, tr.Check())
	var dst Overlap
	for _, n := range []int{0, 1, 31, 32, 33, 63, 64, 65, 127, 1022, 1023, 1024, 4999, 5000} {
		tr.Overlap(chain[:n], &dst)
		require.Equal(t, uint32(n), dst.At(0))
	}
	require.Less(t, tr.trie.ids.used(), 20, "a growing sequence takes few nodes")
}

// TestManyNamesGoInAnyOrder: in a full segment, a name that is erased makes other names
// move back, also names of the same event.
func TestManyNamesGoInAnyOrder(t *testing.T) {
	tr := newTree(t, NewSlots())
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range 60 {
		r := worker.Rank{ID: worker.ID(i + 1)}
		tr.Attach(r)
		n := 300 + 5*i
		var names []EngineHash
		for j := range n {
			b := Block{Engine: EngineHash(j + 1), Local: LocalHash(j + 1)}
			require.NoError(t, tr.Store(r, Stored{Blocks: []Block{b}}))
			names = append(names, b.Engine)
		}
		rng.Shuffle(n, func(i, j int) { names[i], names[j] = names[j], names[i] })
		require.NoError(t, tr.Remove(r, Removed{Blocks: names[:n/2]}))
		require.NoError(t, tr.Check())
		require.NoError(t, tr.Remove(r, Removed{Blocks: names[n/2:]}))
		st, _ := tr.Stats(r)
		require.Equal(t, Stats{Stored: uint64(n), Removed: uint64(n)}, st)
	}
	require.NoError(t, tr.Check())
}

// seqRun returns a run of n blocks whose hashes begin at from.
func seqRun(from, n int) (out []Block) {
	for i := range n {
		out = append(out, Block{Engine: EngineHash(from + i), Local: LocalHash(from + i)})
	}
	return out
}

func locals(runs ...[]Block) (c []LocalHash) {
	for _, run := range runs {
		for _, b := range run {
			c = append(c, b.Local)
		}
	}
	return c
}

// TestQueriesBesideWritersGiveNoImpossibleAnswer has writers that replace blocks, split
// runs, fill crowds and leave. Meanwhile the answers for ranks that do not change must
// be exact, and no query may find a sequence that never existed.
func TestQueriesBesideWritersGiveNoImpossibleAnswer(t *testing.T) {
	rounds := 4000
	if fewRounds() {
		rounds = 600
	}
	tr, _ := filledTree(t, 0, 1)
	tr.prompts.cfg.PredictedTTL = 2 * time.Second
	common, left, right := seqRun(1, 40), seqRun(1001, 30), seqRun(2001, 30)
	// Enough ranks that do not change to make a crowd.
	const still = 10
	for i := range still {
		r := worker.Rank{ID: worker.ID(1), DPRank: worker.DPRank(i)}
		require.Equal(t, Slot(i), tr.Attach(r))
		require.NoError(t, tr.Store(r, Stored{Blocks: append(seqRun(1, 40), seqRun(3001, 20)...)}))
	}
	whole := locals(common, seqRun(3001, 20))
	mixed := locals(common, left[:1], right[1:])
	torn := locals(common, left[:15], right[15:])

	var writers, readers sync.WaitGroup
	var stop atomic.Bool
	for w := range 3 {
		ranks := make([]worker.Rank, 0, 12)
		for i := range 12 {
			ranks = append(ranks, worker.Rank{ID: worker.ID(10 + w), DPRank: worker.DPRank(i)})
		}
		writers.Go(func() { churn(tr, ranks, common, left, right, rounds/12) })
	}
	fail := make(chan string, 3)
	for range 2 {
		readers.Go(func() {
			var dst Overlap
			for !stop.Load() {
				tr.Overlap(whole, &dst)
				for slot, n := range dst.Blocks {
					if slot < still && n != 60 {
						fail <- "a rank at rest is not answered for"
						return
					}
					if n > 60 {
						fail <- "more blocks than were asked for"
						return
					}
				}
				tr.Overlap(mixed, &dst)
				for _, n := range dst.Blocks {
					if n > 41 {
						fail <- "a sequence that never was"
						return
					}
				}
				tr.Overlap(torn, &dst)
				for _, n := range dst.Blocks {
					if n > 55 {
						fail <- "a run of two halves that never was"
						return
					}
				}
			}
		})
	}
	writers.Wait()
	stop.Store(true)
	readers.Wait()
	select {
	case text := <-fail:
		require.Fail(t, text)
	default:
	}
	require.NoError(t, tr.Check())
}

func churn(tr *Tree, ranks []worker.Rank, common, left, right []Block, rounds int) {
	var names []EngineHash
	for n := range rounds {
		for i, r := range ranks {
			tr.Attach(r)
			tail := left
			if (n+i)%2 == 0 {
				tail = right
			}
			at := 10 + (n*7+i)%30
			tr.Route(r, locals(common, tail[:(n+i)%20]), Guess(i%2), time.Unix(int64(1000+n), 0))
			_ = tr.Store(r, Stored{Blocks: common[:at]})
			_ = tr.Store(r, Stored{Parent: common[at-1].Engine, HasParent: true, Blocks: common[at:]})
			for j, b := range tail {
				p := common[39].Engine
				if j > 0 {
					p = tail[j-1].Engine
				}
				_ = tr.Store(r, Stored{Parent: p, HasParent: true, Blocks: []Block{b}})
			}
			names = names[:0]
			for j := len(tail) - 1; j >= (n+i)%9; j-- {
				names = append(names, tail[j].Engine)
			}
			_ = tr.Remove(r, Removed{Blocks: names})
			_ = tr.Remove(r, Removed{Blocks: []EngineHash{common[at].Engine, common[39].Engine}})
			switch (n + i) % 5 {
			case 0:
				_ = tr.Clear(r)
			case 1:
				tr.Detach(r)
			default:
				names = names[:0]
				for j := (n+i)%9 - 1; j >= 0; j-- {
					names = append(names, tail[j].Engine)
				}
				_ = tr.Remove(r, Removed{Blocks: names})
			}
		}
	}
}

// TestAQueryThatMeetsNothingButChangesTakesItsTurn keeps a change half done until the
// query has used up its tries.
func TestAQueryThatMeetsNothingButChangesTakesItsTurn(t *testing.T) {
	tr, chain := filledTree(t, 1, 5)
	require.NoError(t, tr.Store(worker.Rank{ID: 1}, Stored{Blocks: seqRun(1, 5)}))
	tr.mu.Lock()
	n := &tr.trie.nodes[tr.trie.blocks.node(1)]
	s := n.begin()
	got := make(chan uint32)
	go func() {
		var dst Overlap
		tr.Overlap(chain, &dst)
		got <- dst.At(0)
	}()
	require.Eventually(t, func() bool { return tr.torn.Load() == 1 }, 20*time.Second, time.Millisecond)
	n.end(s)
	tr.mu.Unlock()
	require.Equal(t, uint32(5), <-got)
}

// TestACrowdCarriesTheQueryOn: the query goes on for the crowd, although the holders
// noted in the node itself have only the node's beginning.
func TestACrowdCarriesTheQueryOn(t *testing.T) {
	tr := newTree(t, NewSlots())
	for i := range 16 {
		tr.Attach(rankOf(i))
	}
	for i := range 8 {
		store(tr, i, 0, seqRun(1, 5)...)
	}
	for i := 8; i < 16; i++ {
		store(tr, i, 0, seqRun(1, 10)...)
		store(tr, i, 10, other(100+i%2))
	}
	require.NotZero(t, tr.trie.nodes[tr.trie.blocks.node(1)].crowd.Load())
	var dst Overlap
	tr.Overlap(append(locals(seqRun(1, 10)), 100), &dst)
	require.Equal(t, []uint32{5, 5, 5, 5, 5, 5, 5, 5, 11, 10, 11, 10, 11, 10, 11, 10}, dst.Blocks)
}
