package kvindex

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// TestWhatHasLeftARankIsKnownAlsoOnceItIsBack, and of another rank, or of another tier, nothing is.
func TestWhatHasLeftARankIsKnownAlsoOnceItIsBack(t *testing.T) {
	tree, err := NewTree(TreeConfig{MaxBytes: 1 << 22, NoHugePages: true}, NewSlots())
	require.NoError(t, err)
	a, b := worker.Rank{ID: 1}, worker.Rank{ID: 2}
	chain, stored := make([]LocalHash, 40), Stored{}
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range chain {
		chain[i] = LocalHash(rng.Uint64())
		stored.Blocks = append(stored.Blocks, Block{Engine: EngineHash(i + 1), Local: chain[i]})
	}
	host := stored
	host.Tier = Host
	for _, r := range []worker.Rank{a, b} {
		require.Zero(t, tree.Kept(r, chain, 0), "an unknown rank keeps nothing")
		tree.Attach(r)
		require.NoError(t, tree.Store(r, stored))
		require.NoError(t, tree.Store(r, host))
	}
	since := tree.Removals()
	require.Equal(t, 40, tree.Kept(a, chain, since))
	require.NoError(t, tree.Remove(a, Removed{Blocks: []EngineHash{31}, Tier: Host}))
	require.NoError(t, tree.Remove(a, Removed{Blocks: []EngineHash{999}}))
	require.Equal(t, 40, tree.Kept(a, chain, since))
	require.NoError(t, tree.Remove(a, Removed{Blocks: []EngineHash{31}}))
	require.NoError(t, tree.Store(a, stored))
	require.Equal(t, 30, tree.Kept(a, chain, since))
	require.Equal(t, 40, tree.Kept(b, chain, since))
	require.Equal(t, 40, tree.Kept(a, chain, tree.Removals()), "it had left before")
	since = tree.Removals()
	require.NoError(t, tree.Clear(a))
	require.NoError(t, tree.Store(a, stored))
	require.Zero(t, tree.Kept(a, chain, since))
	require.Equal(t, 40, tree.Kept(a, chain, tree.Removals()))
	tree.ledger.removals.Store(1<<32 - 1) // the count goes round
	since = tree.Removals()
	require.NoError(t, tree.Remove(b, Removed{Blocks: []EngineHash{3}}))
	require.Equal(t, 2, tree.Kept(b, chain, since))
}
