package kvindex

import "github.com/seed-60ae5743/baton/pkg/worker"

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
