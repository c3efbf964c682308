package replaytest

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

// Demand is what share of the time of the fleet's ranks the prompts would take if nothing were
// cached, from the first arrival to the last. 0 if requests follow others: how much they ask for
// then depends on how fast they are served.
func Demand(w *replay.Workload, f *replay.Fleet) float64 {
	last := w.Requests[len(w.Requests)-1]
	if last.Follows > 0 || last.At == 0 {
		return 0
	}
	sum := 0.0
	for i := range w.Requests {
		rate := 0.0
		for k := range f.Ranks {
			if r := &f.Ranks[k]; r.Role != replay.Decode {
				rate += r.Factor(0) / (r.PerPrompt + float64(w.Requests[i].Tokens)*r.PerToken)
			}
		}
		sum += 1 / rate
	}
	return sum / last.At.Seconds()
}
