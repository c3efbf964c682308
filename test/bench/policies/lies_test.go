package policies

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/replay"
	"github.com/seed-60ae5743/baton/internal/replay/replaytest"
	"github.com/seed-60ae5743/baton/internal/whatif"
)

// liar is a plugin of which one rank lies to it.
type liar struct {
	*whatif.Plugin
	leg    func(*replay.Leg)
	report func(*replay.Report)
}

const lying = 0 // the rank's number

// Leg implements replay.Chooser.
func (l *liar) Leg(now time.Duration, g replay.Leg) error {
	if g.Rank == lying && l.leg != nil {
		l.leg(&g)
	}
	return l.Plugin.Leg(now, g)
}

// Report implements replay.Chooser.
func (l *liar) Report(now time.Duration, r replay.Report) error {
	if r.Rank == lying && l.report != nil {
		l.report(&r)
	}
	return l.Plugin.Report(now, r)
}

// TestALieStarvesNobody: whatever a rank says of its caches, of its queue and of the time, it gets requests within
// four minutes of each other (reports come every 2 s), and what it says does not make the others' users wait much longer. A prompt of
// a million tokens comes among them.
func TestALieStarvesNobody(t *testing.T) {
	prompts := map[int]int{}
	for name, l := range map[string]*liar{
		"nobody lies":                      {},
		"all was cached":                   {leg: func(g *replay.Leg) { g.Cached = prompts[g.Request] }},
		"nothing was cached":               {leg: func(g *replay.Leg) { g.Cached = 0 }},
		"more was cached than there is":    {leg: func(g *replay.Leg) { g.Cached = 1 << 40 }},
		"a million prompts wait":           {report: func(r *replay.Report) { r.Waiting = 1e6 }},
		"it is empty":                      {report: func(r *replay.Report) { r.Waiting, r.Running, r.Blocks = 0, 0, 0 }},
		"it holds more than it has":        {report: func(r *replay.Report) { r.Running, r.Blocks = 1, 1<<30 }},
		"numbers below zero":               {leg: func(g *replay.Leg) { g.Cached = -5 }, report: func(r *replay.Report) { r.Waiting, r.Running, r.Blocks = -1, -1, -1 }},
		"its clock is an hour ahead":       {leg: func(g *replay.Leg) { g.At += time.Hour }},
		"its clock goes backwards by days": {leg: func(g *replay.Leg) { g.At -= 99 * time.Hour }},
	} {
		t.Run(name, func(t *testing.T) {
			f := &replay.Fleet{EventDelay: time.Millisecond, ReportEvery: 2 * time.Second}
			for range 4 {
				f.Ranks = append(f.Ranks, replay.Rank{Role: replay.Whole, PerToken: 1e-4, PerPrompt: 0.02, CacheBlocks: 400, Room: 4000, Chunk: 2048, Step: replay.Step{Base: 0.02}})
			}
			w := &replay.Workload{BlockTokens: replaytest.Block}
			for i := range 1200 {
				r := replaytest.Ask(time.Duration(i)*500*time.Millisecond, 3000+i%7*1000, replay.Block(i%40+1), replay.Block(1000+i))
				if i == 600 {
					r.Tokens = 1_000_000
				}
				prompts[i] = r.Tokens
				w.Requests = append(w.Requests, *r)
			}
			var err error
			l.Plugin, err = whatif.NewPlugin(f, replaytest.Block, whatif.Default())
			require.NoError(t, err)
			r, err := replay.Run(f, w, l)
			require.NoError(t, err)
			require.NoError(t, l.Verify(w, r))
			last, got, longest := time.Duration(0), 0, time.Duration(0)
			for i := range r.Outcomes {
				if o := &r.Outcomes[i]; o.Rank == lying {
					longest, last, got = max(longest, o.At-last), o.At, got+1
				}
			}
			longest = max(longest, w.Requests[len(w.Requests)-1].At-last)
			mean := r.Figures(replay.Target{}).First.Mean
			t.Logf("%d requests, the longest pause %v, mean first token %v", got, longest, mean)
			require.Less(t, longest, 4*time.Minute)
			require.Less(t, mean, 2*time.Second)
		})
	}
}
