package main

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/replay"
)

// traceBlock is the number of tokens that each hash id of the trace stands for.
const traceBlock = replay.TraceBlock

// fleet is the ranks of the simulation's prefill, as the flags state them, and what is known of
// their caches when.
type fleet struct {
	Ranks      int
	Capacity   int           // blocks of the cache of each rank
	Speed      float64       // tokens a second that a rank prefills
	Overhead   time.Duration // of each prompt, whatever its length
	EventDelay time.Duration // from a rank's cache to the index
	RoutedTTL  time.Duration // how long the estimate believes in what was routed; 0: its default
	// PredictedTTL is how long what was routed is believed in before events tell of it; 0: its
	// default.
	PredictedTTL time.Duration
}

// simulated returns the fleet as internal/replay has it: prefill ranks alone.
func (f *fleet) simulated() *replay.Fleet {
	out := &replay.Fleet{EventDelay: f.EventDelay, ReportEvery: reportEvery}
	for range f.Ranks {
		out.Ranks = append(out.Ranks, replay.Rank{PerToken: 1 / f.Speed, PerPrompt: f.Overhead.Seconds(), CacheBlocks: f.Capacity})
	}
	return out
}

// simulated returns the live workers that compute prompts as internal/replay has them.
func (o *liveOptions) simulated() *replay.Fleet {
	f := o.fleet.simulated()
	for i := range f.Ranks {
		if o.whole {
			f.Ranks[i].Role = replay.Whole
		}
		if i < o.slow {
			f.Ranks[i].Speeds = []replay.Speed{{Factor: 0.5}}
		}
	}
	return f
}

// workloadOf is requests of the trace as a workload.
func workloadOf(trace []replay.Request) *replay.Workload {
	return &replay.Workload{BlockTokens: traceBlock, Requests: trace}
}
