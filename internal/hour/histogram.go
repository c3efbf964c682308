package hour

import (
	"math"
	"time"
)

// Bucket i has the times from least·growth^i up to the next bound.
const (
	buckets = 170
	least   = 100 * time.Microsecond
	growth  = 1.1
)

// histogram counts times. The zero value is empty.
type histogram [buckets]uint32

// add counts d; 0 or less is no time.
func (h *histogram) add(d time.Duration) {
	if d <= 0 {
		return
	}
	i := math.Log(float64(d)/float64(least)) / math.Log(growth)
	h[int(min(max(i, 0), buckets-1))]++
}

func (h *histogram) merge(o *histogram) {
	for i, n := range o {
		h[i] += n
	}
}

// middle is the time that stands for bucket i.
func middle(i int) time.Duration {
	return time.Duration(float64(least) * math.Pow(growth, float64(i)+0.5))
}

// times returns the quantiles: the middle of their buckets.
func (h *histogram) times() (t Times) {
	for _, n := range h {
		t.Count += int64(n)
	}
	half, most := (t.Count+1)/2, (99*t.Count+99)/100
	seen := int64(0)
	for i, n := range h {
		before := seen
		seen += int64(n)
		if before < half && half <= seen {
			t.P50 = middle(i)
		}
		if before < most && most <= seen {
			t.P99 = middle(i)
			break
		}
	}
	return t
}
