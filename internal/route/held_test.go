package route

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/internal/hitloss"
	"github.com/seed-60ae5743/baton/internal/route/routetest"
	"github.com/seed-60ae5743/baton/internal/sides"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// TestWhyTheHolderOfMostCouldNotBePicked is said with each pick: worker 1 holds the prompt, and worker 2 is picked.
func TestWhyTheHolderOfMostCouldNotBePicked(t *testing.T) {
	for name, row := range map[string]struct {
		ws     func() []*worker.Worker
		config func(*Config)
		then   func(r *rig)
		ask    func(*Request)
		want   hitloss.Cause
	}{
		"it is set aside": {then: func(r *rig) {
			r.cfg.Health.Report(worker.Rank{ID: 1}, health.Report{Outcome: health.ConnectFailed}, time.Now())
		}, want: hitloss.Aside},
		"it has failed the request": {ask: func(q *Request) { q.Failed = []worker.Rank{{ID: 1}} }, want: hitloss.Aside},
		"it drains": {ws: func() []*worker.Worker {
			ws := routetest.Workers()
			ws[0].Draining = true
			return ws
		}, want: hitloss.Aside},
		"no decode worker is in its domain": {ws: func() []*worker.Worker {
			ws := routetest.Workers()
			routetest.Strand(ws[:1])
			return ws
		}, want: hitloss.Constraint},
		"it has no partner": {ws: func() []*worker.Worker {
			ws := routetest.Workers()
			ws[0].Engine = worker.VLLMMooncake
			return ws
		}, want: hitloss.Constraint},
		"it counts tokens as no decode worker does": {config: func(c *Config) {
			apart := differing([2]worker.ID{1, 3}, [2]worker.ID{1, 4})
			c.Apart = func() *sides.Apart { return apart }
		}, want: hitloss.Constraint},
		"its workers have too much": {config: func(c *Config) { c.Prefill.PrefillTokensThreshold = 1 }, then: func(r *rig) {
			r.booked(worker.Rank{ID: 1}, worker.Prefill, 100)
		}, want: hitloss.Constraint},
		"it left": {then: func(r *rig) {
			snap, err := worker.NewSnapshot(9, routetest.Workers()[1:])
			require.NoError(r.t, err)
			r.cfg.Book.Update(snap)
		}, want: hitloss.Aside},
	} {
		t.Run(name, func(t *testing.T) {
			ws := routetest.Workers()
			if row.ws != nil {
				ws = row.ws()
			}
			ws[1].KVEvents = worker.KVEvents{Host: "127.0.0.1", Port: 5558}
			r := newRig(t, ws, row.config)
			r.holds(worker.Rank{ID: 1}, eightTokens, 2)
			r.holds(worker.Rank{ID: 2}, eightTokens, 1)
			if row.then != nil {
				row.then(r)
			}
			q, f := r.ask(eightTokens, row.ask)
			require.Nil(t, f)
			p, sc := r.tokens(q)
			d, f := r.Decide(q, p, sc, time.Now())
			require.Nil(t, f)
			require.Equal(t, worker.ID(2), d.Prefill.Rank.ID)
			require.Equal(t, Held{Best: 2, Out: row.want, Told: 1, Events: true}, d.Prefill.Held)
			require.Equal(t, uint32(1), d.Prefill.MostOverlap)
			require.Zero(t, d.Decode.Held, "decode computes no prompt")
		})
	}
}

// TestOfARankThatIsDoubtedAllThatItsEventsToldIsKept for who judges it, and a part is weighed.
func TestOfARankThatIsDoubtedAllThatItsEventsToldIsKept(t *testing.T) {
	r := newRig(t, routetest.Workers()[0:3:3], nil)
	r.holds(worker.Rank{ID: 1}, eightTokens, 2)
	r.Doubt(map[worker.Rank]float64{{ID: 1}: 0.5})
	d := r.preview(eightTokens)
	require.Equal(t, worker.ID(1), d.Prefill.Rank.ID)
	require.Equal(t, uint32(1), d.Prefill.OverlapBlocks)
	require.Equal(t, Held{Best: 1, Told: 2, Events: true}, d.Prefill.Held)
}
