package load

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/outlen"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// silentRun is a run in which no answer says how long it was, and no engine reports.
type silentRun struct {
	pace   float64 // tokens a second of each answer
	events bool    // ranks announce each block when it is full
}

// answering is one request of a client.
type answering struct {
	r             *Reservation
	from          time.Time // time of the first token
	prompt, total int       // tokens
	told          int       // blocks announced
	began         time.Time
}

func (a *answering) written(now time.Time, pace float64) int {
	if now.Before(a.from) {
		return 0
	}
	return min(a.total, 1+int(now.Sub(a.from).Seconds()*pace))
}

// off plays three minutes of 32 clients on four decode ranks. It returns the mean
// difference between what the book assumes a rank to hold and what the rank holds, as a
// share.
func (x silentRun) off(t *testing.T) float64 {
	const page = 16
	rng, now := newRand(7), time.Unix(1000, 0)
	b, lately := New(7), new(outlen.Lately)
	s := snapshot(t, testWorker(t, 1, worker.Decode, 1, 8000), testWorker(t, 2, worker.Decode, 1, 8001),
		testWorker(t, 3, worker.Decode, 1, 8002), testWorker(t, 4, worker.Decode, 1, 8003))
	b.Update(s)
	ranks, p := s.Pool(key).DecodeRanks, picker.DecodeOverride(*params())
	clients := make([]*answering, 32)
	ask := func() *answering {
		a := &answering{r: new(Reservation), began: now, prompt: 16 + rng.IntN(200), total: int(100 * math.Exp(rng.Float64()*math.Log(9)))}
		a.from = now.Add(200 * time.Millisecond)
		e := lately.Expect(key, int64(a.total))
		_, err := b.PickAndReserve(&Request{
			Key: key, Ranks: ranks, Params: &p, Now: now,
			Pick:   picker.Request{Role: worker.Decode, ISLTokens: a.prompt, NewBlocks: a.prompt / page},
			Growth: Growth{After: e.First, PerSecond: e.PerSecond / page, Most: float64(e.Tokens) / page},
		}, a.r)
		require.NoError(t, err)
		lately.Booked(key)
		return a
	}
	blocks := func(a *answering) int { return (a.prompt + a.written(now, x.pace)) / page } // full blocks
	sum, samples := 0.0, 0
	for tick := range 1800 {
		now = now.Add(100 * time.Millisecond)
		full := map[worker.Rank]int{}
		for i, a := range clients {
			if a == nil {
				clients[i] = ask()
				clients[i].told = clients[i].prompt / page
				continue
			}
			full[a.r.Rank()] += blocks(a) - a.told
			if a.told = blocks(a); a.written(now, x.pace) == a.total {
				lately.Heard(key, outlen.Answer{MaxTokens: int64(a.total), First: a.from.Sub(a.began), Whole: now.Sub(a.began)})
				a.r.Release(now)
				clients[i] = nil
			}
		}
		for _, r := range ranks {
			if n := full[r]; n > 0 && x.events {
				if w, compared := b.Wrote(r, n, true, now); compared {
					lately.Wrote(key, w.Blocks*page, w.Seconds)
				}
			}
		}
		if tick%10 != 9 {
			continue
		}
		for _, r := range ranks {
			own := 0
			for _, a := range clients {
				if a != nil && a.r.Rank() == r {
					own += (a.prompt + a.written(now, x.pace) + page - 1) / page
				}
			}
			if held, _ := b.DecodingBlocks(r, now); own > 0 || held > 0 {
				sum += math.Abs(float64(held)-float64(own)) / max(float64(held), float64(own))
				samples++
			}
		}
	}
	return sum / float64(samples)
}

// Answers write three times as fast as expected, or a third as fast, and do not say how
// long they were. KV events show their speed.
func TestKVEventsTellWhatRanksHold(t *testing.T) {
	t.Parallel()
	for _, pace := range []float64{10, 30, 90} {
		without, with := silentRun{pace, false}.off(t), silentRun{pace, true}.off(t)
		t.Logf("%.0f tokens a second: what is booked is %.1f %% off without events, and %.1f %% with them", pace, 100*without, 100*with)
		require.LessOrEqual(t, with, 0.15, "%.0f tokens a second", pace)
		require.True(t, pace == 30 || without > 2*with, "%.0f tokens a second is not what is taken for granted", pace)
	}
}

// The choices of an answer are written at the same time. The pace is that of a single
// choice.
func TestAnAnswerOfSeveralChoicesTellsThePaceOfOne(t *testing.T) {
	t.Parallel()
	for _, choices := range []int{0, 1, 4} {
		b, lately, now := New(1), new(outlen.Lately), time.Unix(1000, 0)
		s := snapshot(t, testWorker(t, 1, worker.Decode, 1, 8000))
		b.Update(s)
		ranks, p := s.Pool(key).DecodeRanks, picker.DecodeOverride(*params())
		lately.Booked(key)
		r := new(Reservation)
		_, err := b.PickAndReserve(&Request{
			Key: key, Ranks: ranks, Params: &p, Now: now, Pick: picker.Request{Role: worker.Decode, ISLTokens: 16},
			Growth: Growth{PerSecond: 1, Most: 1000, Choices: choices},
		}, r)
		require.NoError(t, err)
		each := 5 // blocks a second of each choice
		for range 10 {
			now = now.Add(time.Second)
			w, compared := b.Wrote(ranks[0], each*max(choices, 1), true, now)
			if compared {
				require.InDelta(t, each, w.Blocks/w.Seconds, 1e-9)
				lately.Wrote(key, w.Blocks*16, w.Seconds)
			}
		}
		require.InDelta(t, 16*each, lately.Expect(key, outlen.NotSaid).PerSecond, 1e-9, "%d choices", choices)
		held, _ := b.DecodingBlocks(ranks[0], now)
		require.InDelta(t, 10*each*max(choices, 1), held, 0.2*float64(held), "%d choices", choices)
		r.Release(now)
	}
}

// A correction stays through a replay, whose blocks do not count. After a silence it is
// gone.
func TestACorrectionHoldsThroughAReplayAndNotThroughASilence(t *testing.T) {
	t.Parallel()
	b, now := New(1), time.Unix(1000, 0)
	s := snapshot(t, testWorker(t, 1, worker.Decode, 1, 8000))
	b.Update(s)
	ranks, p, r := s.Pool(key).DecodeRanks, picker.DecodeOverride(*params()), new(Reservation)
	began := now
	req := &Request{
		Key: key, Ranks: ranks, Params: &p, Now: now, Pick: picker.Request{Role: worker.Decode, ISLTokens: 16},
		Growth: Growth{PerSecond: 1, Most: 1000},
	}
	_, err := b.PickAndReserve(req, r)
	require.NoError(t, err)
	holds := func() float64 {
		t.Helper()
		held, _ := b.DecodingBlocks(ranks[0], now)
		req.Now = now
		_, err := b.Preview(req)
		require.NoError(t, err)
		require.InDelta(t, held, b.tableLocked(ranks).cols.Decode[0], 2, "what a pick sees")
		return float64(held)
	}
	wrote := func(after time.Duration, blocks int, live bool) (compared bool) {
		now = now.Add(after)
		_, compared = b.Wrote(ranks[0], blocks, live, now)
		return compared
	}
	for range 6 {
		wrote(time.Second, 20, true)
	}
	off := holds() - now.Sub(began).Seconds() - 1
	require.Greater(t, off, 80.0)
	before := holds()
	require.False(t, wrote(100*time.Millisecond, 5000, false))
	require.InDelta(t, before, holds(), 2)
	require.False(t, wrote(100*time.Millisecond, 5000, true), "what came with it may be of before")
	require.False(t, wrote(100*time.Millisecond, 2, true))
	require.InDelta(t, before, holds(), 2)
	require.True(t, wrote(time.Second, 18, true))
	require.InDelta(t, before+20, holds(), 6)

	now = now.Add(time.Minute)
	booked := now.Sub(began).Seconds() + 1
	require.InDelta(t, booked, holds(), 1, "events have ceased")
	require.False(t, wrote(0, 1, true))
	require.InDelta(t, booked, holds(), 1, "what was off a minute ago is not off now")
	r.Release(now)
}
