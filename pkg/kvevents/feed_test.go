package kvevents

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Each error that the index names has a reason of its own, and none of these reasons is
// normal.
func TestWhatTheIndexRefusesIsCountedByItsReason(t *testing.T) {
	index, err := kvindex.NewTree(kvindex.TreeConfig{MaxBytes: 1 << 20, NoHugePages: true}, kvindex.NewSlots())
	require.NoError(t, err)
	index.Attach(one)
	hooked := map[Reason]uint64{}
	cfg := Config{Index: index, Hooks: Hooks{Refused: func(_ worker.Rank, why Reason, n uint64) { hooked[why] += n }}}.withDefaults()
	var f feed
	f.begin(&cfg, one)
	store := func(s kvindex.Stored) *Event { return &Event{Kind: Stored, Stored: s} }
	var refused Refusals
	f.perform(store(kvindex.Stored{Blocks: []kvindex.Block{{Engine: 1, Local: 1}}}), &refused)
	require.Equal(t, Refusals{}, refused)
	f.perform(store(kvindex.Stored{Parent: 7, HasParent: true, Blocks: []kvindex.Block{{Engine: 2, Local: 2}}}), &refused)
	f.perform(store(kvindex.Stored{Blocks: []kvindex.Block{{Engine: 1, Local: 3}}}), &refused)
	f.perform(store(kvindex.Stored{Blocks: make([]kvindex.Block, 100_000)}), &refused)
	require.Equal(t, Refusals{NoRoom: 1, UnknownParent: 1, HashConflict: 1}, refused)
	require.Empty(t, f.snapshot().LastError, "a reason is enough")

	f.refuseAll(&refused)
	require.Equal(t, map[Reason]uint64{NoRoom: 1, UnknownParent: 1, HashConflict: 1}, hooked)
	require.Equal(t, refused, f.snapshot().Missing)
	require.False(t, NoRoom.Normal())
}
