package picker

import (
	"fmt"
	"testing"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

func BenchmarkPick(b *testing.B) {
	for _, workers := range []int{10, 100, 1000} {
		cands := NewCandidates(randomCandidates(workers*8, newRand(1))...)
		idle := NewCandidates(make([]Candidate, workers*8)...)
		idle.Overlap = make([]uint32, workers*8)
		some := NewCandidates(randomCandidates(workers*8, newRand(1))...)
		some.Near = new(Shortlist)
		req := &Request{Role: worker.Prefill, ISLTokens: 1000, RequestBlocks: 62}
		for _, c := range []struct {
			name  string
			cands *Candidates
			with  func(*Params)
		}{
			{"kv", cands, func(*Params) {}},
			{"kv-all-tied", idle, func(*Params) {}},
			{"kv-shortlist", some, func(*Params) {}},
			{"kv-decode", cands, func(p *Params) { *p = DecodeOverride(*p) }},
			{"kv-estimated", cands, func(p *Params) {}},
			{"kv-thresholds", cands, func(p *Params) { p.PrefillTokensThreshold = 3500 }},
			{"kv-decay", cands, func(p *Params) { p.OverlapScoreCreditDecay = 1 }},
			{"kv-temperature", cands, func(p *Params) { p.Temperature = 0.5 }},
			{"least-loaded", cands, func(p *Params) { p.Mode = LeastLoaded }},
		} {
			b.Run(fmt.Sprintf("%s/workers=%dx8", c.name, workers), func(b *testing.B) {
				p, rng := DefaultParams(), newRand(2)
				req.Estimated = c.name == "kv-estimated"
				c.with(&p)
				b.ReportAllocs()
				for b.Loop() {
					_, _ = Pick(req, c.cands, &p, 0, rng)
				}
			})
		}
	}
}

func BenchmarkCheckQueue(b *testing.B) {
	c := NewCandidates(make([]Candidate, 8000)...)
	for b.Loop() {
		_ = CheckQueue(c, 1)
	}
}
