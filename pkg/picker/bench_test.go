package picker

import (
	"fmt"
	"testing"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

func BenchmarkPick(b *testing.B) {
	for _, workers := range []int{10, 100, 1000} {
		cands := randomCandidates(workers*8, newRand(1))
		idle := make([]Candidate, len(cands))
		req := &Request{Role: worker.Prefill, ISLTokens: 1000, RequestBlocks: 62}
		for _, c := range []struct {
			name  string
			cands []Candidate
			with  func(*Params)
		}{
			{"kv", cands, func(*Params) {}},
			{"kv-all-tied", idle, func(*Params) {}},
			{"kv-decay", cands, func(p *Params) { p.OverlapScoreCreditDecay = 1 }},
			{"kv-temperature", cands, func(p *Params) { p.Temperature = 0.5 }},
			{"least-loaded", cands, func(p *Params) { p.Mode = LeastLoaded }},
		} {
			b.Run(fmt.Sprintf("%s/workers=%dx8", c.name, workers), func(b *testing.B) {
				p, rng := DefaultParams(), newRand(2)
				c.with(&p)
				b.ReportAllocs()
				for b.Loop() {
					_, _ = Pick(req, c.cands, &p, 0, rng)
				}
			})
		}
	}
}
