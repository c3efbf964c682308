package loads

import (
	"fmt"

	"github.com/seed-60ae5743/baton/internal/engine/ask"
	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Report is what an engine says about one rank.
type Report struct {
	Rank     worker.Rank
	Blocks   int64 // KV blocks that running requests hold
	Requests int64 // running requests that hold them
	Waiting  int64 // requests whose prompts are not begun yet
	// Prefills says that the worker only prefills: what it runs are prompts, and no answers.
	Prefills bool
	// Asleep says that the rank has given up its KV cache, which its events may not say.
	Asleep bool
}

// place is one address that is asked, and the facts about the ranks behind it.
type place struct {
	id        worker.ID
	page      *ask.RunningPage
	address   string
	first     worker.DPRank
	engine    int // what the page calls the worker's rank 0
	ranks     uint32
	blockSize uint32
	capacity  uint64
	prefills  bool // only prefill: what it runs are no answers
}

// placesOf lists the addresses at which a worker is asked: one, or one for each rank with
// a port of its own. There is none if the worker speaks no HTTP or has no such page.
func placesOf(w *worker.Worker) (out []place) {
	page := engines.Of(w.Engine).Pages.Running
	if w.Fronted || page == nil {
		return nil
	}
	each := w.RanksPerPort()
	for first := uint32(0); first < w.DPSize; first += each {
		if at := w.EndpointOf(worker.DPRank(first)); !at.IsZero() {
			out = append(out, place{
				id: w.ID, page: page, address: at.String(), first: worker.DPRank(first), engine: int(w.EngineRank), ranks: each,
				blockSize: w.BlockSize, capacity: w.CapacityBlocks, prefills: w.Role == worker.Prefill,
			})
		}
	}
	return out
}

// read returns the page's reports on the ranks behind its address. If the address has one
// rank and the page has one, they are the same, whatever its number on the page: a
// process of vLLM that serves one rank of several may count from 0.
func (p *place) read(page []byte) ([]Report, error) {
	told, err := p.page.Read(page, p.blockSize, p.capacity)
	if err != nil {
		return nil, err
	}
	var out []Report
	for _, r := range told {
		dp := r.Rank - p.engine
		if p.ranks == 1 && len(told) == 1 {
			dp = int(p.first)
		}
		if dp < int(p.first) || dp >= int(p.first)+int(p.ranks) {
			continue
		}
		out = append(out, Report{worker.Rank{ID: p.id, DPRank: worker.DPRank(dp)}, r.Blocks, r.Requests, r.Waiting, p.prefills, r.Asleep})
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%w: it tells of %d ranks, and of none of %d to %d",
			ask.ErrNotTold, len(told), p.first, int(p.first)+int(p.ranks)-1)
	}
	return out, nil
}
