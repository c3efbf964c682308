package load

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// sharer is a rank that computes its oldest prompts at once, so many, in equal shares of its time. Beside
// it the test has the book.
type sharer struct {
	t      *testing.T
	b      *Book
	key    worker.Rank
	ranks  []worker.Rank
	atOnce int
	pace   picker.Pace
	now    time.Time
	jobs   []*sharedJob
	ended  func(*sharedJob)
}

type sharedJob struct {
	r      *Reservation
	tokens int
	left   float64 // seconds
}

func newSharer(t *testing.T, atOnce int) *sharer {
	snap := fleet(t, 1, 1)
	s := &sharer{t: t, b: New(1), ranks: snap.Pool(key).PrefillRanks, atOnce: atOnce, pace: picker.Pace{PerToken: 1.0 / 8000, PerRequest: 0.02}, now: time.Unix(1000, 0)}
	s.key = s.ranks[0]
	s.b.Update(snap)
	s.b.SetPace(s.key, s.pace)
	return s
}

func (s *sharer) send(tokens int) *sharedJob {
	p := picker.DefaultParamsFor(worker.Prefill)
	j := &sharedJob{r: new(Reservation), tokens: tokens, left: s.pace.PerToken*float64(tokens) + s.pace.PerRequest}
	_, err := s.b.PickAndReserve(&Request{
		Key: key, Ranks: s.ranks, Params: &p, Now: s.now,
		Pick: picker.Request{Role: worker.Prefill, ISLTokens: tokens, RequestBlocks: tokens / 16},
	}, j.r)
	require.NoError(s.t, err)
	s.jobs = append(s.jobs, j)
	return j
}

func (s *sharer) drop(i int) {
	s.jobs[i].r.Release(s.now)
	s.jobs = append(s.jobs[:i], s.jobs[i+1:]...)
}

// until lets the time pass.
func (s *sharer) until(then time.Time) {
	for len(s.jobs) > 0 {
		k := min(len(s.jobs), s.atOnce)
		next := 0
		for i := range k {
			if s.jobs[i].left < s.jobs[next].left {
				next = i
			}
		}
		step := min(s.jobs[next].left*float64(k), then.Sub(s.now).Seconds())
		for _, j := range s.jobs[:k] {
			j.left -= step / float64(k)
		}
		s.now = s.now.Add(time.Duration(step * float64(time.Second)))
		if s.jobs[next].left > 1e-9 {
			break
		}
		j := s.jobs[next]
		s.drop(next)
		if s.ended != nil {
			s.ended(j)
		}
	}
	s.now = then
}

func (s *sharer) left() (seconds float64) {
	for _, j := range s.jobs {
		seconds += j.left
	}
	return seconds
}

// TestARanksTimeIsSharedAmongWhatItComputesAtOnce: how many prompts that are is learned, so that what each
// took and until when the rank is busy are known, also where clients leave.
func TestARanksTimeIsSharedAmongWhatItComputesAtOnce(t *testing.T) {
	t.Parallel()
	for _, atOnce := range []int{1, 4, 16} {
		for _, leave := range []float64{0, 0.05} {
			t.Run(fmt.Sprintf("%d at once, %g leave", atOnce, leave), func(t *testing.T) {
				t.Parallel()
				s, rng := newSharer(t, atOnce), newRand(3)
				var off, work, waitOff, wait float64
				learned := false
				s.ended = func(j *sharedJob) {
					whole := s.pace.PerToken*float64(j.tokens) + s.pace.PerRequest
					if learned {
						off += math.Abs(j.r.Prompt(s.now).Spent.Seconds() - whole)
						work += whole
					}
				}
				for i := range 4000 {
					learned = i > 400
					s.send(int(800 * math.Exp(rng.NormFloat64())))
					s.until(s.now.Add(time.Duration(0.21 * rng.ExpFloat64() * float64(time.Second))))
					if n := len(s.jobs); n > 0 && rng.Float64() < leave {
						s.drop(rng.IntN(n))
					}
					if learned {
						waitOff += math.Abs(s.b.Wait(s.key, s.now) - s.left())
						wait += s.left()
					}
				}
				require.Less(t, off/work, 0.25, "of what prompts took")
				require.Less(t, waitOff/wait, 0.2, "of the time until the rank is free")
				t.Logf("off by %.1f %% and %.1f %%", 100*off/work, 100*waitOff/wait)
			})
		}
	}
}

// TestAWaitIsFinite: whatever paces are told, and however long nothing ends.
func TestAWaitIsFinite(t *testing.T) {
	s := newSharer(t, 1)
	for _, p := range []picker.Pace{{}, {PerToken: -1}, {PerToken: math.NaN()}, {PerToken: math.Inf(1)}, {PerToken: 2}, {PerRequest: 1e9}} {
		s.b.SetPace(s.key, p)
	}
	s.send(1_000_000)
	s.send(8000)
	require.InDelta(t, 126.04, s.b.Wait(s.key, s.now), 0.01, "none of these was taken")
	require.InDelta(t, 116.04, s.b.Wait(s.key, s.now.Add(10*time.Second)), 0.01)
	require.InDelta(t, 1.02, s.b.Wait(s.key, s.now.Add(time.Hour)), 0.01, "what waits is not done while the oldest is not")
	require.Zero(t, s.b.Wait(worker.Rank{ID: 99}, s.now))
	s.drop(0)
	s.drop(0)
	require.Zero(t, s.b.Wait(s.key, s.now))
}

// decodePick is a pick of decode, of a prompt of 1,600 tokens that worker 1 prefills.
func decodePick(t *testing.T, b *Book, s *worker.Snapshot) picker.Decision {
	t.Helper()
	p := picker.DecodeOverride(picker.DefaultParamsFor(worker.Decode))
	p.BlockSize = 16
	d, err := b.Preview(&Request{
		Key: key, Ranks: s.Pool(key).DecodeRanks, Params: &p, Now: later, From: worker.Rank{ID: 1},
		Pick: picker.Request{Role: worker.Decode, ISLTokens: 1600, RequestBlocks: 100, NewBlocks: 100}, Growth: Growth{PerSecond: 1, Most: 10},
	})
	require.NoError(t, err)
	return d
}

// TestDecodeIsPickedByWhatIsBelievedOfRanksAndPairs: who writes faster, and to whom the prompt comes sooner.
func TestDecodeIsPickedByWhatIsBelievedOfRanksAndPairs(t *testing.T) {
	s := snapshot(t, testWorker(t, 1, worker.Prefill, 1, 8001), testWorker(t, 2, worker.Decode, 1, 8002), testWorker(t, 3, worker.Decode, 1, 8003))
	b := New(1)
	b.Update(s)
	slow, fast := worker.Rank{ID: 2}, worker.Rank{ID: 3}
	b.SetWriting(slow, picker.Writing{Base: 0.04})
	b.SetWriting(fast, picker.Writing{Base: 0.02})
	require.Equal(t, fast, decodePick(t, b, s).Rank)
	for _, bad := range []picker.Writing{{Base: math.NaN()}, {Base: -1}, {}, {Base: 1e9}, {PerBlock: math.Inf(1)}} {
		b.SetWriting(slow, bad)
	}
	require.Equal(t, fast, decodePick(t, b, s).Rank)

	// The way to the fast one takes a second longer than others.
	far := HandOffs{Usual: picker.Pace{PerToken: 1e-5}, Far: map[worker.Rank][]FarHandOff{{ID: 1}: {{fast, picker.Pace{PerToken: 1e-5, PerRequest: 1}}, {To: worker.Rank{ID: 9}}}}}
	b.SetHandOffs(key, far)
	for range 2 {
		require.Equal(t, slow, decodePick(t, b, s).Rank)
	}
	b.SetHandOffs(key, HandOffs{Usual: far.Usual})
	require.Equal(t, fast, decodePick(t, b, s).Rank)
	b.SetHandOffs(key, far)
	b.Update(nil)
	require.Empty(t, b.handOffs)
}

// TestWhatOthersSendIsWaitedFor: an engine's page tells of prompts that the book does not know, which keep the
// rank busy as well. They pass with time, and a rank that is never picked is not believed for ever.
func TestWhatOthersSendIsWaitedFor(t *testing.T) {
	s := fleet(t, 2, 1)
	b := New(1)
	b.Update(s)
	first, second := worker.Rank{ID: 1}, worker.Rank{ID: 2}
	for _, r := range []worker.Rank{first, second} {
		b.SetPace(r, picker.Pace{PerToken: 0.001})
	}
	now := later
	b.ReportQueue(first, 5, now) // 5 of 1,000 tokens
	require.InDelta(t, 5, b.Wait(first, now), 1e-9)
	require.InDelta(t, 3, b.Wait(first, now.Add(2*time.Second)), 1e-9)
	now = now.Add(time.Minute)
	require.Zero(t, b.Wait(first, now))

	p := picker.DefaultParamsFor(worker.Prefill)
	p.BlockSize = 16
	var r Reservation
	pick := func() worker.Rank {
		req := prefillRequest(s, 500, &p)
		req.Now = now
		d, err := b.PickAndReserve(req, &r)
		require.NoError(t, err)
		return d.Rank
	}
	require.Equal(t, second, pick())
	require.InDelta(t, 0.5, b.Wait(second, now), 1e-9)
	b.ReportQueue(second, 1, now)
	require.InDelta(t, 0.5, b.Wait(second, now), 1e-9, "it is the book's own")
	b.ReportQueue(second, 1, now.Add(300*time.Millisecond))
	require.InDelta(t, 0.1, b.Wait(second, now.Add(400*time.Millisecond)), 1e-9, "a report that says nothing new changes nothing")
	b.ReportQueue(second, 3, now.Add(400*time.Millisecond))
	require.InDelta(t, 1.1, b.Wait(second, now.Add(400*time.Millisecond)), 1e-9, "two more like those that have come")
	// A prompt that comes in addition makes the wait longer by itself, whatever others' work is there.
	b.ReportQueue(second, 3, now)
	before := b.Wait(second, now.Add(500*time.Millisecond))
	var another Reservation
	req := prefillRequest(s, 300, &p)
	req.Now, req.Exclude = now.Add(500*time.Millisecond), []worker.Rank{first}
	_, err := b.PickAndReserve(req, &another)
	require.NoError(t, err)
	require.InDelta(t, before+0.3, b.Wait(second, req.Now), 1e-9)
	another.Release(req.Now)
	r.Release(req.Now)
	now = req.Now

	// The first one says again and again that it has a million: 60 reports later half a second is believed.
	start := now
	for after := 2 * time.Second; ; after += 2 * time.Second {
		require.LessOrEqual(t, after, 2*time.Minute)
		now = start.Add(after)
		b.ReportQueue(first, 1e6, now)
		b.ReportQueue(second, -1, now)
		require.LessOrEqual(t, b.Wait(first, now), 30.0)
		if at := pick(); at == first {
			break
		}
		for range 2 { // the other has half a second of work for each second
			now = now.Add(time.Second)
			r.Release(now)
			if at := pick(); at == first {
				return
			}
		}
		r.Release(now)
	}
}

// TestOfTenThousandWorkersHalfUnknownEachIsPicked: one after the other while all are idle, and the cost is finite
// for a prompt of a million tokens, too. A fleet that was restarted whole is like one that is new.
func TestOfTenThousandWorkersHalfUnknownEachIsPicked(t *testing.T) {
	const n = 10_000
	s := fleet(t, n, 1)
	b := New(1)
	b.Update(s)
	for i := range n / 2 {
		b.SetPace(worker.Rank{ID: worker.ID(i + 1)}, picker.Unlearned())
	}
	p := picker.DefaultParamsFor(worker.Prefill)
	for round, picks := range []int{n, 100} {
		picked := map[worker.Rank]int{}
		for i := range picks {
			req := prefillRequest(s, 1_000_000, &p)
			req.Now = later.Add(time.Duration(round*n+i) * time.Second)
			var r Reservation
			d, err := b.PickAndReserve(req, &r)
			require.NoError(t, err)
			require.InDelta(t, 100, d.Cost, 200)
			r.Release(req.Now.Add(time.Millisecond))
			picked[d.Rank]++
		}
		require.Len(t, picked, picks, "each once")
		b.Update(nil)
		b.Update(s)
	}
}

// Requests for adapters are work for the ranks of their base model: what comes is the same by
// whichever names, and is shared by all ranks of the model, also those without the adapter.
func TestWhatComesIsCountedForTheModelAndNotForEachName(t *testing.T) {
	var ws []*worker.Worker
	for id := worker.ID(1); id <= 4; id++ {
		ws = append(ws, testWorker(t, id, worker.Prefill, 1, 8000))
	}
	ws[0].Models, ws[0].Adapters = []string{"a", "m", "b"}, []string{"a", "b"}
	s := snapshot(t, ws...)
	p := picker.DefaultParamsFor(worker.Prefill)
	flow := func(names ...string) (last picker.Flow) {
		b := New(1)
		b.Update(s)
		for i, name := range names {
			var r Reservation
			req := prefillRequest(s, 1000, &p)
			req.Key.Model, req.Now = name, later.Add(time.Duration(i)*time.Second)
			req.Ranks = s.Pool(req.Key).PrefillRanks
			_, err := b.PickAndReserve(req, &r)
			require.NoError(t, err)
			last = req.Pick.Flow
		}
		return last
	}
	want := flow("m", "m", "m", "m")
	require.Positive(t, want.Busy)
	require.InDelta(t, want.Arrivals, flow("a", "b", "a", "m").Arrivals, 1e-9)
	require.InDelta(t, want.Busy, flow("m", "a", "a", "b").Busy, 1e-9, "the adapter is on one rank of four")
}
