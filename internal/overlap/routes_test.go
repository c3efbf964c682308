package overlap

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// pass lets time go by.
func pass(d time.Duration) { <-time.After(d) }

// swept counts how often the index was told to forget.
type swept struct {
	kvindex.Index
	times int
}

func (s *swept) Expire(now time.Time) time.Time {
	s.times++
	return s.Index.Expire(now)
}

func TestWhatWasRoutedIsForgottenInTimeAndNothingWakesInBetween(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slots := kvindex.NewSlots()
		tree, err := kvindex.NewTree(kvindex.TreeConfig{MaxBytes: 1 << 20, NoHugePages: true}, slots)
		require.NoError(t, err)
		index := &swept{Index: tree}
		routes := NewRoutes(index)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- routes.Run(ctx) }()
		a, b := worker.Rank{ID: 1}, worker.Rank{ID: 2}
		held := func(r worker.Rank) uint32 {
			var o kvindex.Overlap
			index.Overlap([]kvindex.LocalHash{1, 2}, &o)
			s, ok := slots.Slot(r)
			require.True(t, ok)
			return slots.Held(s, &o).Routed
		}
		pass(time.Hour)
		synctest.Wait()
		require.Equal(t, 1, index.times, "nothing to forget, nothing to do")

		routes.Note(a, []kvindex.LocalHash{1, 2}, kvindex.Estimated, time.Now())
		pass(60 * time.Second)
		routes.Note(b, []kvindex.LocalHash{1}, kvindex.Predicted, time.Now()) // over before the first
		pass(10*time.Second + sweepEvery)
		synctest.Wait()
		require.Equal(t, uint32(2), held(a))
		require.Zero(t, held(b), "a prediction is over after 10 s")
		pass(50 * time.Second)
		synctest.Wait()
		require.Zero(t, held(a), "an estimate is over after 120 s")
		require.Less(t, index.times, 12)

		was := index.times
		pass(time.Hour)
		synctest.Wait()
		require.Equal(t, was, index.times)
		for i := range 500 { // 10 s of a busy plugin
			routes.Note(a, []kvindex.LocalHash{kvindex.LocalHash(i)}, kvindex.Predicted, time.Now())
			pass(20 * time.Millisecond)
		}
		pass(11 * time.Second)
		synctest.Wait()
		require.Zero(t, held(a))
		st, ok := index.Stats(a)
		require.True(t, ok)
		require.Zero(t, st.Routed)
		// Route itself drops what is over, and asks for a sweep at most each 100 ms.
		require.Less(t, index.times-was, 230)
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
	})
}

// hourly has something to forget in an hour, whatever is routed.
type hourly struct {
	kvindex.Index
	next time.Time
}

func (h *hourly) Expire(time.Time) time.Time { return h.next }
func (h *hourly) Route(worker.Rank, []kvindex.LocalHash, kvindex.Guess, time.Time) time.Time {
	return h.next
}

func TestWhatIsNextAlreadyWakesNobodyAgain(t *testing.T) {
	index := &hourly{next: time.Now().Add(time.Hour)}
	routes := NewRoutes(index)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- routes.Run(ctx) }()
	require.Eventually(t, func() bool { return routes.next.Load() != asleep }, 20*time.Second, time.Millisecond)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	routes.Note(worker.Rank{ID: 1}, nil, kvindex.Predicted, time.Now())
	require.Empty(t, routes.kick)
	index.next = index.next.Add(-time.Minute)
	routes.Note(worker.Rank{ID: 1}, nil, kvindex.Predicted, time.Now())
	require.NotEmpty(t, routes.kick, "what is over before that does")
}

// TestWhatNobodyWillConfirmIsTold: prompts on ranks that tell of no KV events, and not those that were heard of.
func TestWhatNobodyWillConfirmIsTold(t *testing.T) {
	routes := NewRoutes(&hourly{next: time.Now().Add(time.Hour)})
	var told []worker.ID
	routes.Tell(func(r worker.Rank, _ []kvindex.LocalHash) { told = append(told, r.ID) })
	routes.Note(worker.Rank{ID: 1}, nil, kvindex.Estimated, time.Now())
	routes.Note(worker.Rank{ID: 2}, nil, kvindex.Predicted, time.Now())
	routes.Heard(worker.Rank{ID: 3}, nil, kvindex.Estimated, time.Now())
	require.Equal(t, []worker.ID{1}, told)
}
