package oracle_test

import (
	"fmt"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/kvindex/oracle"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// The same events go to a tree and to a map, and both must answer the same.
func ExampleMap() {
	tree, err := kvindex.NewTree(kvindex.TreeConfig{MaxBytes: kvindex.LeastBytes}, kvindex.NewSlots())
	if err != nil {
		panic(err)
	}
	plain := oracle.New(kvindex.RouteConfig{})
	rank := worker.Rank{ID: 7}
	chain := []kvindex.LocalHash{1, 2, 3}
	var got, want kvindex.Overlap
	for _, x := range []struct {
		index kvindex.Index
		into  *kvindex.Overlap
	}{{tree, &got}, {plain, &want}} {
		x.index.Attach(rank)
		_ = x.index.Store(rank, kvindex.Stored{Blocks: []kvindex.Block{{Engine: 101, Local: 1}, {Engine: 102, Local: 2}}})
		x.index.Overlap(chain, x.into)
	}
	fmt.Println(got.Blocks, want.Blocks)
	// Output: [2] [2]
}
