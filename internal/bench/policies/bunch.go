package policies

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/replay"
)

// Bunch makes bursts: what arrives in each period comes in the first part of it, at the same
// distances by proportion.
func Bunch(requests []replay.Request, period, part time.Duration) {
	for i := range requests {
		if r := &requests[i]; r.Follows == 0 {
			begin := r.At / period * period
			r.At = begin + time.Duration(float64(r.At-begin)*float64(part)/float64(period))
		}
	}
}
