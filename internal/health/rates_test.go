package health

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// after is the tally of that many requests, the bad ones spread evenly.
func after(good, bad int) (w tally) {
	n := good + bad
	for i := range n {
		w = w.and((i+1)*bad/n == i*bad/n)
	}
	return w
}

func TestATallyHoldsSomeFiftyRequests(t *testing.T) {
	require.Equal(t, tally{1, 0}, after(1, 0))
	require.InDelta(t, 50, after(1000, 0).size(), 0.1)
	require.InDelta(t, 25, after(5000, 5000).bad, 1)
	w := after(1000, 0)
	for range 50 {
		w = w.and(false)
	}
	require.InDelta(t, 0.36, w.good/w.size(), 0.01, "a third of what was is left after fifty")
}

func TestWhoFailsMoreThanTheOthersIsOdd(t *testing.T) {
	for _, row := range []struct {
		what            string
		worker, others  tally
		odd             bool
		evenIfManyTimes bool // the same with ten times as many others
	}{
		{what: "the first failure of a pool", worker: after(0, 1), odd: true, evenIfManyTimes: true},
		{what: "the first failure, where the others have served", worker: after(0, 1), others: after(200, 0), odd: true, evenIfManyTimes: true},
		{what: "the first failure after many that were served", worker: after(49, 1), others: after(200, 0), odd: true, evenIfManyTimes: true},
		{what: "that, where there is hardly anything to compare with", worker: after(49, 1), others: after(5, 0), evenIfManyTimes: true},
		{what: "that, where there is nothing to compare with", worker: after(49, 1), others: after(0, 0)},
		{what: "everything fails", worker: after(0, 50), others: after(0, 50)},
		{what: "everything fails, here more often", worker: after(0, 50), others: after(0, 3)},
		{what: "everything fails, there more often", worker: after(0, 3), others: after(0, 50)},
		{what: "half fails everywhere", worker: after(25, 25), others: after(25, 25)},
		{what: "one in ten fails everywhere", worker: after(90, 10), others: after(90, 10)},
		{what: "all here, six of ten there", worker: after(0, 100), others: after(40, 60), odd: true, evenIfManyTimes: true},
		{what: "half here, one in ten there", worker: after(50, 50), others: after(90, 10), odd: true, evenIfManyTimes: true},
		{what: "one in ten here, half there", worker: after(90, 10), others: after(50, 50)},
		{what: "nothing here", worker: after(50, 0), others: after(25, 25)},
		{what: "nothing anywhere"},
	} {
		require.Equal(t, row.odd, row.worker.odd(row.others), row.what)
		require.Equal(t, row.evenIfManyTimes, row.worker.odd(row.others.times(10)), "%s, many times", row.what)
	}
}

func TestEqualRatesAreNeverOdd(t *testing.T) {
	for good := range 60 {
		for bad := range 60 {
			for _, more := range []float64{1, 1.5, 7, 1000} {
				w := tally{float64(good), float64(bad)}
				if w.size() == 0 {
					continue
				}
				require.False(t, w.odd(w.times(more)), "%v, %v times", w, more)
				require.False(t, w.times(more).odd(w), "%v times, %v", more, w)
			}
		}
	}
}

func TestARunOfErrorsIsNoAccidentWhereOthersServe(t *testing.T) {
	for _, row := range []struct {
		others tally
		run    int // the shortest that is no accident
	}{
		{tally{}, 17}, {after(7, 0), 7}, {after(50, 0), 4}, {after(1000, 0), 4}, {after(25, 25), 17},
	} {
		require.False(t, row.others.unlikely(row.run-1, chance), "%v", row.others)
		require.True(t, row.others.unlikely(row.run, chance), "%v", row.others)
	}
	require.False(t, after(0, 50).unlikely(40, chance), "all fail")
}

func TestARunOfRefusalsIsSuddenWhereOthersServe(t *testing.T) {
	for _, row := range []struct {
		what   string
		others tally
		run    int // the shortest that is sudden; 0: none is
	}{
		{"nothing is known", tally{}, 0},
		{"others have served two", after(2, 0), 0},
		{"others have served seven", after(7, 0), 3},
		{"others serve", after(50, 0), 2},
		{"of four requests three are served", after(75, 25), 4},
		{"half of the requests are refused", after(50, 50), 6},
		{"all are, and two have been", after(0, 2), 0},
		{"all are, and fifty have been", after(0, 50), 0},
		{"all are, of many workers", after(0, 1000).times(9), 0},
	} {
		got := 0
		for run := 1000; run > 0; run-- {
			if row.others.sudden(run, rareRun) {
				got = run
			}
		}
		require.Equal(t, row.run, got, row.what)
	}
}

func TestWhoIsWorseFailsMoreThanByAccident(t *testing.T) {
	for _, row := range []struct {
		worker, others tally
		worse          bool
	}{
		{after(0, 1), tally{}, false}, {after(0, 2), after(20, 1), true}, {after(2, 1), after(20, 1), false},
		{after(0, 5), after(5, 5), false}, {after(0, 50), after(20, 30), true}, {after(25, 25), after(25, 25), false}, {tally{}, after(5, 5), false},
	} {
		require.Equal(t, row.worse, row.worker.worse(row.others, 3), "%v among %v", row.worker, row.others)
	}
}
