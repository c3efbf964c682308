package load

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// The blocks that a rank is assumed to hold are the sum over its answers, whatever was
// booked, moved, released and dropped before.
func TestWhatARankHoldsIsTheSumOfItsAnswers(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d (-seed to repeat)", seed)
	rng, b, now := newRand(seed), New(seed), time.Unix(1000, 0)
	world := func() *worker.Snapshot {
		ws := []*worker.Worker{testWorker(t, 1, worker.Decode, 2, 8000)}
		if rng.IntN(2) == 0 {
			ws = append(ws, testWorker(t, 2, worker.Decode, 2, 8000+rng.IntN(2)))
		}
		s := snapshot(t, ws...)
		b.Update(s)
		return s
	}
	type answer struct {
		r      *Reservation
		growth Growth
		at     time.Time
		blocks int64
	}
	var held []answer
	p, s := picker.DecodeOverride(*params()), world()
	want := func(r worker.Rank) float64 {
		sum := 0.0
		for _, a := range held {
			if a.r.Rank() == r && b.entryLocked(a.r) != nil {
				grown := a.growth.PerSecond * (now.Sub(a.at) - a.growth.After).Seconds()
				sum += float64(a.blocks) + float64(max(a.growth.Choices, 1))*max(0, min(grown, a.growth.Most))
			}
		}
		return sum
	}
	for range 5000 {
		now = now.Add(time.Duration(rng.IntN(300)) * time.Millisecond)
		ranks := s.Pool(key).DecodeRanks
		switch rng.IntN(10) {
		case 0:
			s = world()
		case 1, 2, 3, 4:
			isl := 16 * rng.IntN(20)
			a := answer{new(Reservation), Growth{time.Duration(rng.IntN(3000)) * time.Millisecond, 5 * rng.Float64(), 50 * rng.Float64(), rng.IntN(4)}, now, int64(isl / 16)}
			req := &Request{
				Key: key, Ranks: ranks, Params: &p, Now: now, Growth: a.growth,
				Pick: picker.Request{Role: worker.Decode, ISLTokens: isl},
			}
			_, err := b.PickAndReserve(req, a.r)
			require.NoError(t, err)
			held = append(held, a)
		case 5:
			if len(held) > 0 {
				require.NoError(t, held[rng.IntN(len(held))].r.Move(ranks[rng.IntN(len(ranks))], now))
			}
		default:
			if len(held) > 0 {
				i := rng.IntN(len(held))
				held[i].r.Release(now)
				held = slices.Delete(held, i, i+1)
			}
		}
		for _, r := range s.Pool(key).DecodeRanks {
			got, known := b.DecodingBlocks(r, now)
			require.True(t, known)
			require.InDelta(t, want(r), got, 0.51, r)
		}
	}
	for _, a := range held {
		a.r.Release(now)
	}
	require.Empty(t, b.turns)
	for i := range b.entries {
		x := &b.entries[i].answers
		require.Equal(t, answers{done: x.done}, *x)
	}
}

// A pick sees an answer's growth, and allocates nothing for it.
func TestPicksSeeAnswersGrow(t *testing.T) {
	s := snapshot(t, testWorker(t, 1, worker.Decode, 1, 8000), testWorker(t, 2, worker.Decode, 1, 8000))
	b, p, now := New(1), picker.DecodeOverride(*params()), time.Unix(1000, 0)
	b.Update(s)
	req := &Request{
		Key: key, Ranks: s.Pool(key).DecodeRanks, Params: &p, Now: now,
		Pick: picker.Request{Role: worker.Decode, ISLTokens: 160, NewBlocks: 10}, Growth: Growth{PerSecond: 4, Most: 1000},
	}
	var one, two Reservation
	d, err := b.PickAndReserve(req, &one)
	require.NoError(t, err)
	req.Pick.ISLTokens, req.Growth = 16*20, Growth{}
	_, err = b.PickAndReserve(req, &two)
	require.NoError(t, err)
	require.NotEqual(t, d.Rank, two.Rank())
	other := two.Rank()
	req.Now = now.Add(2 * time.Second)
	got, err := b.Preview(req)
	require.NoError(t, err)
	require.Equal(t, d.Rank, got.Rank, "18 blocks before 20")
	req.Now = now.Add(3 * time.Second)
	got, err = b.Preview(req)
	require.NoError(t, err)
	require.Equal(t, other, got.Rank, "22 blocks after 20")

	req.Growth = Growth{After: time.Second, PerSecond: 4, Most: 8}
	var third Reservation
	require.Zero(t, testing.AllocsPerRun(200, func() {
		req.Now = req.Now.Add(100 * time.Millisecond)
		_, _ = b.PickAndReserve(req, &third)
		_, _ = b.Report(d.Rank, Report{Blocks: 30, Requests: 1}, req.Now)
		third.Release(req.Now)
	}))
	one.Release(req.Now)
	two.Release(req.Now)
}
