package load

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// fetchers are five decode ranks that fetch the blocks that they lack and keep them.
type fetchers struct {
	t     *testing.T
	b     *Book
	snap  *worker.Snapshot
	p     picker.Params
	holds map[worker.Rank]map[int]bool // blocks by name
	got   map[worker.Rank]int
	moved int // blocks fetched
}

func newFetchers(t *testing.T, seed uint64, fetchCost float64) *fetchers {
	f := &fetchers{t: t, b: New(seed), p: *params(), holds: map[worker.Rank]map[int]bool{}, got: map[worker.Rank]int{}}
	f.p = picker.DecodeOverride(f.p)
	f.p.FetchCost = fetchCost
	var ws []*worker.Worker
	for i := range 5 {
		ws = append(ws, testWorker(t, worker.ID(i+1), worker.Decode, 1, 8000))
	}
	f.snap = snapshot(t, ws...)
	f.b.Update(f.snap)
	for _, r := range f.snap.Pool(key).DecodeRanks {
		f.holds[r] = map[int]bool{}
	}
	return f
}

// serve makes a pick for a prompt and lets the rank fetch the blocks that it lacks.
func (f *fetchers) serve(prompt []int) *Reservation {
	req := &Request{
		Key: key, Ranks: f.snap.Pool(key).DecodeRanks, Params: &f.p, Now: later,
		Pick: picker.Request{
			Role: worker.Decode, ISLTokens: 16 * len(prompt), RequestBlocks: len(prompt), NewBlocks: len(prompt), FetchesLacking: true,
		},
	}
	held := func(r worker.Rank) (n uint32) {
		for int(n) < len(prompt) && f.holds[r][prompt[n]] {
			n++
		}
		return n
	}
	for _, r := range req.Ranks {
		req.Overlap = append(req.Overlap, held(r))
	}
	into := new(Reservation)
	d, err := f.b.PickAndReserve(req, into)
	require.NoError(f.t, err)
	f.moved += len(prompt) - int(held(d.Rank))
	for _, block := range prompt {
		f.holds[d.Rank][block] = true
	}
	f.got[d.Rank]++
	return into
}

// The prompts of one burst begin with the same blocks. The rank that fetches these first
// must not get all later requests, however few run at a time.
func TestOfFiveDecodeRanksNoneGetsLessThanHalfItsShareOf256Requests(t *testing.T) {
	for _, inFlight := range []int{1, 2, 4, 8, 64, 256} {
		for seed := uint64(1); seed <= 20; seed++ {
			f := newFetchers(t, seed, 1)
			var running []*Reservation
			for i := range 256 {
				prompt := make([]int, 0, 60)
				for b := range 56 {
					prompt = append(prompt, b)
				}
				running = append(running, f.serve(append(prompt, 1000+4*i, 1001+4*i, 1002+4*i, 1003+4*i)))
				if len(running) == inFlight {
					running[0].Release(later)
					running = running[1:]
				}
			}
			for r := range f.holds {
				require.GreaterOrEqual(t, f.got[r], 26, "%d in flight, seed %d: rank %s of %v", inFlight, seed, r, f.got)
			}
		}
	}
}

// A rank with long running answers gets no more of them, even if it has got no request
// for long. After they end it has the same chance as the others.
func TestWhoIsStarvedIsNotOverrun(t *testing.T) {
	f := newFetchers(t, 1, 1)
	first := f.snap.Pool(key).DecodeRanks[0]
	var long Reservation
	req := &Request{Params: &f.p, Now: later, Pick: picker.Request{Role: worker.Decode, ISLTokens: 80_000}}
	require.NoError(t, f.b.Reserve(req, first, 0, &long))
	for i := range 256 {
		f.serve([]int{1, 2, 3, 4, 100 + i}).Release(later)
	}
	require.Zero(t, f.got[first], "it is starved, and busier than a prompt is worth")
	long.Release(later)
	for i := range 64 {
		f.serve([]int{1, 2, 3, 4, 400 + i}).Release(later)
	}
	require.InDelta(t, 64/5, f.got[first], 8, "%v", f.got)
}

// A conversation comes back to the rank that decoded it. Fewer blocks must be moved, and
// the load is less even.
func TestConversationsAreDecodedWhereTheirBlocksAre(t *testing.T) {
	moved, busiest := map[float64]float64{}, map[float64]float64{}
	for _, cost := range []float64{0, 1, 2, 4} {
		f := newFetchers(t, 1, cost)
		rng, all := newRand(1), 0
		chats := make([][]int, 50)
		var running []*Reservation
		for turn := range 3000 {
			c := rng.IntN(len(chats))
			if len(chats[c]) > 200 {
				chats[c] = nil // another conversation begins
			}
			for range 4 + rng.IntN(8) { // blocks of a question and its answer
				chats[c] = append(chats[c], 1000*turn+len(chats[c]))
			}
			all += len(chats[c])
			running = append(running, f.serve(chats[c]))
			if len(running) > 12 {
				k := rng.IntN(len(running))
				running[k].Release(later)
				running = slices.Delete(running, k, k+1)
			}
			most, sum := int64(0), int64(0)
			for _, l := range f.b.Loads(nil) {
				most, sum = max(most, l.DecodeBlocks), sum+l.DecodeBlocks
			}
			busiest[cost] += 5 * float64(most) / float64(sum) / 3000
		}
		moved[cost] = float64(f.moved) / float64(all)
		for r, n := range f.got {
			require.Greater(t, n, 3000/5/2, "cost %v: rank %s of %v", cost, r, f.got)
		}
		t.Logf("fetch cost %v: %.3f of all blocks moved, busiest rank %.2f of the mean", cost, moved[cost], busiest[cost])
	}
	require.Less(t, moved[1], 0.9*moved[0])
	require.Less(t, moved[2], 0.75*moved[0])
	require.Less(t, busiest[1], 1.05*busiest[0])
}
