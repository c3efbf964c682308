package kvindex_test

import (
	"fmt"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func ExampleTree() {
	index, err := kvindex.NewTree(kvindex.TreeConfig{MaxBytes: 1 << 20}, kvindex.NewSlots())
	if err != nil {
		panic(err)
	}
	rank := worker.Rank{ID: 7}
	slot := index.Attach(rank)

	tokens := []uint32{1, 2, 3, 4, 5, 6, 7, 8}
	chain := kvindex.AppendLocalHashes(nil, tokens, 4, kvindex.Salt{}.Seed())
	_ = index.Store(rank, kvindex.Stored{Blocks: []kvindex.Block{
		{Engine: 101, Local: chain[0]},
	}})

	var answer kvindex.Overlap
	index.Overlap(chain, &answer)
	fmt.Println(rank, "holds", answer.At(slot), "of", len(chain), "blocks")
	// Output: 7/0 holds 1 of 2 blocks
}
