package kvindex

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/invariants"
)

// TestALargeRankGetsAViewInSlices: storing the first block on Host lets other callers
// in between; they find an index that passes Check.
func TestALargeRankGetsAViewInSlices(t *testing.T) {
	if !invariants.Enabled {
		t.Skip("needs the build tag invariants")
	}
	for name, meanwhile := range map[string]func(*Tree) error{
		"nothing":  func(*Tree) error { return nil },
		"cleared":  func(tr *Tree) error { return tr.Clear(rankOf(0)) },
		"replaced": func(tr *Tree) error { tr.Detach(rankOf(0)); tr.Attach(rankOf(0)); return nil },
		"removed":  func(tr *Tree) error { return tr.Remove(rankOf(0), Removed{Blocks: down(40_000, 20_001)}) },
	} {
		t.Run(name, func(t *testing.T) {
			tr := smallTree(t, 32)
			r, other := rankOf(0), rankOf(1)
			tr.Attach(r)
			tr.Attach(other)
			const chains, long = 120, 500
			for i := range chains {
				require.NoError(t, tr.Store(r, Stored{Blocks: seqRun(i*long+1, long)}))
			}
			times := 0
			tr.gaveUp = func() {
				hook := tr.gaveUp
				tr.gaveUp = nil
				require.True(t, tr.mu.TryLock(), "the lock is free")
				tr.mu.Unlock()
				if times++; times < 5 {
					require.NoError(t, tr.Check())
				}
				if times == 2 {
					require.NoError(t, meanwhile(tr))
					require.NoError(t, tr.Check())
				}
				storeChats(t, tr, other, 100_000*times, 1)
				tr.gaveUp = hook
			}
			require.NoError(t, tr.Store(r, Stored{Tier: Host, Blocks: seqRun(1_000_000, 3)}))
			tr.gaveUp = nil
			require.GreaterOrEqual(t, times, 2)
			require.NoError(t, tr.Check())
			slot, _ := tr.Slot(r)
			var dst Overlap
			tr.Overlap(locals(seqRun(1_000_000, 3)), &dst)
			require.Equal(t, Held{Host: 3}, tr.slots.Held(slot, &dst))
			view, ok := tr.slots.View(slot, ToHost)
			require.True(t, ok)
			for i := range chains {
				tr.Overlap(locals(seqRun(i*long+1, long)), &dst)
				require.Equal(t, dst.At(slot), dst.At(view))
			}
		})
	}
}

// TestViewsKeepToTheBudget: if seven ranks share short sequences, the view of each rank
// needs a crowd at the nodes, and old blocks have to be shed for it.
func TestViewsKeepToTheBudget(t *testing.T) {
	tr := smallTree(t, 2)
	for i := range nodeSlots {
		tr.Attach(rankOf(i))
	}
	n := 0
	for ; tr.budget.spare() > 2<<20>>lowWater+80<<10; n++ {
		for i := range nodeSlots {
			require.NoError(t, tr.Store(rankOf(i), Stored{Blocks: seqRun(n+1, 1)}))
		}
	}
	require.Zero(t, shedOf(tr, rankOf(0)))
	shed := uint64(0)
	for i := range nodeSlots {
		require.NoError(t, tr.Store(rankOf(i), Stored{Tier: Host, Blocks: seqRun(1_000_000, 1)}))
		require.LessOrEqual(t, tr.budget.inUse(), 2<<20)
		require.NoError(t, tr.Check())
	}
	for i := range nodeSlots {
		shed += shedOf(tr, rankOf(i))
	}
	require.NotZero(t, shed)
	var dst Overlap
	tr.Overlap(locals(seqRun(1_000_000, 1)), &dst)
	for i := range nodeSlots {
		slot, _ := tr.Slot(rankOf(i))
		require.Equal(t, Held{Host: 1}, tr.slots.Held(slot, &dst))
	}
}

// TestAViewForWhichThereIsNoRoomIsMadeLater: only the blocks that the event continues
// from could be shed for the view, so the event is refused, and so is every other
// event.
func TestAViewForWhichThereIsNoRoomIsMadeLater(t *testing.T) {
	tr := smallTree(t, 1)
	r := rankOf(0)
	tr.Attach(r)
	n, err := 0, error(nil)
	for ; err == nil; n++ {
		err = tr.Store(r, Stored{Parent: EngineHash(n), HasParent: n > 0, Blocks: seqRun(n+1, 1)})
	}
	require.ErrorIs(t, err, ErrNoRoom)
	on := Stored{Tier: Host, Parent: EngineHash(n - 1), HasParent: true, Blocks: seqRun(n, 1)}
	require.ErrorIs(t, tr.Store(r, on), ErrNoRoom)
	require.True(t, tr.ranks.all[r].views[1].making)
	require.NoError(t, tr.Check())
	require.ErrorIs(t, tr.Store(r, Stored{Parent: EngineHash(n - 1), HasParent: true, Blocks: seqRun(n, 1)}), ErrNoRoom)
	require.NoError(t, tr.Check())
	require.NoError(t, tr.Remove(r, Removed{Blocks: down(n-1, 1000)}))
	require.NoError(t, tr.Check())
	require.NoError(t, tr.Store(r, Stored{Tier: Host, Parent: 999, HasParent: true, Blocks: seqRun(1000, 1)}))
	require.NoError(t, tr.Check())
	var dst Overlap
	tr.Overlap(locals(seqRun(1, 1000)), &dst)
	require.Equal(t, Held{Device: 999, Host: 1}, tr.slots.Held(0, &dst))
}
