// Package stats is the little arithmetic that replays, predictions and benchmarks share. Its
// functions are pure.
package stats

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Quantile returns the least of sorted values that a share q of them, from 0 to
// 1, does not exceed. It panics without values.
func Quantile[T cmp.Ordered](sorted []T, q float64) T {
	n := float64(len(sorted))
	i := int(math.Ceil(q*n - 1e-9)) // 0.07 × 100 is a little over 7
	return sorted[min(max(i, 1), len(sorted))-1]
}

// Median returns the middle one of the values, the lower one of two, and leaves
// them as they are. It panics without values.
func Median[T cmp.Ordered](values []T) T {
	return Quantile(slices.Sorted(slices.Values(values)), 0.5)
}

// Micros returns d in microseconds.
func Micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
