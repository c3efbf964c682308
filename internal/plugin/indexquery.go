package plugin

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/seed-60ae5743/baton/internal/admin"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// askIndex answers the question of a person: how much of a prompt does each rank hold?
func (p *plugin) askIndex(q admin.IndexQuery) (admin.IndexAnswer, error) {
	var workers []*worker.Worker
	for _, w := range p.board.Load().Workers() {
		if q.Model == "" || slices.Contains(w.Models, q.Model) {
			workers = append(workers, w)
		}
	}
	if q.Model != "" && len(workers) == 0 {
		return admin.IndexAnswer{}, fmt.Errorf("model %q: expected one that a worker serves", q.Model)
	}
	c, blockSize, err := chainsOf(&q, workers)
	if err != nil {
		return admin.IndexAnswer{}, err
	}
	a := admin.IndexAnswer{PromptBlocks: len(c.plain), BlockSize: blockSize}
	a.Ranks, err = p.overlaps(c, workers)
	if err != nil {
		return a, err
	}
	slices.SortFunc(a.Ranks, func(x, y admin.IndexOverlap) int {
		return cmp.Or(cmp.Compare(y.TreeBlocks, x.TreeBlocks), cmp.Compare(y.HostBlocks, x.HostBlocks), cmp.Compare(y.DiskBlocks, x.DiskBlocks),
			cmp.Compare(y.RoutedBlocks, x.RoutedBlocks),
			cmp.Compare(x.WorkerID, y.WorkerID), cmp.Compare(x.DPRank, y.DPRank))
	})
	return a, nil
}

// chains are the hashes of one prompt's blocks, for workers without EAGLE (plain) and
// with it (pairs). If the question gives hashes, both are these.
type chains struct{ plain, pairs []kvindex.LocalHash }

func (c *chains) of(eagle bool) []kvindex.LocalHash {
	if eagle {
		return c.pairs
	}
	return c.plain
}

// chainsOf returns the hashes of the prompt's blocks. The block size is 0 if the question
// gives hashes.
func chainsOf(q *admin.IndexQuery, workers []*worker.Worker) (chains, int, error) {
	if len(q.Hashes) > 0 {
		chain := make([]kvindex.LocalHash, len(q.Hashes))
		for i, h := range q.Hashes {
			chain[i] = kvindex.LocalHash(h)
		}
		return chains{plain: chain, pairs: chain}, 0, nil
	}
	size := q.BlockSize
	for _, w := range workers {
		switch {
		case q.BlockSize > 0 || size == int(w.BlockSize) || w.BlockSize == 0: // 0: not known yet
		case size == 0:
			size = int(w.BlockSize)
		default:
			return chains{}, 0, fmt.Errorf("block_size is missing: the workers of model %q have %d and %d: expected one of them", q.Model, size, w.BlockSize)
		}
	}
	if size == 0 && len(workers) > 0 {
		return chains{}, 0, fmt.Errorf("block_size is missing: no worker of model %q has told its own", q.Model)
	}
	seed := kvindex.Salt{LoRA: q.LoRA, CacheSalt: q.CacheSalt}.Seed()
	return chains{
		plain: kvindex.AppendLocalHashes(nil, q.Tokens, size, seed),
		pairs: kvindex.AppendPairHashes(nil, q.Tokens, size, seed),
	}, size, nil
}

// overlaps asks the index. A slot belongs to one rank only until a rank comes or goes:
// then overlaps asks again.
func (p *plugin) overlaps(c chains, workers []*worker.Worker) ([]admin.IndexOverlap, error) {
	const tries = 10
	for range tries {
		generation := p.slots.Generation()
		rows := p.overlapsOf(&c, workers, false)
		rows = append(rows, p.overlapsOf(&c, workers, true)...)
		if p.slots.Generation() == generation {
			return rows, nil
		}
	}
	return nil, errors.New("the list of workers is changing: ask again")
}

// overlapsOf asks the index for the workers with EAGLE, or for those without.
func (p *plugin) overlapsOf(c *chains, workers []*worker.Worker, eagle bool) []admin.IndexOverlap {
	var all kvindex.Overlap
	p.index.Overlap(c.of(eagle), &all)
	var rows []admin.IndexOverlap
	for _, w := range workers {
		if w.Eagle != eagle {
			continue
		}
		for dp := range worker.DPRank(w.DPSize) {
			row := admin.IndexOverlap{WorkerID: w.ID, DPRank: dp, Role: w.Role.String(), BlockSize: int(w.BlockSize)}
			if s, ok := p.slots.Slot(worker.Rank{ID: w.ID, DPRank: dp}); ok {
				held := p.slots.Held(s, &all)
				row.TreeBlocks, row.HostBlocks, row.DiskBlocks, row.RoutedBlocks = held.Device, held.Host, held.Disk, held.Routed
			}
			rows = append(rows, row)
		}
	}
	return rows
}
