package replaytest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/replay"
)

func TestDemandIsTheTimeOfAllRanksWithoutCaches(t *testing.T) {
	w := &replay.Workload{BlockTokens: 10, Requests: []replay.Request{{Tokens: 100}, {At: time.Second, Tokens: 100}}}
	f := &replay.Fleet{Ranks: []replay.Rank{{PerToken: 0.001, PerPrompt: 0.1}, {PerToken: 0.001, PerPrompt: 0.1, Speeds: []replay.Speed{{Factor: 0.5}}}, {Role: replay.Decode}}}
	require.InDelta(t, 2*0.2/1.5, Demand(w, f), 1e-12)
	w.Requests[1].Follows = 1
	require.Zero(t, Demand(w, f))
}

func TestArrivalsAreBunched(t *testing.T) {
	of := func(at ...time.Duration) (out []replay.Request) {
		for _, x := range at {
			out = append(out, replay.Request{At: x * time.Millisecond})
		}
		return out
	}
	r := of(0, 500, 1000, 1500, 2250, 3000)
	Bunch(r, time.Second, 100*time.Millisecond)
	require.Equal(t, of(0, 50, 1000, 1050, 2025, 3000), r)
	r[4].Follows = 1
	Bunch(r, time.Second, 10*time.Millisecond)
	require.Equal(t, 2025*time.Millisecond, r[4].At, "a pause is no arrival")
}

func TestFleetsAndTrafficHaveTheNumbersThatTheirNamesSay(t *testing.T) {
	s := Scenarios{Ranks: 8, PerToken: 1.0 / 8000, PerPrompt: 0.02, CacheBlocks: 4000, EventDelay: 10 * time.Millisecond, Seed: 1}
	for i := range 400 {
		s.Trace = append(s.Trace, replay.Request{At: time.Duration(i) * time.Second, Tokens: 8000, Answer: 5})
	}
	for _, name := range []string{"whole", "apart", "whole+two-slow", "apart+four"} {
		f, w, err := s.Play(name, "45")
		require.NoError(t, err)
		require.InDelta(t, 0.45, Demand(w, f), 1e-6, name)
	}
	require.Equal(t, time.Second, s.Trace[1].At, "the trace is left as it is")
	f, w, err := s.Play("whole+two-slow+halved+four", "bursts")
	require.NoError(t, err)
	last := w.Requests[len(w.Requests)-1].At
	require.Equal(t, []replay.Speed{{Factor: 0.5}, {From: last / 2, Factor: 0.5}}, f.Ranks[1].Speeds)
	require.Empty(t, f.Ranks[2].Speeds)
	require.Equal(t, 4, f.Ranks[2].Prompts)
	for _, r := range w.Requests {
		require.LessOrEqual(t, r.At%burstEvery, burstWithin)
	}
	f, _, err = s.Play("apart+throttled", "5")
	require.NoError(t, err)
	require.Len(t, f.Of(replay.Decode), 3)
	require.Len(t, f.Of(replay.Prefill), 8)
	require.Equal(t, []replay.Speed{{Factor: 0.5}, {From: 30 * time.Second, Factor: 1}, {From: time.Minute, Factor: 0.5}}, f.Ranks[0].Speeds[:3])
	half, w, err := s.Play("whole", "agents")
	require.NoError(t, err)
	require.Equal(t, 256, w.BlockTokens)
	require.Equal(t, 8000, half.Ranks[0].CacheBlocks, "as many tokens")
	require.Contains(t, s.String(), "Reused:0.8")
	for _, bad := range [][2]string{{"half", "45"}, {"whole+half", "45"}, {"whole", "x"}, {"whole", "0"}, {"whole", "NaN"}} {
		_, _, err := s.Play(bad[0], bad[1])
		require.ErrorContains(t, err, "expected", bad)
	}
}

func TestAgentsReuseWhatIsStated(t *testing.T) {
	a := DefaultAgents()
	w := a.Workload()
	require.InDelta(t, a.Reused, w.Bound(), 0.01)
	turns, last := map[int]int{}, map[int]replay.Request{}
	begins := map[replay.Block]bool{}
	compacted := 0
	for i, r := range w.Requests {
		require.LessOrEqual(t, r.Tokens, a.Longest)
		require.GreaterOrEqual(t, r.Answer, a.Answer[0])
		require.LessOrEqual(t, r.Answer, a.Answer[1])
		begins[r.Blocks[0]] = true
		turns[r.Session]++
		if turns[r.Session] == 1 {
			require.Zero(t, r.Follows)
		} else {
			before := last[r.Session]
			require.Equal(t, r.Session, w.Requests[r.Follows-1].Session)
			require.GreaterOrEqual(t, r.At, a.Pause[0]-1)
			require.LessOrEqual(t, r.At, a.Pause[1]+1)
			if r.Tokens > before.Tokens {
				require.Equal(t, before.Blocks, r.Blocks[:len(before.Blocks)], "request %d", i)
			} else {
				compacted++
				require.Equal(t, before.Blocks[:a.Shared/a.BlockTokens], r.Blocks[:a.Shared/a.BlockTokens], "request %d", i)
				require.NotEqual(t, before.Blocks[a.Shared/a.BlockTokens], r.Blocks[a.Shared/a.BlockTokens], "request %d", i)
			}
		}
		last[r.Session] = r
	}
	require.Positive(t, compacted)
	require.Len(t, begins, a.Apps)
	for s, n := range turns {
		require.GreaterOrEqual(t, n, a.Turns[0], s)
		require.LessOrEqual(t, n, a.Turns[1], s)
	}
	require.Equal(t, w, a.Workload())
}
