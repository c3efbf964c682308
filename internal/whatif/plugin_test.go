package whatif

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/replay"
	"github.com/seed-60ae5743/baton/internal/replay/replaytest"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
)

func playWith(t *testing.T, f *replay.Fleet, c replay.Chooser, asked ...*replay.Request) (*replay.Workload, *replay.Result) {
	t.Helper()
	w := replaytest.Workload(asked...)
	r, err := replay.Run(f, w, c)
	require.NoError(t, err)
	return w, r
}

// first is another way to choose: always the first rank.
type first struct{}

func (first) Choose(time.Duration, int, *replay.Request) (replay.Choice, error) {
	return replay.Choice{}, nil
}
func (first) Leg(time.Duration, replay.Leg) error       { return nil }
func (first) Events(time.Duration, replay.Events) error { return nil }
func (first) Report(time.Duration, replay.Report) error { return nil }

// A conversation comes back to the rank that has it, alone and apart, and nothing stays booked.
func TestThePluginFollowsTheCacheAloneAndApart(t *testing.T) {
	for name, f := range map[string]*replay.Fleet{
		"whole":   replaytest.FleetOf(replay.Whole, replay.Whole),
		"prefill": replaytest.FleetOf(replay.Prefill, replay.Prefill),
		"apart":   replaytest.FleetOf(replay.Decode, replay.Prefill, replay.Prefill, replay.Decode),
	} {
		for seed := range uint64(4) {
			c := Default()
			c.Seed = seed + 1
			p, err := NewPlugin(f, replaytest.Block, c)
			require.NoError(t, err)
			w, r := playWith(t, f, p,
				replaytest.Ask(0, 1100, 1, 2), replaytest.Ask(time.Millisecond, 1100, 3, 4),
				replaytest.Ask(9*time.Second, 1600, 1, 2, 5), replaytest.Ask(9*time.Second, 1600, 3, 4, 6))
			require.NoError(t, p.Verify(w, r), name)
			o := r.Outcomes
			require.NotEqual(t, o[0].Rank, o[1].Rank, name)
			for i := range 2 {
				require.Equal(t, o[i].Rank, o[i+2].Rank, name)
				require.Equal(t, 2, o[i+2].Believed, name)
				require.Equal(t, 1024, o[i+2].Cached, name)
			}
			if name == "apart" {
				require.NotEqual(t, o[0].Decode, o[1].Decode, "decode is booked, too")
			}
			require.Empty(t, p.flights, name)
		}
	}
}

// Of two whole requests in a row the second would find its rank busy, if the book were not told
// that the first one's prompt is computed.
func TestThePluginBooksWhatRunsAndLearnsHowLongAnswersAre(t *testing.T) {
	f := replaytest.FleetOf(replay.Whole)
	p, err := NewPlugin(f, replaytest.Block, Default())
	require.NoError(t, err)
	choose := func(now time.Duration, n int) {
		_, err := p.Choose(now, n, replaytest.Ask(now, 600, replay.Block(n+1)))
		require.NoError(t, err)
	}
	book := p.replicas[0].book
	choose(0, 0)
	require.EqualValues(t, 600, book.Totals().PrefillTokens)
	require.EqualValues(t, 2, book.Totals().DecodeBlocks)
	require.NoError(t, p.Leg(time.Second, replay.Leg{Role: replay.Whole, Moment: replay.FirstToken}))
	require.Zero(t, book.Totals().PrefillTokens)
	require.Equal(t, 1, book.Totals().Held)
	require.NoError(t, p.Report(time.Second, replay.Report{Running: 3, Blocks: 30}))
	blocks, known := book.DecodingBlocks(idOf(0), clock(time.Second))
	require.True(t, known)
	require.EqualValues(t, 30, blocks, "what the engine reports corrects what is booked")
	require.NoError(t, p.Leg(2*time.Second, replay.Leg{Role: replay.Whole, Moment: replay.Ended}))
	require.Zero(t, book.Totals().Held)
	require.InDelta(t, 1, p.replicas[0].lately.Expect(key, -1).First.Seconds(), 1e-9)
	require.InDelta(t, 2, p.replicas[0].lately.Expect(key, -1).PerSecond, 1e-9)
}

func TestARunWhoseIndexIsNotTheCachesIsFoundOut(t *testing.T) {
	f := replaytest.FleetOf(replay.Prefill)
	p, err := NewPlugin(f, replaytest.Block, Default())
	require.NoError(t, err)
	w, r := playWith(t, f, p, replaytest.Ask(0, 1100, 1, 2), replaytest.Ask(9*time.Second, 1100, 3, 4))
	require.NoError(t, p.Verify(w, r))
	_, other := playWith(t, f, first{}, replaytest.Ask(0, 1100, 1, 2), replaytest.Ask(9*time.Second, 1100, 3, 5))
	require.ErrorContains(t, p.Verify(w, other), "the index has 2 blocks of request 1: expected 1")
	require.NoError(t, p.replicas[0].index.Remove(idOf(0), kvindex.Removed{Blocks: []kvindex.EngineHash{engineHash(4)}}))
	require.ErrorContains(t, p.Verify(w, r), "3 blocks in the index")
	p, err = NewPlugin(f, replaytest.Block, Default())
	require.NoError(t, err)
	_, err = p.Choose(0, 0, replaytest.Ask(0, 10))
	require.NoError(t, err)
	_, none := playWith(t, f, first{}, replaytest.Ask(0, 10))
	require.ErrorContains(t, p.Verify(w, none), "1 bookings")
}

// TestPromptsTakeAsLongAsThePickExpected: half of them within 15 % once each rank has served 100, on fleets of
// each kind but those whose speed changes by the minute.
func TestPromptsTakeAsLongAsThePickExpected(t *testing.T) {
	s := replaytest.Scenarios{Ranks: 8, PerToken: 1.0 / 8000, PerPrompt: 0.02, CacheBlocks: 4000, EventDelay: 10 * time.Millisecond, Seed: 1}
	for _, fleet := range []string{"whole", "apart", "whole+two-slow", "apart+two-slow", "whole+four", "apart+four"} {
		f, w, err := s.Play(fleet, "agents")
		require.NoError(t, err)
		p, err := NewPlugin(f, w.BlockTokens, Default())
		require.NoError(t, err)
		_, err = replay.Run(f, w, p)
		require.NoError(t, err)
		off := p.replicas[0].off
		require.Greater(t, len(off), 2*100*s.Ranks, fleet)
		off = off[100*s.Ranks:]
		for i := range off {
			off[i] = math.Abs(off[i] - 1)
		}
		slices.Sort(off)
		require.Less(t, off[len(off)/2], 0.15, fleet)
		t.Logf("%s: half within %.1f %%, nine in ten within %.0f %%", fleet, 100*off[len(off)/2], 100*off[len(off)*9/10])
	}
}
