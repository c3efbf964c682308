package kvindex

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/invariants"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// smallTree returns a tree with room for some 25,000 blocks in each MiB.
func smallTree(t testing.TB, mib int) *Tree {
	tr, err := NewTree(TreeConfig{MaxBytes: mib << 20, NoHugePages: true}, NewSlots())
	require.NoError(t, err)
	return tr
}

func shedOf(tr *Tree, r worker.Rank) uint64 {
	st, _ := tr.Stats(r)
	return st.Shed
}

// endSweeps runs the present sweep to its end.
func endSweeps(tr *Tree) {
	for tr.eviction.sweep.rank != nil {
		tr.eviction.step()
	}
}

func TestAnEventThatShedsTakesLittleOfALargeRank(t *testing.T) {
	tr := smallTree(t, 16)
	// With one of some sixty seeds the names are spread so that one event finds no room
	// at all and has to shed, in several holds of the lock, until there is room.
	tr.trie.kids.seed, tr.ledger.names.seed = 1, 1
	r := rankOf(0)
	tr.Attach(r)
	most, was := uint64(0), uint64(0)
	for i := range 120_000 {
		storeChats(t, tr, r, i, 1)
		is := shedOf(tr, r)
		most, was = max(most, is-was), is
	}
	require.Greater(t, was, uint64(50_000))
	require.LessOrEqual(t, most, uint64(stepsAHold*dropStep))
	st, _ := tr.Stats(r)
	require.Greater(t, st.Blocks, 160_000, "no more is shed than has to be")
	require.NoError(t, tr.Check())
}

func TestALongChainIsCutAtItsEnd(t *testing.T) {
	tr := smallTree(t, 1)
	r := rankOf(0)
	tr.Attach(r)
	chain := seqRun(1, 7000)
	require.NoError(t, tr.Store(r, Stored{Blocks: chain})) // all blocks have the same age
	for i := 0; shedOf(tr, r) == 0; i++ {
		storeChats(t, tr, r, 10_000+i, 1)
	}
	endSweeps(tr)
	shed := int(shedOf(tr, r))
	require.Less(t, shed, 3500)
	var dst Overlap
	tr.Overlap(locals(chain), &dst)
	require.Equal(t, len(chain)-shed, int(dst.At(0)), "what went is the chain's end")
	require.NoError(t, tr.Check())
}

// TestTheParentOfAnEventIsNotShedForIt: if there is nothing but one sequence, the event
// that continues it is refused.
func TestTheParentOfAnEventIsNotShedForIt(t *testing.T) {
	tr := smallTree(t, 1)
	r := rankOf(0)
	tr.Attach(r)
	n, err := 0, error(nil)
	for ; err == nil; n++ {
		err = tr.Store(r, Stored{Parent: EngineHash(n), HasParent: n > 0, Blocks: seqRun(n+1, 1)})
	}
	require.ErrorIs(t, err, ErrNoRoom)
	require.Greater(t, n, 10_000)
	var dst Overlap
	tr.Overlap(locals(seqRun(1, n)), &dst)
	require.Equal(t, n-1, int(dst.At(0)))
	require.Zero(t, shedOf(tr, r))
	require.NoError(t, tr.Check())

	// The same, with another rank to shed from.
	tr.Attach(rankOf(1))
	_ = tr.Clear(r)
	storeChats(t, tr, rankOf(1), 10_000, 1000)
	n = 0
	for err = nil; err == nil; n++ {
		err = tr.Store(r, Stored{Parent: EngineHash(n), HasParent: n > 0, Blocks: seqRun(n+1, 1)})
	}
	require.ErrorIs(t, err, ErrNoRoom)
	require.Zero(t, shedOf(tr, r))
	require.GreaterOrEqual(t, shedOf(tr, rankOf(1)), uint64(4800), "what others have goes first")
	require.NoError(t, tr.Check())
}

// TestWhatIsLeftCanBeReached stores sequences with random ends, for several ranks that
// share them, far beyond the budget. At the end of each sweep no rank may hold a block
// without the blocks before it.
func TestWhatIsLeftCanBeReached(t *testing.T) {
	tr := smallTree(t, 1)
	rng := rand.New(rand.NewPCG(*seedFlag, 7))
	const ranks = 4
	type end struct {
		name  EngineHash
		chain []LocalHash
	}
	ends := make([][]end, ranks)
	next, sweeping, checks := 0, false, 0
	for i := range ranks {
		tr.Attach(rankOf(i))
	}
	ops := 40_000
	if fewRounds() {
		ops = 15_000
	}
	for range ops {
		i := rng.IntN(ranks)
		var from end
		if n := len(ends[i]); n > 0 && rng.IntN(20) > 0 {
			from = ends[i][n-1-rng.IntN(min(n, 400))]
		}
		e := Stored{Parent: from.name, HasParent: from.name != 0}
		to := end{chain: append([]LocalHash(nil), from.chain...)}
		for range 1 + rng.IntN(6) {
			next++
			e.Blocks = append(e.Blocks, Block{EngineHash(next), LocalHash(rng.IntN(3))})
			to.name, to.chain = EngineHash(next), append(to.chain, e.Blocks[len(e.Blocks)-1].Local)
		}
		if tr.Store(rankOf(i), e) == nil && len(to.chain) < 400 {
			ends[i] = append(ends[i], to)
		}
		if was := sweeping; was && tr.eviction.sweep.rank == nil {
			checks++
			for j := range ranks {
				requireWhole(t, tr, rankOf(j))
			}
		}
		sweeping = tr.eviction.sweep.rank != nil
	}
	require.Greater(t, checks, 5)
	require.NoError(t, tr.Check())
}

// requireWhole requires that for each block that the rank holds it holds all nodes
// above.
func requireWhole(t *testing.T, tr *Tree, r worker.Rank) {
	rk := tr.ranks.all[r]
	tr.ledger.names.each(&rk.names, func(h EngineHash, v *named) {
		n := &tr.trie.nodes[tr.trie.blocks.node(v.block())]
		if uint32(v.block()-n.start()) >= tr.trie.holders.cut(n, rk.slot) {
			require.Fail(t, "a block that is not held", "%x", h)
		}
		if n.parent() != 0 {
			up := &tr.trie.nodes[n.parent()]
			if up.load().length() != tr.trie.holders.cut(up, rk.slot) {
				require.Fail(t, "what a block follows is not held", "%x", h)
			}
		}
	})
}

// TestATableThatHasBecomeEmptyMakesRoom: a rank whose engine has removed its blocks one
// by one still has its large table.
func TestATableThatHasBecomeEmptyMakesRoom(t *testing.T) {
	tr := smallTree(t, 1)
	a, b := rankOf(0), rankOf(1)
	tr.Attach(a)
	tr.Attach(b)
	for n := 1; n <= 3000; n++ {
		storeChats(t, tr, a, n, 1)
	}
	for n := 1; n <= 3000; n++ {
		require.NoError(t, tr.Remove(a, Removed{Blocks: down(10*n+5, 10*n+1)}))
	}
	require.Greater(t, tr.ledger.names.segs.used(), 30)
	storeChats(t, tr, b, 10_000, 2100)
	require.Less(t, tr.ranks.all[a].names.segs, 3)
	if !slow { // the race detector's arenas cannot give memory back, so some blocks are shed for it
		require.Zero(t, shedOf(tr, b))
	}
	require.NoError(t, tr.Check())
}

func TestSegmentsAreJoinedAndNothingIsLost(t *testing.T) {
	tr := smallTree(t, 2)
	r := rankOf(0)
	tr.Attach(r)
	rk := tr.ranks.all[r]
	storeChats(t, tr, r, 0, 3000)
	segs := rk.names.segs
	for n := range 3000 {
		if n%4 > 0 {
			require.NoError(t, tr.Remove(r, Removed{Blocks: down(10*n+5, 10*n+1)}))
		}
	}
	for m := uint64(0); ; {
		tr.ledger.names.merge(&rk.names, m)
		if _, m = tr.ledger.names.segmentAt(&rk.names, m); m == 0 {
			break
		}
	}
	require.NoError(t, tr.Check())
	require.Less(t, rk.names.segs, segs*2/3)
	for n := 0; n < 3000; n += 4 {
		require.NoError(t, tr.Remove(r, Removed{Blocks: down(10*n+5, 10*n+1)}))
	}
	require.Zero(t, rk.names.n)
	storeChats(t, tr, r, 5000, 3000)
	require.NoError(t, tr.Check())
}

// TestALargeRankIsClearedInSlices lets others in between two slices: a query, a writer
// of another rank, and a writer of the same rank, which has to wait.
func TestALargeRankIsClearedInSlices(t *testing.T) {
	if !invariants.Enabled {
		t.Skip("needs the build tag invariants")
	}
	tr := smallTree(t, 32)
	r, other := rankOf(0), rankOf(1)
	tr.Attach(r)
	tr.Attach(other)
	chain := seqRun(1, 3*clearSlice)
	for i := 0; i < len(chain); i += 512 {
		require.NoError(t, tr.Store(r, Stored{Parent: EngineHash(i), HasParent: i > 0, Blocks: chain[i : i+512]}))
	}
	asked := locals(chain)
	times, last := 0, uint32(len(chain))
	after := make(chan error, 1)
	tr.gaveUp = func() {
		if times++; times == 1 {
			go func() { after <- tr.Store(r, Stored{Blocks: seqRun(1, 5)}) }()
		}
		require.True(t, tr.mu.TryLock(), "the lock is free")
		tr.mu.Unlock()
		var dst Overlap
		tr.Overlap(asked, &dst)
		require.LessOrEqual(t, dst.At(0), last)
		last = dst.At(0)
		storeChats(t, tr, other, 100_000*times, 10)
	}
	require.NoError(t, tr.Clear(r))
	require.NoError(t, <-after)
	require.Greater(t, times, 3)
	tr.gaveUp = nil
	var dst Overlap
	tr.Overlap(asked, &dst)
	require.Equal(t, uint32(5), dst.At(0), "the event that waited is there")
	st, _ := tr.Stats(other)
	require.Equal(t, 50*times, st.Blocks)
	require.NoError(t, tr.Check())
}

// TestWhoWaitsForARankThatLeavesFindsItGone: also, the rank may be attached again.
func TestWhoWaitsForARankThatLeavesFindsItGone(t *testing.T) {
	if !invariants.Enabled {
		t.Skip("needs the build tag invariants")
	}
	tr := smallTree(t, 32)
	r := rankOf(0)
	tr.Attach(r)
	for i := 0; i < 3*clearSlice; i += 512 {
		require.NoError(t, tr.Store(r, Stored{Blocks: seqRun(i+1, 512)}))
	}
	store, attach, remove := make(chan error, 1), make(chan Slot, 1), make(chan error, 1)
	tr.gaveUp = func() {
		tr.gaveUp = nil
		go func() { store <- tr.Store(r, Stored{Blocks: seqRun(1, 5)}) }()
		go func() { remove <- tr.Remove(r, Removed{Blocks: down(5, 1)}) }()
		go func() { attach <- tr.Attach(r) }()
	}
	tr.Detach(r)
	<-attach
	if err := <-store; err != nil { // Store was called before the rank was attached again
		require.ErrorIs(t, err, ErrUnknownRank)
	}
	if err := <-remove; err != nil {
		require.ErrorIs(t, err, ErrUnknownRank)
	}
	_, ok := tr.Slot(r)
	require.True(t, ok)
	require.NoError(t, tr.Check())
}

func TestAnAnswerOfTheCallersOwnMakingIsFilled(t *testing.T) {
	tr, chain := filledTree(t, 200, 20)
	for _, n := range []int{0, 1, 199, 200, 201, 255, 256} {
		dst := Overlap{Blocks: make([]uint32, 0, n)}
		tr.Overlap(chain, &dst)
		require.Len(t, dst.Blocks, 200)
		for i, got := range dst.Blocks {
			require.Equal(t, uint32(1+i%20), got)
		}
	}
}
