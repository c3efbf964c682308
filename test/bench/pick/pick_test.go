package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// From the hashes to the decision nothing is allocated, whatever the size.
func TestADecisionAllocatesNothing(t *testing.T) {
	for _, n := range []int{3, 40} {
		l, err := newLab(n, 8, 1)
		require.NoError(t, err)
		decode := picker.DecodeOverride(l.params)
		once := func() {
			if err := l.decide(l.chain(), l.slot()); err != nil {
				t.Error(err)
			}
			if err := l.decideDecode(&decode, l.slot()); err != nil {
				t.Error(err)
			}
		}
		once()
		require.Zero(t, testing.AllocsPerRun(200, once))
		require.NoError(t, l.widen())
		once()
		require.NotNil(t, l.answer.Host)
		require.NotNil(t, l.answer.Disk)
		require.NotNil(t, l.answer.Predicted)
		require.Zero(t, testing.AllocsPerRun(200, once))
	}
}

// The lab is not a fleet of strangers: the conversation's rank is found, unless
// its queue outweighs the cache, and who is aside is not picked.
func TestTheLabIsWhatItSays(t *testing.T) {
	l, err := newLab(25, 8, 1)
	require.NoError(t, err)
	aside := l.snap.Workers()[0]
	require.False(t, l.health.Allows(worker.Rank{ID: aside.ID}))
	warm := 0
	for range 50 {
		require.NoError(t, l.decide(l.chain(), l.slot()))
		rows := l.seen[0].Rows
		require.NotEqual(t, aside.ID, rows[0].Rank.ID)
		require.GreaterOrEqual(t, rows[0].OverlapBlocks, uint32(systemBlocks))
		if rows[0].OverlapBlocks == systemBlocks+turnBlocks {
			warm++
		}
	}
	require.Positive(t, warm)
}

func TestTheReportHasEveryFigureOfEverySize(t *testing.T) {
	var out strings.Builder
	require.NoError(t, run([]string{"-workers", "1,4", "-dp", "2", "-repeats", "1", "-for", "1ms"}, &out))
	for _, size := range []string{"| 1 × 2 |", "| 4 × 2 |"} {
		require.Equal(t, 9, strings.Count(out.String(), size), out.String())
	}
	for _, what := range []string{"pick alone |", "index look-up |", "prefill: hashes to decision |"} {
		require.Equal(t, 2, strings.Count(out.String(), what))
	}
}

func TestFlagsAreChecked(t *testing.T) {
	var out strings.Builder
	require.ErrorContains(t, run([]string{"-workers", "10,x"}, &out), `-workers "10,x": expected numbers above 0`)
	require.ErrorContains(t, run([]string{"-dp", "0"}, &out), "expected each above 0")
}
