package kvindex

import (
	"testing"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

func BenchmarkTreeOverlap(b *testing.B) {
	m, chain := filledTree(b, 64, 40)
	var dst Overlap
	b.ReportAllocs()
	for b.Loop() {
		m.Overlap(chain, &dst)
	}
}

func BenchmarkTreeStoreRemoveOneBlock(b *testing.B) {
	m, _ := filledTree(b, 64, 40)
	rank := worker.Rank{ID: 1}
	s := Stored{Parent: 1, HasParent: true, Blocks: []Block{{5000, 5000}}}
	r := Removed{Blocks: []EngineHash{5000}}
	b.ReportAllocs()
	for b.Loop() {
		_ = m.Store(rank, s)
		_ = m.Remove(rank, r)
	}
}

func BenchmarkLocalHashes(b *testing.B) {
	tokens := seqTokens(0, 32_768)
	dst := make([]LocalHash, 0, 2048)
	b.SetBytes(int64(4 * len(tokens)))
	b.ReportAllocs()
	for b.Loop() {
		AppendLocalHashes(dst, tokens, 16, baseSeed)
	}
}

// BenchmarkTreeRoute measures Route for a prompt of 8,000 blocks (128,000 tokens) that
// is new, Route for one that was routed before, and a query for the prompt.
func BenchmarkTreeRoute(b *testing.B) {
	const blocks = 8000
	at := time.Unix(1000, 0)
	chain := locals(seqRun(1, blocks))
	b.Run("new", func(b *testing.B) {
		t := newTree(b, NewSlots())
		r := worker.Rank{ID: 1}
		b.ReportAllocs()
		for b.Loop() {
			at = at.Add(time.Hour) // so that the prompt before has expired
			t.Route(r, chain, Estimated, at)
		}
	})
	b.Run("again", func(b *testing.B) {
		t := newTree(b, NewSlots())
		b.ReportAllocs()
		for b.Loop() {
			t.Route(worker.Rank{ID: 1}, chain, Estimated, at)
		}
	})
	b.Run("overlap", func(b *testing.B) {
		t := newTree(b, NewSlots())
		t.Route(worker.Rank{ID: 1}, chain, Estimated, at)
		var dst Overlap
		for b.Loop() {
			t.Overlap(chain, &dst)
		}
	})
}
