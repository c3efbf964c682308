package load

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/seed-60ae5743/baton/internal/invariants"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestIdenticalRequestsAtOnceSpreadAsOneByOne(t *testing.T) {
	s := fleet(t, 4, 2)
	b := New(1)
	b.Update(s)
	const n = 64
	res := make([]Reservation, n)
	var start, done sync.WaitGroup
	start.Add(1)
	for i := range n {
		done.Go(func() {
			start.Wait()
			_, err := b.PickAndReserve(prefillRequest(s, 320, params()), &res[i])
			if err != nil {
				t.Error(err)
			}
		})
	}
	start.Done()
	done.Wait()
	for _, l := range b.Loads(nil) {
		require.Equal(t, Load{PrefillTokens: n / 8 * 320, PrefillBlocks: n / 8 * 20, PrefillRequests: n / 8}, l.Load, l.Rank)
	}
	for i := range n {
		done.Go(res[i].Release)
	}
	done.Wait()
	require.Equal(t, Totals{}, b.Totals())
}

func TestOneOfManyReleasesOfABookingCounts(t *testing.T) {
	s := fleet(t, 1, 1)
	b := New(1)
	b.Update(s)
	var r Reservation
	_, err := b.PickAndReserve(prefillRequest(s, 32, params()), &r)
	require.NoError(t, err)
	require.True(t, r.Held())
	var wg sync.WaitGroup
	var mu sync.Mutex
	freed := 0
	for range 16 {
		wg.Go(func() {
			if r.ReleaseIfHeld() {
				mu.Lock()
				freed++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	require.Equal(t, 1, freed)
	require.False(t, r.Held())
	require.Equal(t, Totals{}, b.Totals())
}

func TestASecondReleaseIsCountedAndPanicsWithInvariants(t *testing.T) {
	s := fleet(t, 1, 1)
	b := New(1)
	b.Update(s)
	var r Reservation
	_, err := b.PickAndReserve(prefillRequest(s, 32, params()), &r)
	require.NoError(t, err)
	r.Release()
	if invariants.Enabled {
		require.Panics(t, r.Release)
	} else {
		r.Release()
	}
	require.Equal(t, Totals{DoubleReleases: 1}, b.Totals())
}

func TestWhatHoldsNothingReleasesNothing(t *testing.T) {
	var none *Reservation
	require.False(t, none.ReleaseIfHeld())
	require.False(t, none.Held())
	var zero Reservation
	require.False(t, zero.ReleaseIfHeld())
	require.Equal(t, Load{}, zero.Load())
	zero.PrefillDone(1)
	zero.Grow(1)
	require.Zero(t, zero.Rank())
}

func TestTheCallersBufferShowsWhatThePickSaw(t *testing.T) {
	s := fleet(t, 3, 1)
	b := New(1)
	b.Update(s)
	var first, second Reservation
	var buf []picker.Candidate
	req := prefillRequest(s, 160, params())
	req.Overlaps, req.Estimated, req.Candidates = []uint32{0, 4, 8}, []bool{false, true, false}, &buf
	d, err := b.PickAndReserve(req, &first)
	require.NoError(t, err)
	require.Equal(t, worker.Rank{ID: 3}, d.Rank)
	require.Equal(t, []picker.Candidate{
		{Rank: worker.Rank{ID: 1}},
		{Rank: worker.Rank{ID: 2}, OverlapBlocks: 4, Estimated: true},
		{Rank: worker.Rank{ID: 3}, OverlapBlocks: 8},
	}, buf)
	require.Equal(t, d.Cost, picker.AppendTable(nil, &req.Pick, buf, req.Params)[d.Index].Cost)

	req.Exclude = []worker.Rank{{ID: 1}}
	d, err = b.PickAndReserve(req, &second)
	require.NoError(t, err)
	require.Len(t, buf, 2)
	require.Equal(t, d.Rank, buf[d.Index].Rank)
	require.Equal(t, int64(32), buf[1].ActivePrefillTokens)
}

func TestRanksOfAnyOriginArePicked(t *testing.T) {
	b := New(1)
	old := fleet(t, 3, 2)
	b.Update(old)
	b.Update(fleet(t, 2, 2)) // worker 3 has left, and old's slices are not the book's any more
	for _, ranks := range [][]worker.Rank{
		old.Pool(key).PrefillRanks,
		old.Pool(key).PrefillRanks[1:],
		slices.Clone(old.Pool(key).PrefillRanks),
	} {
		req := prefillRequest(old, 16, params())
		req.Ranks = ranks
		var buf []picker.Candidate
		req.Candidates = &buf
		_, err := b.Preview(req)
		require.NoError(t, err)
		require.Len(t, buf, len(ranks)-2)
		for _, c := range buf {
			require.NotEqual(t, worker.ID(3), c.Rank.ID)
		}
	}
	b.Update(nil)
	_, err := b.Preview(prefillRequest(old, 16, params()))
	require.ErrorIs(t, err, picker.ErrNoCandidate)
	require.Empty(t, b.Loads(nil))
}

// recorder allows everybody but one worker, and remembers what it was told.
type recorder struct {
	deny  worker.ID
	asked []worker.Rank
	trial uint64
	open  map[uint64]worker.Rank
}

func (f *recorder) Allows(r worker.Rank) bool {
	f.asked = append(f.asked, r)
	return r.ID != f.deny
}

func (f *recorder) Begin(r worker.Rank) uint64 {
	f.trial++
	f.open[f.trial] = r
	return f.trial
}

func (f *recorder) End(r worker.Rank, trial uint64) {
	if f.open[trial] != r {
		panic("ended what was not begun")
	}
	delete(f.open, trial)
}

func TestTheFilterIsAskedOnceAWorkerAndToldOfEachBookingAndItsEnd(t *testing.T) {
	s := fleet(t, 3, 2)
	b := New(1)
	b.Update(s)
	f := &recorder{deny: 2, open: map[uint64]worker.Rank{}}
	var res [8]Reservation
	for i := range res {
		f.asked = nil
		req := prefillRequest(s, 16, params())
		req.Filter = f
		d, err := b.PickAndReserve(req, &res[i])
		require.NoError(t, err)
		require.Equal(t, 4, d.Candidates)
		require.NotEqual(t, worker.ID(2), d.Rank.ID)
		require.Equal(t, []worker.Rank{{ID: 1}, {ID: 2}, {ID: 3}}, f.asked)
		_, err = b.Preview(req)
		require.NoError(t, err)
		require.Len(t, f.open, i+1)
	}
	b.Update(nil)
	for i := range res {
		res[i].Release()
	}
	require.Empty(t, f.open)
	require.Equal(t, Totals{LateReleases: 8}, b.Totals())
}

func TestPickAndReserveAllocatesNothing(t *testing.T) {
	s := fleet(t, 16, 4)
	b := New(1)
	b.Update(s)
	overlaps := make([]uint32, 64)
	var buf []picker.Candidate
	for _, m := range []picker.Mode{picker.KV, picker.RoundRobin, picker.LeastLoaded} {
		p := params()
		p.Mode = m
		req := prefillRequest(s, 320, p)
		req.Overlaps, req.Candidates, req.Filter = overlaps, &buf, denyList(nil)
		var r Reservation
		once := func() {
			_, _ = b.PickAndReserve(req, &r)
			r.PrefillDone(3)
			r.Release()
		}
		once()
		require.Zero(t, testing.AllocsPerRun(100, once), m)
	}
	require.Equal(t, Totals{}, b.Totals())
}

func TestErrorsSayWhatWasExpected(t *testing.T) {
	err := &SaturatedError{QueuedISLTokens: 10, MaxQueuedISLTokens: 9}
	require.True(t, strings.HasPrefix(err.Error(), "load: 10 prompt tokens are queued: expected fewer than 9"))
}
