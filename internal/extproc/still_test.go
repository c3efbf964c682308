package extproc

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/envoy"
	"github.com/seed-60ae5743/baton/internal/patience"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func TestEachGapHasARouteInEnvoy(t *testing.T) {
	require.Equal(t, envoy.Gaps, gaps[:])
	for d, want := range map[time.Duration]string{0: "", 1: "1", time.Second: "1", 1001 * time.Millisecond: "2", 90 * time.Second: "160", 320 * time.Second: "320", 321 * time.Second: ""} {
		require.Equal(t, want, gapOf(d), d)
	}
}

// Envoy's log tells every five seconds how many bytes an answer has.
func TestHowLongAnAnswerMayStandStillIsLearned(t *testing.T) {
	var l patience.Limits
	var count atomic.Int64
	subject := patience.Subject{Worker: 1, Pool: worker.Key{Model: "m"}, Leg: patience.Gap}
	limit := func() time.Duration { return l.Limit(subject, 30*time.Second) }
	require.Equal(t, 90*time.Second, limit(), "nothing is known")
	start := time.Unix(1000, 0)
	of := limited{subject: subject, allowance: 30 * time.Second}
	answer := func(bytes ...uint64) *still {
		s := new(still)
		for i, n := range bytes {
			s.sees(n, start.Add(time.Duration(i)*5*time.Second), &count)
		}
		return s
	}
	s := answer()
	s.over(&l, of)
	require.Equal(t, 90*time.Second, limit(), "of a short answer no gap is known")

	s = answer(10, 20, 20, 20)
	require.EqualValues(t, 1, count.Load(), "it stands still")
	s.sees(30, start.Add(20*time.Second), &count)
	require.Zero(t, count.Load(), "it goes on")
	s.over(&l, of)
	require.Equal(t, 30*time.Second, limit(), "ten seconds are within the allowance")

	s = answer(10, 10, 10, 10, 10, 10)
	require.EqualValues(t, 1, count.Load())
	s.over(&l, of)
	require.Zero(t, count.Load())
	require.Equal(t, 50*time.Second, limit(), "twice the longest")

	s = answer()
	s.cut(start, limit())
	s.over(&l, of)
	require.Equal(t, 100*time.Second, limit(), "it grows where it has ended an answer")

	for range 5 { // a client that has taken this much and does not read holds up the worker, too
		s = answer(100<<10, 100<<10)
		require.Equal(t, 10*time.Minute, s.sees(100<<10, start.Add(10*time.Minute), &count), "it is ended for its gap")
		s.over(&l, of)
	}
	require.Less(t, limit(), 101*time.Second, "and teaches nothing")
}
