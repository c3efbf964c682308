//go:build invariants

package kvindex

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// TestCheckNamesWhatIsBrokenInTheTree: each case breaks one thing by hand.
func TestCheckNamesWhatIsBrokenInTheTree(t *testing.T) {
	rank := worker.Rank{ID: 1}
	lead := func(tr *Tree) *node { return &tr.trie.nodes[tr.trie.blocks.node(1)] }
	for name, c := range map[string]struct {
		breakIt func(*Tree)
		want    string
	}{
		"a rank with a foreign slot": {func(tr *Tree) { tr.ranks.all[rank].slot = 7 }, "I1"},
		"a name on no tier": {func(tr *Tree) {
			*tr.ledger.names.find(&tr.ranks.all[rank].names, 1).val() &^= 1<<numTiers - 1
		}, "I2"},
		"a further name too many":    {func(tr *Tree) { tr.ranks.all[rank].views[0].extra = map[blockID]uint32{1: 1} }, "I3"},
		"a view of another group":    {func(tr *Tree) { tr.ranks.all[rank].views[1].slot = 128 }, "I1"},
		"a view lost":                {func(tr *Tree) { tr.ranks.all[rank].views = tr.ranks.all[rank].views[:1] }, "I4"},
		"a holder lost in a view":    {func(tr *Tree) { tr.trie.holders.set(lead(tr), 64, 0) }, "I4"},
		"a holder lost":              {func(tr *Tree) { tr.trie.holders.set(lead(tr), 0, 0) }, "I4"},
		"a holder of too much":       {func(tr *Tree) { tr.trie.holders.set(lead(tr), 0, 3) }, "I4"},
		"a holder without a rank":    {func(tr *Tree) { tr.trie.holders.set(lead(tr), 99, 1) }, "I5"},
		"a holder beyond the run":    {func(tr *Tree) { tr.trie.holders.set(lead(tr), 0, 1000) }, "I5"},
		"a holder twice":             {func(tr *Tree) { lead(tr).more[0].Store(uint32(holderOf(0, 1))) }, "I5"},
		"units lost":                 {func(tr *Tree) { tr.trie.holders.used++ }, "I5"},
		"block counts that are off":  {func(tr *Tree) { tr.ranks.all[rank].stats.Blocks++ }, "I6"},
		"a block of another node":    {func(tr *Tree) { tr.trie.blocks.setNode(2, 77) }, "I8"},
		"a node that is not counted": {func(tr *Tree) { lead(tr).kids.Store(5 << 32) }, "I8"},
		"a run without room":         {func(tr *Tree) { lead(tr).room = 1 }, "I8"},
		"a node lost to its parent": {func(tr *Tree) {
			tr.trie.nodes[0].kids.Store(tr.trie.nodes[0].kids.Load() - 1<<32)
			lead(tr).place.Store(place(1, 1))
		}, "I8"},
		"a count of names that is off": {func(tr *Tree) { tr.trie.blocks.ref(1) }, "I9"},
		"a free run that is not":       {func(tr *Tree) { tr.trie.blocks.next += 5 }, "I10"},
		"a list without its mark":      {func(tr *Tree) { tr.trie.blocks.some[3] |= 1 }, "I10"},
		"a child counted twice":        {func(tr *Tree) { tr.trie.kids.shards[5].live++ }, "I11"},
		"a name out of reach": {func(tr *Tree) {
			p := tr.ledger.names.find(&tr.ranks.all[rank].names, 1)
			p.b.key[p.j] = 123456
		}, "I12"},
		"a stranger too many":           {func(tr *Tree) { tr.ranks.strangers++ }, "I1"},
		"a last rank that is not there": {func(tr *Tree) { tr.ranks.last = &treeRank{attached: true} }, "I1"},
		"a table larger than it is":     {func(tr *Tree) { tr.trie.kids.bytes++ }, "I11"},
		"a byte given back twice":       {func(tr *Tree) { tr.budget.beside-- }, "I13"},
		"more in use than there is":     {func(tr *Tree) { tr.budget.max = 1 << 10 }, "I13"},
		"a sweep of nobody":             {func(tr *Tree) { tr.eviction.sweep.phase = (*eviction).mergeSome }, "I14"},
		"a sweep of who is gone": {func(tr *Tree) {
			tr.eviction.sweep = sweep{rank: &treeRank{}, phase: (*eviction).mergeSome}
		}, "I14"},
		"gathered names out of order": {func(tr *Tree) {
			tr.eviction.sweep = sweep{rank: tr.ranks.all[rank], phase: (*eviction).dropSome, doomed: doomed{{depth: 1}, {depth: 2}}}
		}, "I14"},
		"a segment lost": {func(tr *Tree) { tr.ledger.names.newSegment() }, "I12"},
	} {
		t.Run(name, func(t *testing.T) {
			tr, _ := filledTree(t, 1, 1)
			require.NoError(t, tr.Store(rank, Stored{Blocks: []Block{{1, 1}, {2, 2}, {3, 3}}}))
			require.NoError(t, tr.Remove(rank, Removed{Blocks: []EngineHash{3}}))
			require.NoError(t, tr.Store(rank, Stored{Parent: 2, HasParent: true, Blocks: []Block{{4, 4}}, Tier: Host}))
			require.NoError(t, tr.Check())
			c.breakIt(tr)
			require.ErrorContains(t, tr.Check(), c.want)
		})
	}
}
