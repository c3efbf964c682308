package kvevents

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func TestARankThatJoinsHasMissedWhatWasHeardOfItBefore(t *testing.T) {
	p := newPlane(new(Config{}.withDefaults()))
	r, never := worker.Rank{ID: 1}, worker.Rank{ID: 2}
	p.stranger(r, 7)
	first := newPlaneRank(p.cfg, r)
	p.add(r, first)
	require.Equal(t, []any{true, uint64(7)}, []any{first.missed, first.missedOf})
	require.Empty(t, p.strangers)
	other := newPlaneRank(p.cfg, never)
	p.add(never, other)
	require.False(t, other.missed)

	// A rank that leaves and comes back has missed the events of the time between.
	first.cursor.Judge(9, true, 0)
	p.remove(r)
	require.True(t, first.gone)
	require.NotContains(t, p.ranks, r)
	_, why := p.rank(r)
	require.Equal(t, UnknownWorker, why)
	again := newPlaneRank(p.cfg, r)
	p.add(r, again)
	require.Equal(t, []any{true, uint64(9)}, []any{again.missed, again.missedOf})

	// A rank whose events come from its engine must not be recorded as a stranger.
	p.stranger(never, 3)
	p.add(never, nil)
	require.NotContains(t, p.strangers, never)
	_, why = p.rank(never)
	require.Equal(t, SecondSource, why)
	p.remove(never)
	require.NotContains(t, p.strangers, never)
}

func TestWhatIsRememberedOfStrangersIsBounded(t *testing.T) {
	p := newPlane(new(Config{}.withDefaults()))
	for id := range worker.ID(maxStrangers) {
		p.stranger(worker.Rank{ID: id + 1}, 7)
	}
	require.Len(t, p.strangers, maxStrangers)
	require.False(t, p.blind)
	p.stranger(worker.Rank{ID: maxStrangers + 1}, 7)
	require.Len(t, p.strangers, 1)
	pr := newPlaneRank(p.cfg, worker.Rank{ID: 1})
	p.add(pr.rank, pr)
	require.True(t, pr.missed, "it may be one of those that were forgotten")
	require.Zero(t, pr.missedOf, "by whomever")
}

func TestWhatIsRememberedOfPublishersIsBounded(t *testing.T) {
	p := newPlane(new(Config{}.withDefaults()))
	for id := range uint64(maxPublishers) {
		require.True(t, p.heard(id, 0))
	}
	require.Len(t, p.publishers, maxPublishers)
	require.True(t, p.heard(5, 1), "one that is known needs no room")
	require.True(t, p.heard(maxPublishers, 0))
	require.Len(t, p.publishers, 1)
	require.False(t, p.heard(5, 2), "what came before is not known any more")
	require.False(t, p.heard(5, 3))
	require.True(t, p.heard(maxPublishers, 1))
	require.False(t, p.heard(maxPublishers, 3), "2 is missing")
	require.False(t, p.heard(maxPublishers, 2), "late, and not a proof")
}

func TestOnlyThePublisherThatWasMissedMakesARankIncomplete(t *testing.T) {
	for name, c := range map[string]struct {
		missed    bool
		of        uint64
		publisher uint64
		degraded  bool
	}{
		"nothing was missed":             {false, 0, 7, false},
		"nothing, of this one before":    {false, 7, 7, false},
		"of this publisher":              {true, 7, 7, true},
		"of another, which is gone":      {true, 7, 8, false},
		"of whomever, so maybe this one": {true, 0, 8, true},
	} {
		t.Run(name, func(t *testing.T) {
			gaps := 0
			cfg := new(Config{Index: newTree(t), Hooks: Hooks{Gap: func(worker.Rank) { gaps++ }}}.withDefaults())
			r := worker.Rank{ID: 1}
			cfg.Index.Attach(r)
			pr := newPlaneRank(cfg, r)
			pr.missed, pr.missedOf = c.missed, c.of
			in := &intake{channel: newHand(), log: cfg.Logger, channelState: channelState{status: ChannelStatus{Up: true}}}
			store := func(id uint64) RouterEvent {
				return RouterEvent{Rank: r, ID: id, Event: Event{Kind: Stored, Stored: kvindex.Stored{
					Blocks: []kvindex.Block{{Engine: kvindex.EngineHash(id + 1), Local: kvindex.LocalHash(id + 1)}},
				}}}
			}
			require.True(t, pr.take(in, Envelope{Publisher: c.publisher}, true, []RouterEvent{store(1)}))
			require.Equal(t, c.degraded, pr.cursor.Degraded())
			require.Zero(t, gaps)
			require.True(t, pr.take(in, Envelope{Publisher: c.publisher}, true, []RouterEvent{store(3)}))
			require.Equal(t, 1, gaps)
			require.True(t, pr.cursor.Degraded())
		})
	}
}
