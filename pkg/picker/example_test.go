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
	p := picker.DefaultParams()
	d, err := picker.Pick(req, cands, &p, 0, rand.New(rand.NewPCG(1, 2)))
	fmt.Println(d.Rank, d.Reason, d.Cost, err)
	fmt.Print(picker.Format(picker.AppendTable(nil, req, cands, &p), d.Rank))
	// Output:
	// 7/0 lowest-cost 2 <nil>
	//    rank  overlap  cached  uncached  queued  blocks  requests  credit  prefill  decode  cost
	// *  7/0         4      64        16      16       0         0       4        2       0     2
	//    8/0         0       0        80       0       0         0       0        5       0     5
}
