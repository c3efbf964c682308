package route

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/load"
	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// A share is reached only by as many tokens as it comes to, counted up.
func TestAShareOfAPromptIsCountedUp(t *testing.T) {
	for _, row := range []struct {
		tokens int64
		ratio  float64
		isl    int
		want   int64
	}{{100, 0.3, 16, 5}, {100, 0.25, 16, 4}, {4, 0.3, 16, 4}, {100, 0.01, 1, 1}, {100, 1, 16, 16}} {
		c := Conditional{ByISL: true, ISLTokens: row.tokens, ISLRatio: row.ratio}
		require.Equal(t, row.want, c.uncachedLimit(row.isl), "%+v", row)
	}
	require.Zero(t, (&Conditional{ISLTokens: 9, ISLRatio: 1}).uncachedLimit(16), "by load alone")
}

// A worker that is given a prompt although others are there for prompts has room
// for it: it is never the least busy of those that are too busy.
func TestASpareWorkerHasRoom(t *testing.T) {
	c := Conditional{DecodeBusyBlocks: 0.5, PrefillBusyTokens: 100}
	got := c.spare(picker.Params{ServeOverloaded: true})
	require.Equal(t, picker.Params{DecodeBlocksThreshold: 0.5, PrefillTokensThreshold: 100}, got)
	stricter := picker.Params{DecodeBlocksThreshold: 0.25, PrefillTokensThreshold: 10}
	require.Equal(t, stricter, c.spare(stricter))

	r := newRig(t, routetest.AbleAlone(), func(c *Config) {
		c.Conditional = Conditional{ByISL: true, ISLTokens: 100, ISLRatio: 1, PrefillBusyTokens: 10}
		c.Aggregated.ServeOverloaded = true
	})
	r.holds(worker.Rank{ID: 3}, sixteenTokens, 3)
	require.Equal(t, ShortPrompt, r.preview(sixteenTokens).Alone)
	busy := r.booked(worker.Rank{ID: 3}, worker.Aggregated, 11)
	require.Empty(t, r.preview(sixteenTokens).Alone)
	busy.Release(time.Now())
}

// What a request asks of its picks holds for the pick of one worker, too.
func TestOneWorkerIsPickedAsTheRequestAsks(t *testing.T) {
	body := withExt(`"router_config_override":{"prefill_load_scale":7.5}`)
	for name, change := range map[SplitReason]func(ws []*worker.Worker, c *Config){
		Fallback: func(ws []*worker.Worker, c *Config) {
			routetest.Strand(ws)
			c.Policy.Rules.Fallback = true
		},
		ShortPrompt: func(_ []*worker.Worker, c *Config) {
			c.Conditional = Conditional{ByISL: true, ISLTokens: 100, ISLRatio: 1}
		},
	} {
		ws := routetest.AbleAlone()
		r := newRig(t, ws, func(c *Config) {
			change(ws, c)
			c.Overrides = true
		})
		r.holds(worker.Rank{ID: 3}, body, 1)
		d := decider{Router: r.Router, q: r.asking(body)}
		prompt, sc := r.tokens(d.q)
		d.sc = sc
		d.judgeInTime(prompt)
		require.Nil(t, d.v.fail)
		require.Equal(t, name, d.v.split.reason)
		require.InDelta(t, 7.5, d.v.decode.params.PrefillLoadScale, 0)
		require.NotEqual(t, picker.DefaultParams().PrefillLoadScale, d.v.decode.params.PrefillLoadScale)
	}
}

// TestOneWorkerServesWhereThatCostsLess: the cost in seconds decides, the hand-off included.
func TestOneWorkerServesWhereThatCostsLess(t *testing.T) {
	r := newRig(t, routetest.AbleAlone(), func(c *Config) {
		c.Conditional = Conditional{ByCost: true}
		c.Prefill, c.Decode, c.Aggregated = picker.DefaultParamsFor(worker.Prefill), picker.DefaultParamsFor(worker.Decode), picker.DefaultParamsFor(worker.Aggregated)
	})
	require.Equal(t, LowerCost, r.preview(sixteenTokens).Alone, "all are idle, and it needs no hand-off")
	busy := r.booked(worker.Rank{ID: 3}, worker.Aggregated, 10)
	d := r.preview(sixteenTokens)
	require.Empty(t, d.Alone, "it has another prompt to compute")
	require.Contains(t, d.Record.Split, "no worker with room costs less than 0.0")
	r.holds(worker.Rank{ID: 3}, sixteenTokens, 3)
	require.Empty(t, r.preview(sixteenTokens).Alone, "what it has of this one is not worth the wait")
	busy.Release(time.Now())
	require.Equal(t, LowerCost, r.preview(sixteenTokens).Alone)
}

// TestATargetIsKeptByWhoCan: by the request's own target or its model's, and the hand-off is part of it.
func TestATargetIsKeptByWhoCan(t *testing.T) {
	r := newRig(t, routetest.Workers(), func(c *Config) {
		c.Prefill, c.Decode = picker.DefaultParamsFor(worker.Prefill), picker.DefaultParamsFor(worker.Decode)
		c.Targets = map[string]time.Duration{"m": 50 * time.Millisecond}
	})
	warm, idle := worker.Rank{ID: 1}, worker.Rank{ID: 2}
	r.cfg.Book.SetPace(warm, picker.Pace{PerToken: 0.01})
	r.cfg.Book.SetPace(idle, picker.Pace{PerToken: 0.012})
	r.holds(warm, sixteenTokens, 3)
	r.booked(warm, worker.Prefill, 8)
	ask := func(target time.Duration) Decision {
		q, f := r.ask(sixteenTokens, func(q *Request) { q.Preview, q.Target = true, target })
		require.Nil(t, f)
		p, sc := r.tokens(q)
		d, f := r.Decide(q, p, sc, time.Now())
		require.Nil(t, f)
		return d
	}
	require.Equal(t, warm, ask(time.Second).Prefill.Rank, "0.12 s against 0.192 s: both keep it")
	d := ask(0)
	require.True(t, d.Answer.Late, "nobody keeps the model's")
	require.Equal(t, 50*time.Millisecond, d.Answer.Target)
	require.Equal(t, warm, d.Prefill.Rank)
	require.Contains(t, d.Record.Prefill.Why(0), "nobody is believed to keep the target of 50ms")
	r.booked(warm, worker.Prefill, 6)
	r.cfg.Book.SetHandOffs(d.Key, load.HandOffs{Usual: picker.Pace{PerRequest: 0.005}})
	d = ask(197 * time.Millisecond)
	require.False(t, d.Answer.Late)
	require.Equal(t, warm, d.Prefill.Rank)
	require.True(t, ask(184*time.Millisecond).Answer.Late, "0.18 s and the hand-off")
}
