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

// What a request asks of its picks holds for the pick of one worker, too.
func TestOneWorkerIsPickedAsTheRequestAsks(t *testing.T) {
	body := withExt(`"router_config_override":{"prefill_load_scale":7.5}`)
	ws := routetest.AbleAlone()
	routetest.Strand(ws)
	r := newRig(t, ws, func(c *Config) { c.Policy.Rules.Fallback, c.Overrides = true, true })
	r.holds(worker.Rank{ID: 3}, body, 1)
	d := decider{Router: r.Router, q: r.asking(body)}
	prompt, sc := r.tokens(d.q)
	d.sc = sc
	d.judgeInTime(prompt)
	require.Nil(t, d.v.fail)
	require.Equal(t, Fallback, d.v.split.reason)
	require.InDelta(t, 7.5, d.v.decode.params.PrefillLoadScale, 0)
	require.NotEqual(t, picker.DefaultParams().PrefillLoadScale, d.v.decode.params.PrefillLoadScale)
}

// TestOneWorkerServesWhereThatCostsLess: the cost in seconds decides, the hand-off included.
func TestOneWorkerServesWhereThatCostsLess(t *testing.T) {
	r := newRig(t, routetest.AbleAlone(), func(c *Config) {
		c.Conditional = Conditional{Enabled: true}
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
	r.cfg.Book.SetHandOffs(d.Key, load.HandOffs{Usual: picker.Pace{PerRequest: 0.1}})
	d = ask(400 * time.Millisecond)
	require.False(t, d.Answer.Late)
	require.Equal(t, warm, d.Prefill.Rank)
	require.True(t, ask(200*time.Millisecond).Answer.Late, "0.18 s and the hand-off, less what has passed meanwhile")
}
