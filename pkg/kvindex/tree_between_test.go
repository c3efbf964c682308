package kvindex

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/invariants"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// change is what a writer does in the middle of a query: one event or several. Between
// these events no rank's answer is less than the lower, or more than the higher, of its
// answers before and after.
type change struct {
	name string
	do   func(Index)
}

// world is a state of the index, a query, and the changes that may happen during the
// query.
type world struct {
	name    string
	build   func(Index)
	chain   []LocalHash
	changes []change
}

func rankOf(i int) worker.Rank { return worker.Rank{ID: worker.ID(i + 1)} }

func store(x Index, rank int, parent EngineHash, blocks ...Block) {
	_ = x.Store(rankOf(rank), Stored{Parent: parent, HasParent: parent != 0, Blocks: blocks})
}

func remove(x Index, rank int, names ...EngineHash) {
	_ = x.Remove(rankOf(rank), Removed{Blocks: names})
}

func down(from, to int) (out []EngineHash) {
	for n := from; n >= to; n-- {
		out = append(out, EngineHash(n))
	}
	return out
}

// other returns a block that no query's chain has.
func other(n int) Block { return Block{Engine: EngineHash(n), Local: LocalHash(n)} }

func worlds() []world {
	held := func(ranks, blocks int) func(Index) {
		return func(x Index) {
			for i := range ranks {
				x.Attach(rankOf(i))
				store(x, i, 0, seqRun(1, blocks)...)
			}
		}
	}
	tail := change{"the tail becomes another", func(x Index) {
		remove(x, 0, down(20, 11)...)
		store(x, 0, 10, seqRun(511, 1)...)
		store(x, 0, 511, seqRun(512, 9)...)
	}}
	moved := change{"the memory serves another sequence", func(x Index) {
		remove(x, 0, down(20, 1)...)
		store(x, 0, 0, append(seqRun(701, 10), seqRun(11, 10)...)...)
	}}
	// The query asks for two halves that are never held together: the first is held
	// before the change, and the second, in the same memory, after it.
	halves := world{"the first half is there", func(x Index) {
		x.Attach(rankOf(0))
		store(x, 0, 0, append(seqRun(1, 10), seqRun(211, 10)...)...)
	}, locals(seqRun(1, 10), seqRun(611, 10)), []change{
		{"and then the second", func(x Index) {
			remove(x, 0, append(down(220, 211), down(10, 1)...)...)
			store(x, 0, 0, append(seqRun(701, 10), seqRun(611, 10)...)...)
		}},
		{"and then the second after another tail", func(x Index) {
			remove(x, 0, down(220, 211)...)
			store(x, 0, 10, append(seqRun(801, 1), seqRun(612, 9)...)...)
		}},
		{"and then its end, block by block", func(x Index) {
			remove(x, 0, down(220, 211)...)
			store(x, 0, 10, other(801))
			store(x, 0, 801, seqRun(612, 1)...)
			for n := 613; n < 621; n++ {
				store(x, 0, EngineHash(n-1), seqRun(n, 1)...)
			}
		}},
	}}
	// A rank that holds little of a node later holds all of another node in the same
	// memory.
	heir := world{"a rank holds a part", func(x Index) {
		held(2, 20)(x)
		remove(x, 0, down(20, 6)...)
	}, locals(seqRun(1, 20)), []change{
		{"and then all of another", func(x Index) {
			_ = x.Clear(rankOf(0))
			_ = x.Clear(rankOf(1))
			store(x, 0, 0, seqRun(701, 20)...)
		}},
	}}
	two := world{"a node and its child", func(x Index) {
		held(1, 10)(x)
		store(x, 0, 10, seqRun(11, 10)...)
		store(x, 0, 10, other(800))
	}, locals(seqRun(1, 10), seqRun(611, 10)), []change{
		{"the child serves another parent", func(x Index) {
			remove(x, 0, down(20, 11)...)
			remove(x, 0, 800)
			remove(x, 0, down(10, 1)...)
			store(x, 0, 0, seqRun(701, 10)...)
			store(x, 0, 710, seqRun(611, 10)...)
			store(x, 0, 710, other(800))
		}},
	}}
	// The tail of one rank becomes the tail of another: it must not count for the first
	// rank.
	tails := func(name string, asked []LocalHash) world {
		return world{name, func(x Index) {
			held(2, 10)(x)
			store(x, 0, 10, seqRun(211, 12)...)
		}, asked, []change{
			{"and another rank goes on in its place", func(x Index) {
				remove(x, 0, down(222, 211)...)
				store(x, 1, 10, seqRun(611, 12)...)
			}},
			{"and another rank does, after a third had it", func(x Index) {
				x.Attach(rankOf(2))
				store(x, 2, 0, append(seqRun(1, 10), seqRun(211, 12)...)...)
				remove(x, 0, down(222, 211)...)
				remove(x, 2, down(222, 211)...)
				store(x, 1, 10, seqRun(611, 12)...)
			}},
		}}
	}
	return []world{
		halves, heir, two,
		tails("a tail, asked for in part", locals(seqRun(1, 10), seqRun(611, 10))),
		tails("a tail, asked for as a whole", locals(seqRun(1, 10), seqRun(611, 12))),
		tails("a tail, asked for beyond its end", locals(seqRun(1, 10), seqRun(611, 14))),
		{"one rank holds a run", held(1, 20), locals(seqRun(1, 20), seqRun(21, 5)), []change{
			tail, moved,
			{"it is cut in two", func(x Index) { store(x, 0, 7, other(900)) }},
			{"it grows", func(x Index) { store(x, 0, 20, seqRun(21, 2)...) }},
			{"it grows and has a child like the next of the question", func(x Index) {
				// A rank that does not hold the run on Device makes a child of it.
				store(x, 0, 20, other(900))
				x.Attach(rankOf(1))
				_ = x.Store(rankOf(1), Stored{Blocks: append(seqRun(1, 20), other(900)), Tier: Host})
				store(x, 1, 900, seqRun(21, 1)...)
				store(x, 0, 900, seqRun(21, 1)...)
			}},
			{"it is cleared", func(x Index) { _ = x.Clear(rankOf(0)) }},
			{"a block in the middle goes", func(x Index) { remove(x, 0, 9) }},
			{"the first goes and comes back", func(x Index) { remove(x, 0, 1); store(x, 0, 0, seqRun(1, 1)...) }},
			{"another rank comes", func(x Index) { x.Attach(rankOf(1)); store(x, 1, 0, seqRun(1, 12)...) }},
		}},
		{"a tree of three nodes", func(x Index) {
			held(2, 20)(x)
			store(x, 0, 5, other(801))
			store(x, 1, 12, other(802), other(803))
		}, locals(seqRun(1, 20)), []change{
			tail, moved,
			{"a middle node is cut in two", func(x Index) { store(x, 0, 9, other(900)) }},
			{"a branch goes", func(x Index) { remove(x, 0, 801); remove(x, 1, 803, 802) }},
			{"both are cleared", func(x Index) { _ = x.Clear(rankOf(0)); _ = x.Clear(rankOf(1)) }},
			{"one leaves and another takes its slot", func(x Index) {
				x.Detach(rankOf(0))
				x.Attach(rankOf(9))
				store(x, 9, 0, seqRun(1, 3)...)
			}},
			{"many children come", func(x Index) {
				for i := range 40 {
					store(x, 0, 5, other(2000+i))
				}
			}},
		}},
		{"a crowd", held(90, 20), locals(seqRun(1, 20)), []change{
			{"it is cut in two", func(x Index) { store(x, 70, 7, other(900)) }},
			{"all but one leave", func(x Index) {
				for i := range 89 {
					_ = x.Clear(rankOf(i))
				}
			}},
			{"the last of a group leaves", func(x Index) {
				for i := 64; i < 90; i++ {
					remove(x, i, down(20, 1)...)
				}
			}},
			{"it grows", func(x Index) { store(x, 80, 20, other(900)) }},
			{"a hole", func(x Index) { remove(x, 77, 6) }},
		}},
	}
}

// TestAWriterBetweenAnyTwoReadsOfAQuery makes each change between each two reads of a
// query. A rank's answer may be the one before the change, the one after it, or one
// between them, if one node was read before the change and the next node after it.
func TestAWriterBetweenAnyTwoReadsOfAQuery(t *testing.T) {
	if !invariants.Enabled {
		t.Skip("needs the build tag invariants")
	}
	for _, w := range worlds() {
		for _, c := range w.changes {
			t.Run(w.name+": "+c.name, func(t *testing.T) {
				before, after := answers(w, nil), answers(w, c.do)
				for at := 0; letIn(t, w, c, at, before, after); at++ {
					require.Less(t, at, 1000)
				}
			})
		}
	}
}

// answers returns the answers of a plainMap, with the change or, if that is nil, without.
func answers(w world, change func(Index)) []uint32 {
	m := newPlainMap(NewSlots())
	w.build(m)
	if change != nil {
		change(m)
	}
	var dst Overlap
	m.Overlap(w.chain, &dst)
	return slices.Clone(dst.Blocks)
}

// letIn makes the change after so many steps of a query. False means that the query had
// fewer steps.
func letIn(t *testing.T, w world, c change, after int, was, is []uint32) bool {
	tr, err := NewTree(TreeConfig{MaxBytes: 2 << 20, NoHugePages: true}, NewSlots())
	require.NoError(t, err)
	w.build(tr)
	n, done := 0, false
	tr.trie.kids.between = func() {
		if n++; n == after+1 {
			done = true
			c.do(tr)
		}
	}
	var dst Overlap
	tr.Overlap(w.chain, &dst)
	tr.trie.kids.between = nil
	for slot, got := range dst.Blocks {
		old := uint32(0)
		if slot < len(was) {
			old = was[slot]
		}
		require.True(t, min(old, is[slot]) <= got && got <= max(old, is[slot]),
			"step %d: slot %d has %d: expected %d to %d", after, slot, got, old, is[slot])
	}
	require.NoError(t, tr.Check())
	return done
}
