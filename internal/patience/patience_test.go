package patience_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/patience"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func subject(id worker.ID, k patience.Kind) patience.Subject {
	return patience.Subject{Worker: id, Pool: worker.Key{Model: "m"}, Leg: patience.Prefill, Kind: k}
}

func TestALimitIsLearnedFromWhatWasServed(t *testing.T) {
	const allowance = 2 * time.Second
	var l patience.Limits
	require.Equal(t, 6*time.Second, l.Limit(subject(1, patience.Plain), allowance), "the first request of a life")
	require.Equal(t, 30*time.Second, l.Limit(subject(1, patience.Media), allowance))

	l.Took(subject(1, patience.Plain), allowance, 3*time.Second)
	require.Equal(t, 6*time.Second, l.Limit(subject(1, patience.Plain), allowance))
	require.Equal(t, 30*time.Second, l.Limit(subject(1, patience.Media), allowance), "kinds do not speak for each other")
	require.Equal(t, 6*time.Second, l.Limit(subject(2, patience.Plain), allowance), "the pool speaks for who is new")

	l.Took(subject(1, patience.Plain), allowance, 20*time.Second)
	require.Equal(t, 40*time.Second, l.Limit(subject(1, patience.Plain), allowance))
	require.Equal(t, 80*time.Second, l.Limit(subject(1, patience.Plain), 2*allowance), "a longer prompt may take longer")
}

func TestASlowAnswerFades(t *testing.T) {
	const allowance = 2 * time.Second
	var l patience.Limits
	l.Took(subject(1, patience.Plain), allowance, 20*time.Second)
	l.Took(subject(1, patience.Plain), allowance, 10*time.Millisecond)
	require.InDelta(t, 39.2, l.Limit(subject(1, patience.Plain), allowance).Seconds(), 0.001, "one short answer says little")
	for range 200 {
		l.Took(subject(1, patience.Plain), allowance, 10*time.Millisecond)
	}
	require.Equal(t, allowance, l.Limit(subject(1, patience.Plain), allowance), "never below the allowance")
}

func TestWhoHasLeftIsForgotten(t *testing.T) {
	const allowance = time.Second
	var l patience.Limits
	l.Took(subject(1, patience.Plain), allowance, 5*time.Second)
	for range 400 {
		l.Took(subject(2, patience.Plain), allowance, time.Millisecond)
	}
	require.Equal(t, 10*time.Second, l.Limit(subject(1, patience.Plain), allowance))
	l.Forget([]worker.ID{1})
	require.Equal(t, allowance, l.Limit(subject(1, patience.Plain), allowance), "what the pool has lately taken")
}

func TestAbsurdAllowancesDoNotOverflow(t *testing.T) {
	var l patience.Limits
	l.Took(subject(1, patience.Plain), time.Nanosecond, time.Hour)
	require.Equal(t, 24*time.Hour, l.Limit(subject(1, patience.Plain), 1<<62))
	l.Took(subject(1, patience.Plain), 0, time.Hour)
}

func TestPoolsThatServeNoMoreAreForgotten(t *testing.T) {
	const allowance = time.Second
	var l patience.Limits
	of := func(pool int) patience.Subject {
		return patience.Subject{Worker: 1, Pool: worker.Key{Model: strconv.Itoa(pool)}}
	}
	for pool := range 1025 {
		l.Took(of(pool), allowance, 10*time.Second)
		l.Took(of(0), allowance, 10*time.Second)
	}
	l.Forget([]worker.ID{1})
	require.Equal(t, 20*time.Second, l.Limit(of(0), allowance), "it has served of late")
	require.Equal(t, 3*time.Second, l.Limit(of(1), allowance), "it has served nothing for the longest time")
	require.Equal(t, 20*time.Second, l.Limit(of(2), allowance))
}

// Work that may still run is done once more for few requests of a pool, unless that is worth it.
func TestWorkIsDoneOnceMoreForFew(t *testing.T) {
	var l patience.Limits
	pool, other, now := worker.Key{Model: "m"}, worker.Key{Model: "n"}, time.Unix(1000, 0)
	repeats := func() (n int) {
		for l.Repeat(pool, now) {
			n++
		}
		return n
	}
	require.Equal(t, 5, repeats(), "a few at once")
	require.True(t, l.Repeat(other, now), "each pool has its own")
	for range 100 {
		l.Took(patience.Subject{Pool: pool, Leg: patience.Whole}, time.Second, time.Second)
		l.Took(patience.Subject{Pool: pool, Leg: patience.Prefill}, time.Second, time.Second)
	}
	require.Equal(t, 2, repeats(), "one in fifty answers")
	now = now.Add(11 * time.Second)
	require.Equal(t, 2, repeats(), "and each five seconds")
	now = now.Add(time.Hour)
	require.Equal(t, 5, repeats())
	l.Repaid(pool)
	require.Equal(t, 1, repeats())
}
