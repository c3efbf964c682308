package picker_test

import (
	"fmt"
	"math/rand/v2"

	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func ExamplePick() {
	req := &picker.Request{Role: worker.Prefill, ISLTokens: 80, RequestBlocks: 5}
	cands := picker.NewCandidates(
		picker.Candidate{Rank: worker.Rank{ID: 7}, OverlapBlocks: 4, ActivePrefillTokens: 16},
		picker.Candidate{Rank: worker.Rank{ID: 8}},
	)
	cands.Near = new(picker.Shortlist) // the rows below are of the cheapest
	p := picker.DefaultParams()
	d, err := picker.Pick(req, cands, &p, 0, rand.New(rand.NewPCG(1, 2)))
	fmt.Println(d.Rank, d.Reason, d.Cost, err)
	for _, r := range picker.AppendNear(nil, req, cands, &p, &d) {
		fmt.Println(r.Rank, "holds", r.OverlapBlocks, "blocks: cost", r.Cost)
	}
	// Output:
	// 7/0 lowest-cost 2 <nil>
	// 7/0 holds 4 blocks: cost 2
	// 8/0 holds 0 blocks: cost 5
}
