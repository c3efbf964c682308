package kvindex

import (
	"testing"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

func BenchmarkMapOverlap(b *testing.B) {
	m, chain := filled(64, 40)
	var dst Overlap
	b.ReportAllocs()
	for b.Loop() {
		m.Overlap(chain, &dst)
	}
}

func BenchmarkMapStoreRemoveOneBlock(b *testing.B) {
	m, _ := filled(64, 40)
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
