package kvindex_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/invariants"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/kvindex/oracle"
)

// change is what a writer does in the middle of a query: one event or several. Between
// these events no rank's answer is less than the lower, or more than the higher, of its
// answers before and after.
type change struct {
	name string
	do   func(kvindex.Index)
}

// world is a state of the index, a query, and the changes that may happen during the
// query.
type world struct {
	name    string
	build   func(kvindex.Index)
	chain   []kvindex.LocalHash
	changes []change
}

func worlds() []world {
	held := func(ranks, blocks int) func(kvindex.Index) {
		return func(x kvindex.Index) {
			for i := range ranks {
				x.Attach(kvindex.RankOf(i))
				kvindex.StoreIn(x, i, 0, kvindex.SeqRun(1, blocks)...)
			}
		}
	}
	tail := change{"the tail becomes another", func(x kvindex.Index) {
		kvindex.RemoveFrom(x, 0, kvindex.Down(20, 11)...)
		kvindex.StoreIn(x, 0, 10, kvindex.SeqRun(511, 1)...)
		kvindex.StoreIn(x, 0, 511, kvindex.SeqRun(512, 9)...)
	}}
	moved := change{"the memory serves another sequence", func(x kvindex.Index) {
		kvindex.RemoveFrom(x, 0, kvindex.Down(20, 1)...)
		kvindex.StoreIn(x, 0, 0, append(kvindex.SeqRun(701, 10), kvindex.SeqRun(11, 10)...)...)
	}}
	// The query asks for two halves that are never held together: the first is held
	// before the change, and the second, in the same memory, after it.
	halves := world{"the first half is there", func(x kvindex.Index) {
		x.Attach(kvindex.RankOf(0))
		kvindex.StoreIn(x, 0, 0, append(kvindex.SeqRun(1, 10), kvindex.SeqRun(211, 10)...)...)
	}, kvindex.Locals(kvindex.SeqRun(1, 10), kvindex.SeqRun(611, 10)), []change{
		{"and then the second", func(x kvindex.Index) {
			kvindex.RemoveFrom(x, 0, append(kvindex.Down(220, 211), kvindex.Down(10, 1)...)...)
			kvindex.StoreIn(x, 0, 0, append(kvindex.SeqRun(701, 10), kvindex.SeqRun(611, 10)...)...)
		}},
		{"and then the second after another tail", func(x kvindex.Index) {
			kvindex.RemoveFrom(x, 0, kvindex.Down(220, 211)...)
			kvindex.StoreIn(x, 0, 10, append(kvindex.SeqRun(801, 1), kvindex.SeqRun(612, 9)...)...)
		}},
		{"and then its end, block by block", func(x kvindex.Index) {
			kvindex.RemoveFrom(x, 0, kvindex.Down(220, 211)...)
			kvindex.StoreIn(x, 0, 10, kvindex.Other(801))
			kvindex.StoreIn(x, 0, 801, kvindex.SeqRun(612, 1)...)
			for n := 613; n < 621; n++ {
				kvindex.StoreIn(x, 0, kvindex.EngineHash(n-1), kvindex.SeqRun(n, 1)...)
			}
		}},
	}}
	// A rank that holds little of a node later holds all of another node in the same
	// memory.
	heir := world{"a rank holds a part", func(x kvindex.Index) {
		held(2, 20)(x)
		kvindex.RemoveFrom(x, 0, kvindex.Down(20, 6)...)
	}, kvindex.Locals(kvindex.SeqRun(1, 20)), []change{
		{"and then all of another", func(x kvindex.Index) {
			_ = x.Clear(kvindex.RankOf(0))
			_ = x.Clear(kvindex.RankOf(1))
			kvindex.StoreIn(x, 0, 0, kvindex.SeqRun(701, 20)...)
		}},
	}}
	two := world{"a node and its child", func(x kvindex.Index) {
		held(1, 10)(x)
		kvindex.StoreIn(x, 0, 10, kvindex.SeqRun(11, 10)...)
		kvindex.StoreIn(x, 0, 10, kvindex.Other(800))
	}, kvindex.Locals(kvindex.SeqRun(1, 10), kvindex.SeqRun(611, 10)), []change{
		{"the child serves another parent", func(x kvindex.Index) {
			kvindex.RemoveFrom(x, 0, kvindex.Down(20, 11)...)
			kvindex.RemoveFrom(x, 0, 800)
			kvindex.RemoveFrom(x, 0, kvindex.Down(10, 1)...)
			kvindex.StoreIn(x, 0, 0, kvindex.SeqRun(701, 10)...)
			kvindex.StoreIn(x, 0, 710, kvindex.SeqRun(611, 10)...)
			kvindex.StoreIn(x, 0, 710, kvindex.Other(800))
		}},
	}}
	// The tail of one rank becomes the tail of another: it must not count for the first
	// rank.
	tails := func(name string, asked []kvindex.LocalHash) world {
		return world{name, func(x kvindex.Index) {
			held(2, 10)(x)
			kvindex.StoreIn(x, 0, 10, kvindex.SeqRun(211, 12)...)
		}, asked, []change{
			{"and another rank goes on in its place", func(x kvindex.Index) {
				kvindex.RemoveFrom(x, 0, kvindex.Down(222, 211)...)
				kvindex.StoreIn(x, 1, 10, kvindex.SeqRun(611, 12)...)
			}},
			{"and another rank does, after a third had it", func(x kvindex.Index) {
				x.Attach(kvindex.RankOf(2))
				kvindex.StoreIn(x, 2, 0, append(kvindex.SeqRun(1, 10), kvindex.SeqRun(211, 12)...)...)
				kvindex.RemoveFrom(x, 0, kvindex.Down(222, 211)...)
				kvindex.RemoveFrom(x, 2, kvindex.Down(222, 211)...)
				kvindex.StoreIn(x, 1, 10, kvindex.SeqRun(611, 12)...)
			}},
		}}
	}
	return []world{
		halves, heir, two,
		tails("a tail, asked for in part", kvindex.Locals(kvindex.SeqRun(1, 10), kvindex.SeqRun(611, 10))),
		tails("a tail, asked for as a whole", kvindex.Locals(kvindex.SeqRun(1, 10), kvindex.SeqRun(611, 12))),
		tails("a tail, asked for beyond its end", kvindex.Locals(kvindex.SeqRun(1, 10), kvindex.SeqRun(611, 14))),
		{"one rank holds a run", held(1, 20), kvindex.Locals(kvindex.SeqRun(1, 20), kvindex.SeqRun(21, 5)), []change{
			tail, moved,
			{"it is cut in two", func(x kvindex.Index) { kvindex.StoreIn(x, 0, 7, kvindex.Other(900)) }},
			{"it grows", func(x kvindex.Index) { kvindex.StoreIn(x, 0, 20, kvindex.SeqRun(21, 2)...) }},
			{"it grows and has a child like the next of the question", func(x kvindex.Index) {
				// A rank that does not hold the run on Device makes a child of it.
				kvindex.StoreIn(x, 0, 20, kvindex.Other(900))
				x.Attach(kvindex.RankOf(1))
				_ = x.Store(kvindex.RankOf(1), kvindex.Stored{Blocks: append(kvindex.SeqRun(1, 20), kvindex.Other(900)), Tier: kvindex.Host})
				kvindex.StoreIn(x, 1, 900, kvindex.SeqRun(21, 1)...)
				kvindex.StoreIn(x, 0, 900, kvindex.SeqRun(21, 1)...)
			}},
			{"it is cleared", func(x kvindex.Index) { _ = x.Clear(kvindex.RankOf(0)) }},
			{"a block in the middle goes", func(x kvindex.Index) { kvindex.RemoveFrom(x, 0, 9) }},
			{"the first goes and comes back", func(x kvindex.Index) { kvindex.RemoveFrom(x, 0, 1); kvindex.StoreIn(x, 0, 0, kvindex.SeqRun(1, 1)...) }},
			{"another rank comes", func(x kvindex.Index) { x.Attach(kvindex.RankOf(1)); kvindex.StoreIn(x, 1, 0, kvindex.SeqRun(1, 12)...) }},
		}},
		{"a tree of three nodes", func(x kvindex.Index) {
			held(2, 20)(x)
			kvindex.StoreIn(x, 0, 5, kvindex.Other(801))
			kvindex.StoreIn(x, 1, 12, kvindex.Other(802), kvindex.Other(803))
		}, kvindex.Locals(kvindex.SeqRun(1, 20)), []change{
			tail, moved,
			{"a middle node is cut in two", func(x kvindex.Index) { kvindex.StoreIn(x, 0, 9, kvindex.Other(900)) }},
			{"a branch goes", func(x kvindex.Index) { kvindex.RemoveFrom(x, 0, 801); kvindex.RemoveFrom(x, 1, 803, 802) }},
			{"both are cleared", func(x kvindex.Index) { _ = x.Clear(kvindex.RankOf(0)); _ = x.Clear(kvindex.RankOf(1)) }},
			{"one leaves and another takes its slot", func(x kvindex.Index) {
				x.Detach(kvindex.RankOf(0))
				x.Attach(kvindex.RankOf(9))
				kvindex.StoreIn(x, 9, 0, kvindex.SeqRun(1, 3)...)
			}},
			{"many children come", func(x kvindex.Index) {
				for i := range 40 {
					kvindex.StoreIn(x, 0, 5, kvindex.Other(2000+i))
				}
			}},
		}},
		{"a crowd", held(90, 20), kvindex.Locals(kvindex.SeqRun(1, 20)), []change{
			{"it is cut in two", func(x kvindex.Index) { kvindex.StoreIn(x, 70, 7, kvindex.Other(900)) }},
			{"all but one leave", func(x kvindex.Index) {
				for i := range 89 {
					_ = x.Clear(kvindex.RankOf(i))
				}
			}},
			{"the last of a group leaves", func(x kvindex.Index) {
				for i := 64; i < 90; i++ {
					kvindex.RemoveFrom(x, i, kvindex.Down(20, 1)...)
				}
			}},
			{"it grows", func(x kvindex.Index) { kvindex.StoreIn(x, 80, 20, kvindex.Other(900)) }},
			{"a hole", func(x kvindex.Index) { kvindex.RemoveFrom(x, 77, 6) }},
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

// answers returns the answers of the oracle, with the change or, if that is nil, without.
func answers(w world, change func(kvindex.Index)) []uint32 {
	m := oracle.New(kvindex.RouteConfig{})
	w.build(m)
	if change != nil {
		change(m)
	}
	var dst kvindex.Overlap
	m.Overlap(w.chain, &dst)
	return slices.Clone(dst.Blocks)
}

// letIn makes the change after so many steps of a query. False means that the query had
// fewer steps.
func letIn(t *testing.T, w world, c change, after int, was, is []uint32) bool {
	tr, err := kvindex.NewTree(kvindex.TreeConfig{MaxBytes: 2 << 20, NoHugePages: true}, kvindex.NewSlots())
	require.NoError(t, err)
	w.build(tr)
	n, done := 0, false
	tr.SetBetween(func() {
		if n++; n == after+1 {
			done = true
			c.do(tr)
		}
	})
	var dst kvindex.Overlap
	tr.Overlap(w.chain, &dst)
	tr.SetBetween(nil)
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
