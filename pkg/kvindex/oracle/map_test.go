package oracle

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func filled(ranks, blocks int) (*Map, []kvindex.LocalHash) {
	m := New(kvindex.RouteConfig{TTL: time.Minute, PredictedTTL: time.Minute, MaxBlocks: 100})
	var chain []kvindex.LocalHash
	var e kvindex.Stored
	for i := range blocks {
		chain = append(chain, kvindex.LocalHash(i+1))
		e.Blocks = append(e.Blocks, kvindex.Block{Engine: kvindex.EngineHash(i + 1), Local: kvindex.LocalHash(i + 1)})
	}
	for i := range ranks {
		r := worker.Rank{ID: worker.ID(i + 1)}
		m.Attach(r)
		_ = m.Store(r, kvindex.Stored{Blocks: e.Blocks[:1+i%blocks]})
	}
	return m, chain
}

func TestCheckNamesTheBrokenInvariant(t *testing.T) {
	rank := worker.Rank{ID: 1}
	for name, c := range map[string]struct {
		breakIt func(*Map)
		want    string
	}{
		"a rank with a foreign slot":   {func(m *Map) { m.ranks[rank].slot = 7 }, "I1"},
		"a slot lost from the list":    {func(m *Map) { m.slots.length++ }, "I1"},
		"a block on no tier":           {func(m *Map) { m.ranks[rank].blocks[9] = heldBlock{} }, "I2"},
		"a count that is off":          {func(m *Map) { m.ranks[rank].views[kvindex.OnDevice].counts[1]++ }, "I3"},
		"a count of nothing":           {func(m *Map) { m.ranks[rank].views[kvindex.OnDevice].counts[77] = 1 }, "I3"},
		"a bit that is missing":        {func(m *Map) { m.holders.drop(1, 0) }, "I4"},
		"a bit too many":               {func(m *Map) { m.holders.add(77, 0) }, "I4"},
		"a bit of no rank":             {func(m *Map) { m.holders.add(1, 3) }, "I5"},
		"a sequence without holders":   {func(m *Map) { m.holders[77] = nil }, "I5"},
		"block counts that are off":    {func(m *Map) { m.ranks[rank].stats.Blocks++ }, "I6"},
		"tier counts that are off":     {func(m *Map) { m.ranks[rank].stats.TierBlocks[kvindex.Disk]++ }, "I6"},
		"a free slot that is not free": {func(m *Map) { m.slots.free = append(m.slots.free, 0) }, "I1"},
	} {
		t.Run(name, func(t *testing.T) {
			m, _ := filled(1, 10)
			require.NoError(t, m.Check())
			c.breakIt(m)
			require.ErrorContains(t, m.Check(), c.want)
		})
	}
}

// TestReadersBesideWriters is for the race detector. Check runs at the end.
func TestReadersBesideWriters(t *testing.T) {
	m, chain := filled(8, 50)
	var wg sync.WaitGroup
	for i := range 4 {
		rank := worker.Rank{ID: worker.ID(i + 1)}
		wg.Go(func() {
			for n := range 300 {
				_ = m.Store(rank, kvindex.Stored{Parent: 1, HasParent: true, Blocks: []kvindex.Block{{Engine: kvindex.EngineHash(1000 + n), Local: kvindex.LocalHash(n)}}})
				_ = m.Remove(rank, kvindex.Removed{Blocks: []kvindex.EngineHash{kvindex.EngineHash(1000 + n/2)}})
				m.Route(rank, chain[:n%50], kvindex.Guess(n%2), time.Unix(int64(n), 0))
				if n%100 == 99 {
					m.Detach(rank)
					m.Attach(rank)
					_ = m.Store(rank, kvindex.Stored{Blocks: []kvindex.Block{{Engine: 1, Local: 1}}})
				}
			}
		})
		wg.Go(func() {
			var dst kvindex.Overlap
			for n := range 300 {
				m.Overlap(chain, &dst)
				m.Expire(time.Unix(int64(n), 0))
				m.Slot(rank)
				m.Stats(rank)
			}
		})
	}
	wg.Wait()
	require.NoError(t, m.Check())
}
