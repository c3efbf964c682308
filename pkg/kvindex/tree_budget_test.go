package kvindex

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// storeChats stores n sequences of five blocks for the rank, numbered from first.
func storeChats(t *testing.T, tr *Tree, r worker.Rank, first, n int) {
	for i := first; i < first+n; i++ {
		var e Stored
		for b := range 5 {
			e.Blocks = append(e.Blocks, Block{Engine: EngineHash(10*i + b + 1), Local: LocalHash(10*i + b + 1)})
		}
		require.NoError(t, tr.Store(r, e), "chat %d", i)
	}
}

func TestARankThatHoldsMostLosesItsOldestWhenTheBudgetIsReached(t *testing.T) {
	tr, err := NewTree(TreeConfig{MaxBytes: 2 << 20, NoHugePages: true}, NewSlots())
	require.NoError(t, err)
	big, small := worker.Rank{ID: 1}, worker.Rank{ID: 2}
	tr.Attach(big)
	tr.Attach(small)
	storeChats(t, tr, small, 0, 50)
	storeChats(t, tr, big, 1000, 20_000)
	require.NoError(t, tr.Check())
	require.LessOrEqual(t, tr.budget.inUse(), 2<<20)

	st, _ := tr.Stats(big)
	require.NotZero(t, st.Shed)
	require.Equal(t, uint64(st.Blocks)+st.Shed, st.Stored, "what was stored and not removed was shed or is there")
	require.Equal(t, st.Blocks, st.TierBlocks[Device])
	require.Greater(t, st.Blocks, 10_000, "no more is shed than has to be")
	other, _ := tr.Stats(small)
	require.Zero(t, other.Shed)
	require.Equal(t, 250, other.Blocks)

	var dst Overlap
	chat := func(i int) []LocalHash {
		return []LocalHash{LocalHash(10*i + 1), LocalHash(10*i + 2), LocalHash(10*i + 3), LocalHash(10*i + 4), LocalHash(10*i + 5)}
	}
	tr.Overlap(chat(1000), &dst)
	require.Zero(t, dst.At(0), "the oldest is gone")
	tr.Overlap(chat(20_999), &dst)
	require.Equal(t, uint32(5), dst.At(0), "the newest is there")
	tr.Overlap(chat(0), &dst)
	require.Equal(t, uint32(5), dst.At(1), "a rank that holds little keeps its old ones")
	require.ErrorIs(t, tr.Store(big, Stored{HasParent: true, Parent: EngineHash(10*1000 + 5)}), ErrUnknownParent)
}

func TestASharedBeginningOutlivesWhatFollowsIt(t *testing.T) {
	tr, err := NewTree(TreeConfig{MaxBytes: 1 << 20, NoHugePages: true}, NewSlots())
	require.NoError(t, err)
	r := worker.Rank{ID: 1}
	tr.Attach(r)
	require.NoError(t, tr.Store(r, Stored{Blocks: []Block{{1, 1}}}))
	for i := range 30_000 {
		h := 100 + uint64(i)
		require.NoError(t, tr.Store(r, Stored{Parent: 1, HasParent: true, Blocks: []Block{{EngineHash(h), LocalHash(h)}}}))
	}
	st, _ := tr.Stats(r)
	require.NotZero(t, st.Shed)
	var dst Overlap
	tr.Overlap([]LocalHash{1, 100 + 29_999}, &dst)
	require.Equal(t, uint32(2), dst.At(0))
	require.NoError(t, tr.Check())
}

func TestAnEventLargerThanTheBudgetIsRefused(t *testing.T) {
	tr, err := NewTree(TreeConfig{MaxBytes: 1 << 20, NoHugePages: true}, NewSlots())
	require.NoError(t, err)
	r := worker.Rank{ID: 1}
	tr.Attach(r)
	require.NoError(t, tr.Store(r, Stored{Blocks: []Block{{1, 1}}}))
	require.ErrorIs(t, tr.Store(r, Stored{Blocks: make([]Block, 100_000)}), ErrNoRoom)
	require.ErrorIs(t, tr.Store(r, Stored{Blocks: make([]Block, 100_000), Parent: 7, HasParent: true}), ErrUnknownParent)
	st, _ := tr.Stats(r)
	require.Equal(t, 1, st.Blocks, "a refused event leaves the index as it was")
	require.Zero(t, st.Shed)
	require.NoError(t, tr.Check())
	storeChats(t, tr, r, 1, 10)
}

// TestTreeStaysWholeUnderABudget runs random operations with far too little memory, and
// Check.
func TestTreeStaysWholeUnderABudget(t *testing.T) {
	tr, err := NewTree(TreeConfig{MaxBytes: 1 << 20, NoHugePages: true}, NewSlots())
	require.NoError(t, err)
	seed := *seedFlag
	t.Logf("-model.seed=%d", seed)
	rng := rand.New(rand.NewPCG(seed, 2))
	held := make([][]EngineHash, 20)
	for i := range held {
		tr.Attach(worker.Rank{ID: worker.ID(i + 1)})
	}
	shed, ops := uint64(0), 20_000
	if fewRounds() {
		ops = 8_000
	}
	for op := range ops {
		i := rng.IntN(len(held))
		r := worker.Rank{ID: worker.ID(i + 1)}
		e := Stored{Tier: Tier(rng.IntN(20) / 18)}
		if n := len(held[i]); n > 0 && rng.IntN(3) > 0 {
			e.Parent, e.HasParent = held[i][n-1-rng.IntN(min(n, 30))], true
		}
		for range 1 + rng.IntN(8) {
			h := uint64(e.Parent)*31 + uint64(rng.IntN(3)) + 1
			e.Blocks = append(e.Blocks, Block{Engine: EngineHash(h ^ uint64(i)<<32 ^ uint64(len(e.Blocks))<<40), Local: LocalHash(h)})
		}
		if err := tr.Store(r, e); err == nil {
			for _, b := range e.Blocks {
				held[i] = append(held[i], b.Engine)
			}
		}
		if rng.IntN(4) == 0 { // the same blocks under other names
			for k := range e.Blocks {
				e.Blocks[k].Engine ^= 1 << 55
			}
			_ = tr.Store(r, e)
		}
		if n := len(held[i]); n > 0 && rng.IntN(3) == 0 {
			require.NoError(t, tr.Remove(r, Removed{Blocks: []EngineHash{held[i][rng.IntN(n)], held[i][n-1]}}))
		}
		if rng.IntN(4) == 0 {
			chain := locals(seqRun(rng.IntN(50), rng.IntN(900)))
			tr.Route(worker.Rank{ID: worker.ID(1 + rng.IntN(30))}, chain, Guess(op%2), time.Unix(int64(1000+op/100), 0))
		}
		if op%500 == 0 {
			require.NoError(t, tr.Check(), "operation %d", op)
		}
	}
	for i := range held {
		st, _ := tr.Stats(worker.Rank{ID: worker.ID(i + 1)})
		shed += st.Shed
	}
	require.NotZero(t, shed)
	require.NoError(t, tr.Check())
}

func TestTreeConfigNamesItsFaults(t *testing.T) {
	_, err := NewTree(TreeConfig{MaxBytes: 5}, NewSlots())
	require.ErrorContains(t, err, "max bytes 5: expected")
	_, err = NewTree(TreeConfig{MaxBytes: MostBytes + 1}, NewSlots())
	require.Error(t, err)
	_, err = NewTree(TreeConfig{Route: RouteConfig{TTL: -1, PredictedTTL: -1, MaxBlocks: -1}}, NewSlots())
	for _, name := range []string{"routed TTL", "predicted TTL", "routed max blocks"} {
		require.ErrorContains(t, err, name)
	}
}

// TestWhatIsRoutedKeepsToAShareOfTheBudget: also, it gives memory up when events need
// it.
func TestWhatIsRoutedKeepsToAShareOfTheBudget(t *testing.T) {
	tr := newTreeOf(t, NewSlots(), TreeConfig{MaxBytes: LeastBytes, NoHugePages: true})
	tells, quiet := worker.Rank{ID: 1}, worker.Rank{ID: 2}
	now := time.Unix(1000, 0)
	for i := range 12 {
		tr.Route(quiet, locals(seqRun(1+i*1000, 1000)), Estimated, now)
	}
	require.NoError(t, tr.Check())
	st, _ := tr.Stats(quiet)
	require.Equal(t, (LeastBytes/8-9*endBytes)/blockBytes, st.Routed, "of nine prompts, the last whole and the first in part")

	tr.Attach(tells)
	storeChats(t, tr, tells, 1, 400)
	require.NoError(t, tr.Check())
	told, _ := tr.Stats(tells)
	tr.Route(quiet, locals(seqRun(50_000, 1000)), Estimated, now)
	require.NoError(t, tr.Check())
	left, _ := tr.Stats(tells)
	require.Greater(t, left.Blocks, told.Blocks/2)
	var dst Overlap
	tr.Overlap(locals(seqRun(50_000, 1000)), &dst)
	slot, _ := tr.slots.Slot(quiet)
	require.Equal(t, uint32(1000), tr.slots.Held(slot, &dst).Routed)

	// Short prompts take more than their blocks, and still cost no block that events
	// have stored.
	told, _ = tr.Stats(tells)
	for i := range 9000 {
		tr.Route(quiet, []LocalHash{LocalHash(100_000 + i)}, Estimated, now)
	}
	require.NoError(t, tr.Check())
	left, _ = tr.Stats(tells)
	require.Equal(t, told.Blocks, left.Blocks)
	st, _ = tr.Stats(quiet)
	require.Equal(t, LeastBytes/8/(blockBytes+endBytes), st.Routed)
}

// TestWhatIsRoutedMakesRoomWhereNothingElseCan: if the only sequence that could be shed
// is the one that grows, the prompts that were routed longest ago are dropped, one by
// one.
func TestWhatIsRoutedMakesRoomWhereNothingElseCan(t *testing.T) {
	tr := newTreeOf(t, NewSlots(), TreeConfig{MaxBytes: LeastBytes, NoHugePages: true})
	tells, quiet := worker.Rank{ID: 1}, worker.Rank{ID: 2}
	tr.Attach(tells)
	const prompts = 500
	for i := range prompts {
		tr.Route(quiet, []LocalHash{LocalHash(100_000 + i)}, Estimated, time.Unix(1000, 0))
	}
	slot, _ := tr.slots.Slot(quiet)
	left := func() int {
		st, _ := tr.Stats(quiet)
		return st.Routed
	}
	n, was, steps, err := 0, prompts, 0, error(nil)
	for ; err == nil; n++ {
		err = tr.Store(tells, Stored{Parent: EngineHash(n), HasParent: n > 0, Blocks: seqRun(n+1, 1)})
		is := left()
		require.LessOrEqual(t, was-is, 200, "no more goes than need be")
		if is < was && is > 0 {
			steps++
			var dst Overlap
			for i, held := range map[int]uint32{prompts - is - 1: 0, prompts - is: 1, prompts - 1: 1} {
				tr.Overlap([]LocalHash{LocalHash(100_000 + i)}, &dst)
				require.Equal(t, held, tr.slots.Held(slot, &dst).Routed, "prompt %d where %d are left", i, is)
			}
		}
		was = is
	}
	require.ErrorIs(t, err, ErrNoRoom)
	require.Greater(t, n, 10_000)
	require.Greater(t, steps, 2)
	require.Zero(t, left())
	require.Zero(t, shedOf(tr, tells))
	require.NoError(t, tr.Check())
}

func TestNothingIsShedForAnEventThatNoArenaCouldHold(t *testing.T) {
	tr := newTreeOf(t, NewSlots(), TreeConfig{MaxBytes: LeastBytes, NoHugePages: true})
	for i := range 2000 {
		tr.Attach(rankOf(i))
	}
	storeChats(t, tr, rankOf(0), 1, 100)
	tr.Route(rankOf(1), locals(seqRun(1, 100)), Estimated, time.Unix(1000, 0))
	refused := 0
	for n := 1; n < 20_000; n += 50 {
		before, _ := tr.Stats(rankOf(0))
		if err := tr.Store(rankOf(2), Stored{Blocks: seqRun(100_000, n)}); err != nil {
			refused++
			require.ErrorIs(t, err, ErrNoRoom)
			told, _ := tr.Stats(rankOf(0))
			routed, _ := tr.Stats(rankOf(1))
			require.Equal(t, before.Blocks, told.Blocks, "an event of %d blocks", n)
			require.Equal(t, 100, routed.Routed, "an event of %d blocks", n)
		}
		require.NoError(t, tr.Clear(rankOf(2)))
		storeChats(t, tr, rankOf(0), 1, 100)
	}
	require.Greater(t, refused, 100)
}

// TestMemoryServesWhatItIsNeededFor changes back and forth between two kinds of data:
// many short sequences of each rank's own, and long sequences that all ranks share. The
// memory taken must stay near the budget.
func TestMemoryServesWhatItIsNeededFor(t *testing.T) {
	if slow {
		t.Skip("the collector's heap gives nothing back")
	}
	tr := smallTree(t, 4)
	for i := range 16 {
		tr.Attach(rankOf(i))
	}
	most := 0
	store := func(i int, blocks []Block) {
		require.NoError(t, tr.Store(rankOf(i), Stored{Blocks: blocks}))
		most = max(most, tr.budget.taken())
	}
	for round := range 2 {
		for n := range 15_000 {
			store(n%16, seqRun(1_000_000*round+10*n+1, 3))
		}
		require.NoError(t, tr.Check(), "round %d, short ones", round)
		for n := range 300 {
			for i := range 16 {
				store(i, seqRun(500_000_000+1000*n, 60))
			}
		}
		require.NoError(t, tr.Check(), "round %d, long ones", round)
		require.NotZero(t, tr.trie.blocks.cold.n)
		require.Less(t, tr.budget.taken(), 4<<20*17/16)
	}
	require.Less(t, most, 4<<20*9/8)
	for i := range 16 {
		require.NoError(t, tr.Clear(rankOf(i)))
	}
	tr.budget.stuck = 0
	for tr.ledger.names.giveBack(giveBackStep)+tr.trie.blocks.giveBack(giveBackStep) > 0 {
	}
	require.Less(t, tr.ledger.names.bytes()+tr.trie.blocks.bytes(), 100<<10, "all of what is free can be given back")
	require.NoError(t, tr.Check())
	storeChats(t, tr, rankOf(0), 1, 5000) // and the memory can be taken again
	require.NoError(t, tr.Check())
}

func TestARankBeyondTheLimitOfSlotsIsRefusedAloud(t *testing.T) {
	tr := smallTree(t, 32)
	tr.Attach(rankOf(0))
	tr.slots.refs = make([]slotRefs, maxSlots)
	tr.slots.length.Store(maxSlots)
	require.Equal(t, Slot(maxSlots), tr.Attach(rankOf(1)))
	require.ErrorIs(t, tr.Store(rankOf(1), Stored{Blocks: seqRun(1, 1)}), ErrNoRoom)
	require.NoError(t, tr.Store(rankOf(0), Stored{Blocks: seqRun(1, 1)}))
	require.NoError(t, tr.Remove(rankOf(1), Removed{Blocks: down(1, 1)}))
	var dst Overlap
	tr.Overlap(locals(seqRun(1, 1)), &dst)
	require.Equal(t, uint32(1), dst.At(0))
	require.Zero(t, dst.At(maxSlots))
	tr.Detach(rankOf(1))
}
