package stats

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAQuantileIsTheLeastValueThatTheShareDoesNotExceed(t *testing.T) {
	list := make([]int, 100)
	for i := range list {
		list[i] = i + 1
	}
	for q, want := range map[float64]int{0: 1, 0.001: 1, 0.07: 7, 0.29: 29, 0.5: 50, 0.501: 51, 0.99: 99, 0.995: 100, 1: 100} {
		require.Equal(t, want, Quantile(list, q), q)
	}
	require.Equal(t, 2, Quantile(list[:3], 0.5))
	require.Equal(t, 1, Quantile(list[:1], 0.99))
	require.Panics(t, func() { Quantile([]int(nil), 0.5) })
}

func TestTheMedianIsTheLowerOfTwoMiddleValuesAndSortsNobodysList(t *testing.T) {
	list := []float64{4, 1, 3, 2}
	require.InDelta(t, 2, Median(list), 0)
	require.Equal(t, []float64{4, 1, 3, 2}, list)
	require.InDelta(t, 3, Median([]float64{9, 3, 1}), 0)
}

func TestMicroseconds(t *testing.T) {
	require.InDelta(t, 1500.25, Micros(1500250*time.Nanosecond), 1e-9)
}
