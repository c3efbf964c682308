package load

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/invariants"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pickAll makes the picks of n identical requests, at once or one by one, and returns the
// resulting load of each rank. It then releases everything.
func pickAll(t *testing.T, b *Book, n int, atOnce bool, request func() *Request) map[worker.Rank]Load {
	res := make([]Reservation, n)
	var start, done sync.WaitGroup
	start.Add(1)
	for i := range n {
		one := func() {
			if _, err := b.PickAndReserve(request(), &res[i]); err != nil {
				t.Error(err)
			}
		}
		if !atOnce {
			one()
			continue
		}
		done.Go(func() {
			start.Wait()
			one()
		})
	}
	start.Done()
	done.Wait()
	got := map[worker.Rank]Load{}
	for _, l := range b.Loads(nil) {
		got[l.Rank] = l.Load
	}
	for i := range n {
		done.Go(func() { res[i].Release(later) })
	}
	done.Wait()
	return got
}

func TestIdenticalRequestsAtOnceSpreadAsOneByOne(t *testing.T) {
	s := fleet(t, 4, 2)
	b := New(1)
	b.Update(s)
	const n = 64
	for _, l := range pickAll(t, b, n, true, func() *Request { return prefillRequest(s, 320, params()) }) {
		require.Equal(t, Load{PrefillTokens: n / 8 * 320, PrefillBlocks: n / 8 * 20, PrefillRequests: n / 8}, l)
	}
	require.Equal(t, Totals{}, b.Totals())
}

// The same if ranks differ: in the blocks that they hold of the prompt, and in their
// load. Loads and overlaps are such that no two costs are ever equal, so one by one there
// is a single right outcome.
func TestIdenticalRequestsAtOnceSpreadAsOneByOneOverUnequalRanks(t *testing.T) {
	for _, role := range []worker.Role{worker.Prefill, worker.Decode} {
		for _, mode := range []picker.Mode{picker.KV, picker.LeastLoaded} {
			ws := make([]*worker.Worker, 4)
			for i := range ws {
				ws[i] = testWorker(t, worker.ID(i+1), role, 2, 8000)
			}
			s := snapshot(t, ws...)
			b := New(1)
			b.Update(s)
			ranks := s.Pool(key).Ranks(role)
			p := params()
			p.Mode = mode
			request := func() *Request {
				return &Request{
					Key: key, Ranks: ranks, Params: p, Cached: picker.Cached{Overlap: []uint32{0, 3, 17, 5, 0, 9, 1, 12}},
					Pick: picker.Request{Role: role, ISLTokens: 320, RequestBlocks: 20, NewBlocks: 20},
				}
			}
			before := make([]Reservation, len(ranks))
			for i, r := range ranks { // loads differ by whole requests and in their last digits
				req := request()
				req.Pick.ISLTokens = 16*(1+i*101) + i
				require.NoError(t, b.Reserve(req, r, 0, &before[i]))
			}
			want := pickAll(t, b, 64, false, request)
			for range 10 {
				require.Equal(t, want, pickAll(t, b, 64, true, request), "%s %s", role, mode)
			}
			for i := range before {
				before[i].Release(later)
			}
			require.Equal(t, Totals{}, b.Totals())
		}
	}
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
			if r.ReleaseIfHeld(later) {
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
	r.Release(later)
	if invariants.Enabled {
		require.Panics(t, func() { r.Release(later) })
	} else {
		r.Release(later)
	}
	require.Equal(t, Totals{DoubleReleases: 1}, b.Totals())
}

func TestWhatHoldsNothingReleasesNothing(t *testing.T) {
	var none *Reservation
	require.False(t, none.ReleaseIfHeld(later))
	require.False(t, none.Held())
	var zero Reservation
	require.False(t, zero.ReleaseIfHeld(later))
	require.Equal(t, Load{}, zero.Load())
	zero.PrefillDone(1, later)
	require.Zero(t, zero.Rank())
}

func TestTheExplanationShowsWhatThePickSaw(t *testing.T) {
	s := fleet(t, 3, 1)
	b := New(1)
	b.Update(s)
	var first, second Reservation
	x := new(Explanation)
	req := prefillRequest(s, 160, params())
	req.Overlap, req.Estimated, req.Explain = []uint32{0, 4, 8}, picker.Bits{2}, x
	d, err := b.PickAndReserve(req, &first)
	require.NoError(t, err)
	require.Equal(t, worker.Rank{ID: 3}, d.Rank)
	require.Equal(t, uint32(8), d.OverlapBlocks)
	require.Equal(t, int64(32), d.UncachedTokens)
	var seen []picker.Candidate
	for _, r := range x.Rows {
		seen = append(seen, r.Candidate)
	}
	require.Equal(t, []picker.Candidate{
		{Rank: worker.Rank{ID: 3}, OverlapBlocks: 8, Pace: picker.Unlearned(), Writing: picker.UnlearnedWriting()},
		{Rank: worker.Rank{ID: 2}, OverlapBlocks: 4, Estimated: true, Pace: picker.Unlearned(), Writing: picker.UnlearnedWriting()},
		{Rank: worker.Rank{ID: 1}, Pace: picker.Unlearned(), Writing: picker.UnlearnedWriting()},
	}, seen)
	require.Equal(t, d.Cost, x.Rows[0].Cost)
	require.Empty(t, x.Out)

	req.Exclude = []worker.Rank{{ID: 1}}
	d, err = b.PickAndReserve(req, &second)
	require.NoError(t, err)
	require.Len(t, x.Rows, 2)
	require.Equal(t, d.Rank, x.Rows[0].Rank)
	require.Equal(t, int64(32), x.Rows[0].ActivePrefillTokens, "the load before this booking")
	require.Equal(t, []OutRow{{Rank: worker.Rank{ID: 1}, Cause: OutExcluded}}, x.Out)
}

func TestOfManyRanksTheExplanationKeepsThePickedAndTheCheapest(t *testing.T) {
	s := fleet(t, 40, 8)
	b := New(1)
	b.Update(s)
	req := prefillRequest(s, 160, params())
	req.Params.Temperature = 50 // at this temperature the picked rank is hardly ever among the cheapest
	req.Overlap, req.Explain, req.Filter = make([]uint32, 320), new(Explanation), &denyList{3, 4, 5}
	for i := range 100 {
		req.Overlap[319-i] = uint32(i % 10)
	}
	for range 20 {
		var r Reservation
		d, err := b.PickAndReserve(req, &r)
		require.NoError(t, err)
		x := req.Explain
		require.Equal(t, d.Rank, x.Rows[0].Rank)
		require.GreaterOrEqual(t, len(x.Rows), picker.ShortlistLen)
		require.Equal(t, uint32(9), x.Rows[1].OverlapBlocks)
		require.Len(t, x.Out, picker.ShortlistLen)
		require.Equal(t, 320, len(x.Rows)+len(x.Out)+x.Left)
		require.Equal(t, 320-24, len(x.Rows)+x.More, "those of three workers are not eligible")
		r.Release(later)
	}
}

func TestRanksOfAnyOriginArePicked(t *testing.T) {
	b := New(1)
	old := fleet(t, 3, 2)
	b.Update(old)
	b.Update(fleet(t, 2, 2)) // worker 3 has left, and the book no longer knows old's slices
	for _, ranks := range [][]worker.Rank{
		old.Pool(key).PrefillRanks,
		old.Pool(key).PrefillRanks[1:],
		slices.Clone(old.Pool(key).PrefillRanks),
	} {
		req := prefillRequest(old, 16, params())
		req.Ranks = ranks
		req.Explain = new(Explanation)
		_, err := b.Preview(req)
		require.NoError(t, err)
		require.Len(t, req.Explain.Rows, len(ranks)-2)
		for _, c := range req.Explain.Rows {
			require.NotEqual(t, worker.ID(3), c.Rank.ID)
		}
		require.Equal(t, []OutRow{
			{Rank: worker.Rank{ID: 3}, Cause: OutUnknown}, {Rank: worker.Rank{ID: 3, DPRank: 1}, Cause: OutUnknown},
		}, req.Explain.Out)
	}
	b.Update(nil)
	_, err := b.Preview(prefillRequest(old, 16, params()))
	require.ErrorIs(t, err, picker.ErrNoCandidate)
	require.Empty(t, b.Loads(nil))
}

// recorder gives the standings of some workers, and records the calls.
type recorder struct {
	now     uint64
	changed []worker.ID // in the latest version
	stands  map[worker.ID]health.Standing
	asked   []worker.ID
	trial   uint64
	open    map[uint64]worker.Rank
}

func (f *recorder) set(id worker.ID, s health.Standing) {
	f.stands[id], f.changed = s, []worker.ID{id}
	f.now++
}

func (f *recorder) Changes(since uint64, dst []worker.ID) (now uint64, changed []worker.ID, all bool) {
	if since == f.now {
		return f.now, dst, false
	}
	return f.now, append(dst, f.changed...), since+1 != f.now
}

func (f *recorder) Standing(r worker.Rank) health.Standing {
	if n := len(f.asked); n == 0 || f.asked[n-1] != r.ID { // the ranks of a worker are adjacent
		f.asked = append(f.asked, r.ID)
	}
	return f.stands[r.ID]
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

func TestTheFilterIsHeardAtEachPickAndToldOfEachBookingAndItsEnd(t *testing.T) {
	s := fleet(t, 4, 2)
	b := New(1)
	b.Update(s)
	f := &recorder{now: 2, stands: map[worker.ID]health.Standing{2: health.Barred, 3: health.Tried}, open: map[uint64]worker.Rank{}}
	var res [8]Reservation
	for i := range res {
		f.asked = nil
		switch i {
		case 0:
		case 1:
			f.set(3, health.Half)
		default:
			f.set(3, health.Half+health.Standing(i%2))
		}
		req := prefillRequest(s, 16, params())
		req.Filter = f
		d, err := b.PickAndReserve(req, &res[i])
		require.NoError(t, err)
		require.Equal(t, map[health.Standing]int{health.Tried: 4, health.Half: 6}[f.stands[3]], d.Candidates)
		require.NotEqual(t, worker.ID(2), d.Rank.ID)
		require.Equal(t, map[bool][]worker.ID{true: {1, 2, 3, 4}, false: {3}}[i == 0], f.asked, "who has changed")
		_, err = b.Preview(req)
		require.NoError(t, err)
		require.Len(t, f.open, i+1)
	}
	req := prefillRequest(s, 16, params())
	req.Filter, req.Explain = f, new(Explanation)
	candidates := func() int {
		d, err := b.Preview(req)
		require.NoError(t, err)
		return d.Candidates
	}
	f.set(3, health.Barred)
	require.Equal(t, 4, candidates())
	f.set(1, health.Barred)
	f.set(4, health.Tried) // two versions at once, so the book looks at all ranks
	require.Equal(t, 2, candidates(), "nobody is free")
	f.set(2, health.Tried)
	require.Equal(t, 4, candidates())
	f.set(1, health.Free)
	require.Equal(t, 2, candidates())
	f.set(9, health.Barred) // the book does not know this worker
	require.Equal(t, 2, candidates())
	req.Filter = nil
	require.Equal(t, 8, candidates())
	req.Filter = f
	f.asked = nil
	require.Equal(t, 2, candidates())
	require.Empty(t, f.asked, "a pick without the filter makes it forget nothing")
	b.Update(nil)
	for i := range res {
		res[i].Release(later)
	}
	require.Empty(t, f.open)
	require.Equal(t, Totals{LateReleases: 8}, b.Totals())
}

func TestPickAndReserveAllocatesNothing(t *testing.T) {
	s := fleet(t, 16, 4)
	b := New(1)
	b.Update(s)
	overlaps := make([]uint32, 64)
	x := new(Explanation)
	for _, m := range []picker.Mode{picker.KV, picker.RoundRobin, picker.LeastLoaded} {
		p := params()
		p.Mode, p.PrefillTokensThreshold = m, 10000
		req := prefillRequest(s, 320, p)
		req.Overlap, req.Explain, req.Filter, req.Exclude = overlaps, x, &denyList{3}, []worker.Rank{{ID: 5}}
		var r Reservation
		once := func() {
			req.Now = req.Now.Add(time.Second)
			_, _ = b.PickAndReserve(req, &r)
			r.PrefillDone(3, later)
			r.Release(later)
		}
		once()
		require.Zero(t, testing.AllocsPerRun(100, once), m)
	}
	require.Equal(t, Totals{}, b.Totals())
}

// An entry's places in tables that are gone must not grow with snapshots and bookings.
func TestTablesLeaveNothingBehind(t *testing.T) {
	s := fleet(t, 4, 2)
	b := New(1)
	p := params()
	for range 5 {
		b.Update(s)
		var r Reservation
		req := prefillRequest(s, 64, p)
		req.Now = later
		_, err := b.PickAndReserve(req, &r)
		require.NoError(t, err)
		r.Release(later)
		for i := range b.entries {
			require.Len(t, b.entries[i].places, 1)
		}
	}
}

// A request that has read the previous snapshot finds its columns ready. Workers that
// have left since cannot be picked, and the others have their present bookings.
func TestAPickInTheWorldBeforeNeedsNoNewTable(t *testing.T) {
	old, now := fleet(t, 4, 2), fleet(t, 3, 2)
	b := New(1)
	b.Update(old)
	table := b.tables[&old.Pool(key).PrefillRanks[0]]
	req := prefillRequest(old, 64, params())
	req.Filter = new(denyList)
	_, err := b.Preview(req) // so that the table has read the filter
	require.NoError(t, err)
	b.Update(now)
	var booked, r Reservation
	_, err = b.PickAndReserve(prefillRequest(now, 64, params()), &booked)
	require.NoError(t, err)
	once := func() {
		_, _ = b.PickAndReserve(req, &r)
		r.Release(later)
	}
	once()
	require.Zero(t, testing.AllocsPerRun(100, once))
	require.Same(t, table, b.tableLocked(req.Ranks))
	req.Explain = new(Explanation)
	_, err = b.Preview(req)
	require.NoError(t, err)
	require.Len(t, req.Explain.Rows, 6)
	require.Equal(t, []OutRow{
		{Rank: worker.Rank{ID: 4}, Cause: OutUnknown}, {Rank: worker.Rank{ID: 4, DPRank: 1}, Cause: OutUnknown},
	}, req.Explain.Out)
	require.EqualValues(t, 64, b.QueuedISLTokens(req.Ranks, nil, later))
	booked.Release(later)

	b.Update(now)
	require.NotSame(t, table, b.tableLocked(req.Ranks), "it is kept for one round")
	for i := range b.entries {
		require.LessOrEqual(t, len(b.entries[i].places), 1)
	}
}

// A rank has another position in each snapshot. A rank that is excluded or set aside is
// found at its position in the request's own list.
func TestWhoIsOutIsOutInEitherWorld(t *testing.T) {
	b := New(1)
	var ws []*worker.Worker
	for id := range worker.ID(4) {
		ws = append(ws, testWorker(t, id+1, worker.Prefill, 2, 8000))
	}
	old, now := snapshot(t, ws...), snapshot(t, ws[1:]...)
	b.Update(old)
	b.Update(now)
	for _, world := range []*worker.Snapshot{old, now} {
		req := prefillRequest(world, 64, params())
		req.Filter, req.Explain = &denyList{2}, new(Explanation)
		req.Exclude = []worker.Rank{{ID: 4}}
		_, err := b.Preview(req)
		require.NoError(t, err)
		var left []worker.Rank
		for _, row := range req.Explain.Rows {
			left = append(left, row.Rank)
		}
		require.ElementsMatch(t, []worker.Rank{{ID: 3}, {ID: 3, DPRank: 1}, {ID: 4, DPRank: 1}}, left)
	}
}

func TestAListThatDoesNotChangeKeepsItsTable(t *testing.T) {
	world := func(capacity, decodePort int, more ...*worker.Worker) *worker.Snapshot {
		p, d := testWorker(t, 1, worker.Prefill, 2, 8000), testWorker(t, 2, worker.Decode, 1, decodePort)
		p.CapacityBlocks = uint64(capacity)
		return snapshot(t, append(more, p, d)...)
	}
	b := New(1)
	tables := func(s *worker.Snapshot) (prefill, decode *table) {
		b.Update(s)
		p := s.Pool(key)
		return b.tableLocked(p.PrefillRanks), b.tableLocked(p.DecodeRanks)
	}
	p1, d1 := tables(world(100, 8000))
	require.Equal(t, []float64{100, 100}, p1.cols.Capacity)
	p2, d2 := tables(world(50, 8000, testWorker(t, 3, worker.Decode, 1, 8000)))
	require.Same(t, p1, p2)
	require.NotSame(t, d1, d2)
	require.Equal(t, []float64{50, 50}, p2.cols.Capacity, "what is new of a worker is heard")
	_, d3 := tables(world(50, 8000))
	require.NotSame(t, d1, d3, "two rounds ago")
	_, d4 := tables(world(50, 8001))
	require.NotSame(t, d3, d4, "the same ranks at another address are others")
	require.Zero(t, d4.unknown.Count())
	require.Equal(t, 1, d3.unknown.Count())
}

// Models that the same workers serve share their columns. Other lists have their own, and
// a booking shows in every list that has the rank.
func TestModelsOfTheSameWorkersShareATable(t *testing.T) {
	ws := make([]*worker.Worker, 3)
	for i := range ws {
		ws[i] = testWorker(t, worker.ID(i+1), worker.Aggregated, 1, 8000)
		ws[i].Models = []string{"m", "adapter"}
	}
	ws[2].Models = append(ws[2].Models, "other")
	s := snapshot(t, ws...)
	b := New(1)
	b.Update(s)
	ranks := func(model string) []worker.Rank { return s.Pool(worker.Key{Model: model}).AggregatedRanks }
	require.Same(t, b.tables[&ranks("m")[0]], b.tables[&ranks("adapter")[0]])
	require.NotSame(t, b.tables[&ranks("m")[0]], b.tables[&ranks("other")[0]])
	req := &Request{Ranks: ranks("other"), Params: params(), Pick: picker.Request{Role: worker.Aggregated, ISLTokens: 160}}
	var r Reservation
	_, err := b.PickAndReserve(req, &r)
	require.NoError(t, err)
	for _, model := range []string{"m", "adapter", "other"} {
		require.EqualValues(t, 160, b.QueuedISLTokens(ranks(model), nil, later), model)
	}
	r.Release(later)
}
