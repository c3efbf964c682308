package hour

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// start has no monotonic reading: it is the clock of a wall, which may be set.
func start() time.Time { return time.Date(2025, 3, 9, 3, 0, 0, 0, time.UTC) }

// ok counts the requests of each span that ended well.
func ok(spans []Span) (n []int64) {
	for i := range spans {
		n = append(n, spans[i].Requests[slices.Index(Outcomes(), "ok")])
	}
	return n
}

func sum(n []int64) (s int64) {
	for _, x := range n {
		s += x
	}
	return s
}

func TestAnHourIsKeptInSteps(t *testing.T) {
	h := New(start())
	for i := range 400 {
		for range i%7 + 1 {
			h.Ended(start().Add(time.Duration(i)*Step), "ok")
		}
	}
	end := start().Add(400 * Step)
	spans := h.Spans(end, 1)
	require.Len(t, spans, Steps)
	for i, n := range ok(spans) {
		require.Equal(t, int64((40+i)%7+1), n, i)
		require.Equal(t, Step, spans[i].Known)
		require.Equal(t, start().Add(time.Duration(41+i)*Step), spans[i].End)
	}
	for _, width := range []int{1, 3, 30, 360} {
		wide := h.Spans(end, width)
		require.Len(t, wide, Steps/width)
		last := wide[len(wide)-1]
		require.Positive(t, last.Known)
		require.LessOrEqual(t, last.Known, time.Duration(width)*Step)
		require.Equal(t, end, last.End)
	}
	require.Len(t, h.Spans(end, 0), Steps)
	require.Len(t, h.Spans(end, 1e9), 1)
}

// Bounds of spans stay where they are as time goes on.
func TestSpansDoNotMove(t *testing.T) {
	h := New(start())
	h.Ended(start().Add(95*time.Second), "ok")
	var ends []time.Time
	for s := 100 * time.Second; s < 3*time.Minute; s += Step {
		for _, span := range h.Spans(start().Add(s), 3) {
			if sum(ok([]Span{span})) > 0 {
				ends = append(ends, span.End)
			}
		}
	}
	require.Equal(t, start().Add(100*time.Second), ends[0], "it is not over yet")
	require.Equal(t, start().Add(110*time.Second), ends[1])
	for _, e := range ends[2:] {
		require.Equal(t, start().Add(2*time.Minute), e)
	}
}

func TestOnlyStepsThatAreOverAndWereWatchedAreKnown(t *testing.T) {
	h := New(start())
	h.Ended(start(), "ok")
	require.Zero(t, sum(ok(h.Spans(start().Add(Step-1), 1))))
	spans := h.Spans(start().Add(25*time.Second), 1)
	require.Equal(t, []int64{1, 0}, ok(spans[Steps-2:]))
	require.Zero(t, spans[Steps-3].Known, "before the start")
	require.Equal(t, Step, spans[Steps-1].Known)
}

func TestEveryOutcomeHasItsPlace(t *testing.T) {
	h := New(start())
	for _, o := range append(Outcomes(), "of a later version") {
		h.Ended(start(), o)
	}
	got := h.Spans(start().Add(Step), 1)[Steps-1].Requests
	require.Equal(t, int64(2), got[0], "unfinished, and what is not listed")
	for _, n := range got[1:] {
		require.Equal(t, int64(1), n)
	}
	Outcomes()[1] = "x"
	require.Equal(t, "ok", Outcomes()[1])
}

func TestQuantilesAreOffByFivePercent(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 2, 3, 10, 99, 100, 101, 1000, 20000} {
		h := New(start())
		all := make([]float64, n)
		for i := range all {
			d := time.Duration(float64(200*time.Microsecond) * math.Exp(12*r.Float64())) // up to 33 s
			all[i] = d.Seconds()
			h.Took(start(), d, d/2)
		}
		slices.Sort(all)
		s := h.Spans(start().Add(Step), 1)[Steps-1]
		require.Equal(t, int64(n), s.FirstToken.Count)
		rank := func(q float64) float64 { return all[int(math.Ceil(q*float64(n)))-1] }
		require.InEpsilon(t, rank(0.50), s.FirstToken.P50.Seconds(), 0.05, n)
		require.InEpsilon(t, rank(0.99), s.FirstToken.P99.Seconds(), 0.05, n)
		require.InEpsilon(t, rank(0.50)/2, s.PerToken.P50.Seconds(), 0.05, n)
	}
}

func TestTimesOutsideTheBuckets(t *testing.T) {
	h := New(start())
	h.Took(start(), 0, -time.Second) // not known
	require.Zero(t, h.Spans(start().Add(Step), 1)[Steps-1].FirstToken)
	h.Took(start().Add(Step), 1, math.MaxInt64)
	s := h.Spans(start().Add(2*Step), 1)[Steps-1]
	require.InEpsilon(t, least.Seconds(), s.FirstToken.P50.Seconds(), 0.05)
	require.Greater(t, s.PerToken.P50, 17*time.Minute)
}

func TestPromptsAndLoads(t *testing.T) {
	h := New(start())
	h.Prompt(start(), Prompt{Asked: 100, Available: 60, Predicted: 50})
	h.Prompt(start(), Prompt{Asked: 200, Available: 100, Predicted: 90, Told: 200, Delivered: 80})
	h.Sample(start(), Sample{worker.Prefill, 4, 8, 0}, Sample{worker.Decode, 0, 0.5, 100}, Sample{Role: 77})
	h.Sample(start(), Sample{worker.Prefill, 1, 4, 0}, Sample{worker.Decode, 2, 1, 300})
	s := h.Spans(start().Add(Step), 1)[Steps-1]
	require.Equal(t, Prompt{300, 160, 140, 200, 80}, s.Prompt)
	require.Equal(t, Load{true, 3, 0}, s.Load[worker.Prefill])
	require.Equal(t, Load{true, 0.5, 200}, s.Load[worker.Decode])
	require.False(t, s.Load[worker.Aggregated].Known)
}

// A report that is late by seconds counts where it belongs; a clock that is set back or far
// forward neither stops the count nor counts anything twice.
func TestClocksThatJump(t *testing.T) {
	h := New(start())
	at := start()
	tell := func(n int, every time.Duration) {
		for range n {
			at = at.Add(every)
			h.Ended(at, "ok")
		}
	}
	tell(60, Step)
	h.Ended(at.Add(-30*time.Second), "ok")
	got := ok(h.Spans(at.Add(Step), 1))
	require.Equal(t, []int64{1, 2, 1, 1, 1}, got[Steps-5:])

	for _, back := range []time.Duration{2 * time.Minute, 30 * time.Minute, 59 * time.Minute, 61 * time.Minute, 50 * time.Hour} {
		before := sum(ok(h.Spans(at, 1)))
		at = at.Add(-back)
		tell(6, Step)
		got := ok(h.Spans(at.Add(Step), 1))
		require.Equal(t, []int64{1, 1, 1, 1, 1}, got[Steps-5:], "it goes on after %s", back)
		require.InDelta(t, min(before+6, 361), sum(got), 2, "after %s", back)
		require.WithinDuration(t, at.Add(Step), h.Spans(at.Add(Step), 1)[Steps-1].End, Step)
	}
	for _, on := range []time.Duration{20 * time.Minute, 61 * time.Minute, 1e6 * time.Hour, math.MaxInt64 - 1<<50} {
		at = at.Add(on)
		tell(6, Step)
		got := ok(h.Spans(at.Add(Step), 1))
		require.Equal(t, []int64{1, 1, 1, 1, 1}, got[Steps-5:], "it goes on after %s", on)
		if on > time.Hour {
			require.LessOrEqual(t, sum(got), int64(7), "what is older is gone")
		}
	}
	at = time.Time{} // and all the way back
	tell(400, Step)
	require.Equal(t, slices.Repeat([]int64{1}, Steps), ok(h.Spans(at.Add(Step), 1)))
}

// With a monotonic reading no change of the clock is seen at all.
func TestAClockThatIsSetIsNotSeen(t *testing.T) {
	now := time.Now()
	h := New(now)
	h.Ended(now.Add(15*time.Second), "ok")
	require.Equal(t, []int64{1, 0}, ok(h.Spans(now.Add(35*time.Second), 1))[Steps-2:])
}

func TestTheMemoryIsBounded(t *testing.T) {
	require.Less(t, unsafe.Sizeof(Hour{}), uintptr(600<<10))
	h := New(start())
	at := start()
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		at = at.Add(time.Second)
		h.Ended(at, "ok")
		h.Took(at, time.Second, time.Millisecond)
		h.Prompt(at, Prompt{Asked: 1})
	}))
}

func TestNobodyKeepsAnHour(t *testing.T) {
	var h *Hour
	h.Ended(start(), "ok")
	h.Took(start(), 1, 1)
	h.Prompt(start(), Prompt{})
	h.Sample(start(), Sample{})
	require.Nil(t, h.Spans(start(), 1))
}

func TestAllAtTheSameTime(t *testing.T) {
	h := New(start())
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := range 2000 {
				at := start().Add(time.Duration(i) * 20 * time.Millisecond)
				h.Ended(at, "ok")
				h.Took(at, time.Second, time.Second)
				if i%100 == 0 {
					h.Spans(at, 3)
				}
			}
		})
	}
	all.Wait()
	require.Equal(t, int64(16000), sum(ok(h.Spans(start().Add(time.Minute), 1))))
}

func BenchmarkHour(b *testing.B) {
	h := New(time.Now())
	for _, steps := range []int{1, 3} {
		b.Run(fmt.Sprintf("spans/%d", steps), func(b *testing.B) {
			for b.Loop() {
				h.Spans(time.Now(), steps)
			}
		})
	}
	b.Run("took", func(b *testing.B) {
		for b.Loop() {
			h.Took(time.Now(), 300*time.Millisecond, 20*time.Millisecond)
		}
	})
}
