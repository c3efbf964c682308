package policies

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/replay"
	"github.com/seed-60ae5743/baton/internal/replay/replaytest"
	"github.com/seed-60ae5743/baton/internal/whatif"
)

func playWith(t *testing.T, f *replay.Fleet, c replay.Chooser, asked ...*replay.Request) (*replay.Workload, *replay.Result) {
	t.Helper()
	w := replaytest.Workload(asked...)
	r, err := replay.Run(f, w, c)
	require.NoError(t, err)
	return w, r
}

func rival(t *testing.T, name string, f *replay.Fleet) *view {
	t.Helper()
	for _, r := range Rivals() {
		if r.Name == name {
			return r.New(f, replaytest.Block, 1).(*view)
		}
	}
	require.Fail(t, "no such rival", name)
	return nil
}

func TestLeastRequestPrefersTheLessLoadedOfTwo(t *testing.T) {
	v := rival(t, "least-request", replaytest.FleetOf(replay.Whole, replay.Whole))
	v.requests[0] = 5
	got := [2]int{}
	for range 400 {
		got[v.choose(nil)]++
	}
	require.InDelta(t, 100, got[0], 50, "only where it is drawn twice")
}

func TestLMetricWeighsTokensByRequests(t *testing.T) {
	v := rival(t, "lmetric", replaytest.FleetOf(replay.Whole, replay.Whole))
	r := replaytest.Ask(0, 1100, 1, 2)
	v.held[0][1], v.held[0][2] = true, true
	require.Equal(t, 0, v.choose(r))
	v.requests[0] = 14 // (76 + 0) × 15 is more than 1,100 × 1
	require.Equal(t, 1, v.choose(r))
	v.requests[0], v.queued[0] = 1, 473 // (76 + 473) × 2 is less
	require.Equal(t, 0, v.choose(r))
	v.queued[0] = 475
	require.Equal(t, 1, v.choose(r))
}

func TestWaitForCachedWaitsForHalfOfThePrompt(t *testing.T) {
	v := rival(t, "wait-for-cached", replaytest.FleetOf(replay.Whole, replay.Whole))
	v.held[0][1], v.queued[0] = true, 1e6
	require.Equal(t, 0, v.choose(replaytest.Ask(0, 1024, 1, 2)))
	require.Equal(t, 1, v.choose(replaytest.Ask(0, 1025, 1, 2)), "less than half")
}

func TestCacheAwareFollowsItsMatchWhileLoadsAreAlike(t *testing.T) {
	v := rival(t, "cache-aware", replaytest.FleetOf(replay.Whole, replay.Whole))
	_, err := v.Choose(0, 0, replaytest.Ask(0, 1536, 1, 2, 3))
	require.NoError(t, err)
	at := 0
	if v.requests[1] == 1 {
		at = 1
	}
	require.NoError(t, v.Events(0, replay.Events{Rank: at, Removed: []replay.Block{1}}))
	require.Equal(t, at, v.choose(replaytest.Ask(0, 1600, 1, 7, 8)), "32 %; and it hears no events")
	require.Equal(t, 1-at, v.choose(replaytest.Ask(0, 1710, 1, 7, 8)), "29.9 %")
	v.requests[at] = 64
	require.Equal(t, at, v.choose(replaytest.Ask(0, 1600, 1, 7, 8)))
	v.requests[at] = 65
	require.Equal(t, 1-at, v.choose(replaytest.Ask(0, 1600, 1, 7, 8)))
	v.requests[1-at], v.requests[at] = 200, 290
	require.Equal(t, at, v.choose(replaytest.Ask(0, 1600, 1, 7, 8)), "less than 1.5 times")
}

// What a rival counts is gone when nothing runs, and what events say is what it believes.
func TestARivalsViewFollowsTheRun(t *testing.T) {
	for _, f := range []*replay.Fleet{replaytest.FleetOf(replay.Whole, replay.Whole), replaytest.FleetOf(replay.Prefill, replay.Decode, replay.Prefill, replay.Decode)} {
		for _, r := range Rivals() {
			v := r.New(f, replaytest.Block, 1).(*view)
			var asked []*replay.Request
			for i := range 30 {
				b := replay.Block(3 * i)
				asked = append(asked, replaytest.Ask(time.Duration(i)*100*time.Millisecond, 1600, 1, b+2, b+3))
			}
			_, got := playWith(t, f, v, asked...)
			require.Empty(t, v.open, r.Name)
			for i := range f.Ranks {
				require.Zero(t, v.requests[i]+v.queued[i], r.Name)
				if f.Ranks[i].Role != replay.Decode && !v.deaf {
					require.Len(t, v.held[i], got.Cached(i), r.Name)
				}
			}
		}
	}
}

// A tuner plays hundreds of runs: a whole scenario, every rival and the plugin, is right with its
// index, its book and its caches.
func TestEveryScenarioIsPlayedToItsEnd(t *testing.T) {
	s := replaytest.Scenarios{Ranks: 4, PerToken: 1.0 / 8000, PerPrompt: 0.02, CacheBlocks: 200, EventDelay: 10 * time.Millisecond, Seed: 1}
	for i := range 120 {
		r := replay.Request{At: time.Duration(i) * time.Second, Tokens: 6000, Answer: 100}
		for k := range 11 {
			b := replay.Block(1 + k)
			if k > 2 {
				b = replay.Block(1000*(i%20) + 100 + k)
			}
			r.Blocks = append(r.Blocks, b)
		}
		s.Trace = append(s.Trace, r)
	}
	for _, fleet := range []string{"whole", "apart", "apart+two-slow", "whole+halved", "whole+throttled", "apart+four"} {
		for _, traffic := range []string{"88", "bursts"} {
			f, w, err := s.Play(fleet, traffic)
			require.NoError(t, err)
			p, err := whatif.NewPlugin(f, w.BlockTokens, whatif.Default())
			require.NoError(t, err)
			r, err := replay.Run(f, w, p)
			require.NoError(t, err)
			require.NoError(t, p.Verify(w, r), fleet)
			require.Greater(t, r.Figures(replay.Target{}).Hit, 0.3, fleet)
			for _, rival := range Rivals() {
				_, err := replay.Run(f, w, rival.New(f, w.BlockTokens, 1))
				require.NoError(t, err)
			}
		}
	}
}

// TestReplicasThatTellEachOtherPickAsOne, and such that do not pick worse: on fleets whose prompts one or two
// ranks compute, and whose decode is apart, with KV events and by what was routed.
func TestReplicasThatTellEachOtherPickAsOne(t *testing.T) {
	s := replaytest.Scenarios{Ranks: 8, PerToken: 1.0 / 8000, PerPrompt: 0.02, CacheBlocks: 4000, EventDelay: 10 * time.Millisecond, Seed: 1}
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range 1500 {
		r := replay.Request{At: time.Duration(float64(i)*0.7*float64(time.Second) + rng.ExpFloat64()*float64(time.Second)), Tokens: 2000 + rng.IntN(14000), Answer: 30}
		for k := range r.Tokens / 512 {
			b := replay.Block(1 + i%60*1000 + k)
			if k > 6 {
				b = replay.Block(1_000_000 + 1000*i + k)
			}
			r.Blocks = append(r.Blocks, b)
		}
		s.Trace = append(s.Trace, r)
	}
	slices.SortFunc(s.Trace, func(a, b replay.Request) int { return cmp.Compare(a.At, b.At) })
	for _, fleet := range []string{"whole", "whole+four", "apart"} {
		for _, estimated := range []bool{false, true} {
			f, w, err := s.Play(fleet, "88")
			require.NoError(t, err)
			play := func(replicas int, told bool) (replay.Figures, float64) {
				c := whatif.Default()
				c.Estimated, c.Predicted, c.Replicas, c.Told, c.Lag = estimated, !estimated, replicas, told, 20*time.Millisecond
				p, err := whatif.NewPlugin(f, w.BlockTokens, c)
				require.NoError(t, err)
				r, err := replay.Run(f, w, p)
				require.NoError(t, err)
				require.NoError(t, p.Verify(w, r))
				x := r.Figures(replay.Target{})
				return x, x.First.Mean.Seconds()
			}
			one, first := play(1, false)
			told, toldFirst := play(3, true)
			_, aloneFirst := play(3, false)
			t.Logf("%s, estimated %t: mean first token %.2f s by one, %.2f s by three, %.2f s untold", fleet, estimated, first, toldFirst, aloneFirst)
			require.InDelta(t, one.Hit, told.Hit, 0.015, fleet)
			require.Less(t, toldFirst, 1.06*first, fleet)
			require.Greater(t, aloneFirst, 1.1*first, fleet)
		}
	}
}
