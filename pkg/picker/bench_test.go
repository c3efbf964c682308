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
		rows := randomCandidates(workers*8, newRand(1))
		for i := range rows {
			rows[i].Wait, rows[i].Pace, rows[i].Writing = float64(i%7), Pace{1e-4, 0.01}, Writing{0.02, 1e-6}
			rows[i].CapacityBlocks, rows[i].Growing = 5000, int64(i%50)
		}
		paced := NewCandidates(rows...)
		req := &Request{AnswerTokens: 400, NewBlocks: 63, Role: worker.Prefill, ISLTokens: 1000, RequestBlocks: 62}
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
			{"kv-seconds", paced, func(p *Params) { p.InSeconds = true }},
			{"kv-seconds-decode", paced, func(p *Params) { p.InSeconds = true }},
			{"kv-temperature", cands, func(p *Params) { p.Temperature = 0.5 }},
			{"least-loaded", cands, func(p *Params) { p.Mode = LeastLoaded }},
		} {
			b.Run(fmt.Sprintf("%s/workers=%dx8", c.name, workers), func(b *testing.B) {
				p, rng := DefaultParams(), newRand(2)
				if req.Role = worker.Prefill; c.name == "kv-seconds-decode" {
					req.Role = worker.Decode
				}
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
