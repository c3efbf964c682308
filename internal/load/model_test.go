package load

import (
	"flag"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

var seedFlag = flag.Uint64("seed", 0, "seed of the model test; 0: random") //nolint:gochecknoglobals // test flag

// slowBook is the slow twin of a Book: it has every held booking, and sums them when
// asked.
type slowBook struct {
	snap *worker.Snapshot
	past *worker.Snapshot // the previous snapshot: some requests have read that one
	open map[*Reservation]booking
	held []*Reservation // the keys of open, in an order that a seed repeats

	now time.Time
}

type booking struct {
	rank worker.Rank
	load Load
	gone bool
}

func (b *slowBook) load(r worker.Rank) (l Load) {
	for _, k := range b.open {
		if k.rank == r && !k.gone {
			l.add(&k.load, 1)
		}
	}
	return l
}

func TestTheBookAgreesWithItsSlowTwin(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d (-seed to repeat)", seed)
	rng := newRand(seed)
	b, twin := New(seed), &slowBook{open: map[*Reservation]booking{}, now: time.Unix(1000, 0)}
	random := func() *worker.Snapshot {
		var ws []*worker.Worker
		for id := range worker.ID(5) {
			if rng.IntN(3) > 0 {
				ws = append(ws, testWorker(t, id+1, worker.Role(1+rng.IntN(3)), uint32(1+rng.IntN(3)), 8000+rng.IntN(2)))
			}
		}
		return snapshot(t, ws...)
	}
	twin.update(b, random())
	for step := range 20000 {
		if rng.IntN(3) == 0 {
			twin.now = twin.now.Add(time.Duration(1+rng.IntN(4)) * 5 * time.Millisecond)
		}
		switch rng.IntN(12) {
		case 0:
			if rng.IntN(10) == 0 {
				twin.update(b, random())
			}
		case 1, 2, 3, 4, 5:
			twin.pick(t, b, rng)
		case 6, 7:
			if len(twin.held) > 0 {
				n, r := int64(rng.IntN(40)), twin.held[rng.IntN(len(twin.held))]
				k := twin.open[r]
				r.PrefillDone(n, twin.now)
				k.load.PrefillTokens = max(0, k.load.PrefillTokens-n)
				twin.open[r] = k
			}
		case 8:
			twin.move(t, rng)
		default:
			if len(twin.held) > 0 {
				i := rng.IntN(len(twin.held))
				twin.held[i].Release(twin.now)
				delete(twin.open, twin.held[i])
				twin.held = slices.Delete(twin.held, i, i+1)
			}
		}
		if step%4 == 0 {
			twin.compare(t, b)
		}
	}
	for _, r := range twin.held {
		r.Release(later)
	}
	got := b.Totals()
	got.LateReleases = 0
	require.Equal(t, Totals{}, got)
}

// move moves a booking to any rank of the present snapshot.
func (b *slowBook) move(t *testing.T, rng *rand.Rand) {
	pool := b.snap.Pool(key)
	if len(b.held) == 0 || pool == nil {
		return
	}
	to := pool.Ranks(worker.Role(1 + rng.IntN(3)))
	if len(to) == 0 {
		return
	}
	r, rank := b.held[rng.IntN(len(b.held))], to[rng.IntN(len(to))]
	require.NoError(t, r.Move(rank, b.now))
	require.Equal(t, rank, r.Rank())
	k := b.open[r]
	k.rank, k.gone = rank, false
	b.open[r] = k
}

func (b *slowBook) update(fast *Book, s *worker.Snapshot) {
	for r, k := range b.open {
		if k.gone {
			continue
		}
		was, is := b.snap.Worker(k.rank.ID), s.Worker(k.rank.ID)
		if is == nil || is.Endpoint != was.Endpoint || uint32(k.rank.DPRank) >= is.DPSize {
			k.gone = true
			b.open[r] = k
		}
	}
	b.past, b.snap = b.snap, s
	fast.Update(s)
}

// known reports whether a rank of a snapshot can be booked now.
func (b *slowBook) known(world *worker.Snapshot, r worker.Rank) bool {
	was, is := world.Worker(r.ID), b.snap.Worker(r.ID)
	return is != nil && is.Endpoint == was.Endpoint && uint32(r.DPRank) < is.DPSize
}

func (b *slowBook) pick(t *testing.T, fast *Book, rng *rand.Rand) {
	p := params()
	p.Mode = picker.Mode(rng.IntN(5))
	role := worker.Role(1 + rng.IntN(3))
	world := b.snap
	if b.past != nil && rng.IntN(3) == 0 {
		world = b.past
	}
	pool := world.Pool(key)
	if pool == nil {
		return
	}
	req := &Request{Key: key, Ranks: pool.Ranks(role), Params: p, Now: b.now, Pick: picker.Request{Role: role, ISLTokens: rng.IntN(200)}}
	for range req.Ranks {
		req.Overlap = append(req.Overlap, uint32(rng.IntN(6)))
	}
	r := new(Reservation)
	d, err := fast.PickAndReserve(req, r)
	if !slices.ContainsFunc(req.Ranks, func(r worker.Rank) bool { return b.known(world, r) }) {
		require.ErrorIs(t, err, picker.ErrNoCandidate)
		return
	}
	require.NoError(t, err)
	require.Equal(t, req.Ranks[d.Index], d.Rank)
	require.True(t, b.known(world, d.Rank))
	isl := int64(req.Pick.ISLTokens)
	uncached, blocks := max(0, isl-16*int64(req.Overlap[d.Index])), (isl+15)/16
	want := map[worker.Role]Load{
		worker.Prefill:    {PrefillTokens: uncached, PrefillBlocks: blocks, PrefillRequests: 1},
		worker.Decode:     {DecodeBlocks: blocks, DecodeRequests: 1},
		worker.Aggregated: {PrefillTokens: uncached, DecodeBlocks: blocks, DecodeRequests: 1},
	}[role]
	b.open[r], b.held = booking{rank: d.Rank, load: want}, append(b.held, r)
}

func (b *slowBook) compare(t *testing.T, fast *Book) {
	n := 0
	for _, w := range b.snap.Workers() {
		for dp := range w.DPSize {
			r := worker.Rank{ID: w.ID, DPRank: worker.DPRank(dp)}
			got, ok := fast.Load(r)
			require.True(t, ok, r)
			require.Equal(t, b.load(r), got, r)
			n++
		}
	}
	require.Len(t, fast.Loads(nil), n)
	require.Equal(t, len(b.open), fast.Totals().Held)
	b.compareColumns(t, fast, b.snap)
	if b.past != nil {
		b.compareColumns(t, fast, b.past)
	}
}

// compareColumns compares what the next pick in a snapshot would see with the bookings.
func (b *slowBook) compareColumns(t *testing.T, fast *Book, world *worker.Snapshot) {
	pool := world.Pool(key)
	if pool == nil {
		return
	}
	for role := worker.Prefill; role <= worker.Aggregated; role++ {
		x := new(Explanation)
		req := &Request{Key: key, Ranks: pool.Ranks(role), Params: params(), Now: b.now, Explain: x}
		known := 0
		for _, r := range req.Ranks {
			if b.known(world, r) {
				known++
			}
		}
		_, err := fast.Preview(req)
		require.Equal(t, known == 0, err != nil)
		require.Len(t, x.Rows, known)
		for _, row := range x.Rows {
			l := b.load(row.Rank)
			require.Equal(t, l.PrefillTokens, row.ActivePrefillTokens, "%s at %s", row.Rank, b.now)
			require.Equal(t, l.DecodeBlocks, row.ActiveDecodeBlocks)
			require.Equal(t, l.PrefillRequests+l.DecodeRequests, row.ActiveRequests)
		}
	}
}
