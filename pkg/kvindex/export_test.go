package kvindex

import (
	"testing"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// This file gives the tests that compare a Tree with the oracle, which imports this package,
// what they need of it.

const (
	NumTiers   = numTiers
	GroupSlots = groupSlots
	DumpMagic  = dumpMagic
	HashBytes  = hashBytes
)

// Seed is the seed of the model tests, or 0.
func Seed() uint64 { return *seedFlag }

// SetBetween makes f run between each two reads of a query.
func (t *Tree) SetBetween(f func()) { t.trie.kids.between = f }

// SetSeeds makes the hashes of the tables those of other trees with the seed.
func (t *Tree) SetSeeds(seed uint64) { t.trie.kids.seed, t.ledger.names.seed = seed, seed }

// Left counts the nodes, blocks, units and segments that are in use.
func (t *Tree) Left() int {
	return t.trie.ids.used() + t.trie.blocks.used + t.trie.holders.used + t.ledger.names.segs.used()
}

// LeftBlocks counts the blocks that are in use.
func (t *Tree) LeftBlocks() int { return t.trie.blocks.used }

func (c *RankCopy) Paths() map[EngineHash][]LocalHash { return c.paths() }

func TierNames() []string { return tierNames[:] }

func SeqRun(from, n int) []Block              { return seqRun(from, n) }
func Locals(runs ...[]Block) []LocalHash      { return locals(runs...) }
func RankOf(i int) worker.Rank                { return rankOf(i) }
func Down(from, to int) []EngineHash          { return down(from, to) }
func Other(n int) Block                       { return other(n) }
func FewRounds() bool                         { return fewRounds() }
func Sealed(b []byte) []byte                  { return sealed(b) }
func SmallDump(t testing.TB) []byte           { return smallDump(t) }
func NewTreeFor(t testing.TB, s *Slots) *Tree { return newTree(t, s) }

func NewTreeOf(t testing.TB, s *Slots, c TreeConfig) *Tree { return newTreeOf(t, s, c) }

func StoreIn(x Index, rank int, parent EngineHash, blocks ...Block) {
	store(x, rank, parent, blocks...)
}
func RemoveFrom(x Index, rank int, names ...EngineHash) { remove(x, rank, names...) }

func DumpOf(t testing.TB, tr *Tree, ranks ...worker.Rank) []byte { return dumpOf(t, tr, ranks...) }
func Loaded(t testing.TB, dump []byte, into Index)               { loaded(t, dump, into) }

func Alike(t testing.TB, want, got Index, ranks []worker.Rank, chains ...[]LocalHash) {
	alike(t, want, got, ranks, chains...)
}
