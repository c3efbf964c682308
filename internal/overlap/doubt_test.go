package overlap

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// TestOfARankThatIsDoubtedAPartCounts of what its events told, in each tier, and all of what was routed to it beyond.
func TestOfARankThatIsDoubtedAPartCounts(t *testing.T) {
	cfg, l := parts(t)
	s := fleet(t, func(i int) bool { return i != 2 }, 4, 1)
	ranks := ranksOf(s)
	chain := []kvindex.LocalHash{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
	for i, r := range ranks {
		cfg.Index.Attach(r)
		if i == 2 {
			cfg.Index.Route(r, chain[:8], kvindex.Estimated, time.Unix(1, 0))
			continue
		}
		require.NoError(t, cfg.Index.Store(r, stored(chain[:8], 1)))
		host := stored(chain[:10], 1)
		host.Tier = kvindex.Host
		require.NoError(t, cfg.Index.Store(r, host))
	}
	cfg.Index.Route(ranks[1], chain, kvindex.Predicted, time.Unix(1, 0))
	of := func() (a Answer) {
		l.Of(s, ranks, Prompt{Hashes: chain}, &a)
		return a
	}
	told := func(a *Answer) (out []uint32) {
		for i := range ranks {
			out = append(out, a.Told(i))
		}
		return out
	}
	a := of()
	require.Equal(t, []uint32{8, 12, 8, 8}, a.Overlap)
	require.Equal(t, []uint32{8, 8, 0, 8}, told(&a))
	require.Equal(t, []uint32{2, 0, 0, 2}, a.Host)
	l.Doubt(map[worker.Rank]float64{ranks[0]: 0.5, ranks[1]: 0.25, ranks[2]: 0.1, {ID: 99}: 0})
	for range 2 { // what is in a.undoubted is of one question
		a = of()
		require.Equal(t, []uint32{4, 6, 8, 8}, a.Overlap, "nothing that rank 2 holds is of events")
		require.Equal(t, []uint32{8, 8, 0, 8}, told(&a))
		require.Equal(t, []uint32{1, 0, 0, 2}, a.Host)
	}
	l.Of(s, ranks, Prompt{Hashes: chain, Estimated: true}, &a)
	require.Equal(t, []uint32{0, 12, 8, 0}, a.Overlap, "an estimate is no event's")
	l.Of(s, ranks, Prompt{}, &a)
	require.Zero(t, a.Told(0))
	l.Doubt(nil)
	a = of()
	require.Equal(t, []uint32{8, 12, 8, 8}, a.Overlap)
	l.Doubt(map[worker.Rank]float64{ranks[0]: 0.5})
	require.Zero(t, testing.AllocsPerRun(100, func() { l.Of(s, ranks, Prompt{Hashes: chain}, &a) }))
}

// TestWhatOthersThanTheListHoldIsTold: of those that drain, and of others of the key and role.
func TestWhatOthersThanTheListHoldIsTold(t *testing.T) {
	cfg, l := parts(t)
	s := fleet(t, func(int) bool { return true }, 5, 2)
	ws := append([]*worker.Worker{}, s.Workers()...)
	for i := range ws {
		w := *ws[i]
		w.Draining, w.Models = i == 4, []string{"m"}
		if i == 3 {
			w.Models = []string{"other"}
		}
		ws[i] = &w
	}
	s, err := worker.NewSnapshot(2, ws)
	require.NoError(t, err)
	chain := []kvindex.LocalHash{1, 2, 3, 4, 5, 6}
	for i, w := range ws {
		for dp := range worker.DPRank(2) {
			r := worker.Rank{ID: w.ID, DPRank: dp}
			cfg.Index.Attach(r)
			require.NoError(t, cfg.Index.Store(r, stored(chain[:1+i], 1)))
		}
	}
	ranks := ranksOf(s)
	require.Len(t, ranks, 6)
	of := func(ranks []worker.Rank, role worker.Role) (a Answer) {
		l.Of(s, ranks, Prompt{Hashes: chain, Key: worker.Key{Model: "m"}, Role: role}, &a)
		return a
	}
	a := of(ranks, worker.Aggregated)
	require.Equal(t, uint32(5), a.Outside)
	require.True(t, a.Drains)
	l.Forget()
	a = of(ranks, worker.Prefill)
	require.Zero(t, a.Outside, "of another role")
	l.Forget()
	a = of(ranks, 0)
	require.Zero(t, a.Outside, "nobody asked")
	ws[4].Models = []string{"other"}
	s, err = worker.NewSnapshot(3, ws)
	require.NoError(t, err)
	a = of(append([]worker.Rank{}, ranks[:2]...), worker.Aggregated)
	require.Equal(t, uint32(3), a.Outside)
	require.False(t, a.Drains)
}

// TestWhoToldLastThatAPromptWasRoutedIsKnown, block by block, and not beyond what is remembered.
func TestWhoToldLastThatAPromptWasRoutedIsKnown(t *testing.T) {
	cfg, _ := parts(t)
	r := NewRoutes(cfg.Index)
	a, b := worker.Rank{ID: 1}, worker.Rank{ID: 1, DPRank: 1}
	chain := []kvindex.LocalHash{1, 2, 3, 4, 5, 6, 7, 8}
	now := time.Unix(1, 0)
	r.Note(a, chain[:2], kvindex.Estimated, now)
	require.Nil(t, r.heard.slots.Load(), "no memory where nobody else tells")
	require.Zero(t, r.OfOthers(a, chain, 0))
	r.Heard(a, chain, kvindex.Estimated, now)
	require.Equal(t, 8, r.OfOthers(a, chain, 0))
	require.Equal(t, 5, r.OfOthers(a, chain, 3))
	require.Zero(t, r.OfOthers(b, chain, 0), "another rank")
	r.Note(a, chain[:3], kvindex.Predicted, now)
	require.Equal(t, 8, r.OfOthers(a, chain, 0), "events tell of that one")
	r.Note(a, chain[:3], kvindex.Estimated, now)
	require.Equal(t, 5, r.OfOthers(a, chain, 0))
	require.Zero(t, r.OfOthers(a, chain[1:], 0), "another place in a prompt")
	long := make([]kvindex.LocalHash, heardMost+10)
	for i := range long {
		long[i] = kvindex.LocalHash(i) * 0x9e3779b97f4a7c15
	}
	r.Heard(a, long, kvindex.Estimated, now)
	require.InDelta(t, heardMost, r.OfOthers(a, long, 0), heardMost/10, "some lie in one place")
}
