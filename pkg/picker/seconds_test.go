package picker

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// inSeconds is a pick by seconds among two ranks that compute 1,000 tokens a second.
func inSeconds(t *testing.T, req *Request, cands ...Candidate) Decision {
	t.Helper()
	for i := range cands {
		c := &cands[i]
		c.Rank = rank(uint64(i+1), 0)
		if c.Pace == (Pace{}) {
			c.Pace = Pace{PerToken: 0.001}
		}
	}
	p := DefaultParamsFor(worker.Aggregated)
	p.BlockSize = 100
	d, err := Pick(req, NewCandidates(cands...), &p, 0, newRand(1))
	require.NoError(t, err)
	return d
}

// TestACostInSeconds: who is sooner done with the prompt, as far as it does not delay others.
func TestACostInSeconds(t *testing.T) {
	req := Request{Role: worker.Aggregated, ISLTokens: 1000}
	for name, c := range map[string]struct {
		flow Flow
		a, b Candidate
		cost float64
		want uint64
	}{
		"idle, and one holds half":              {a: Candidate{}, b: Candidate{OverlapBlocks: 5}, want: 2, cost: 0.5},
		"who holds it has a queue":              {a: Candidate{}, b: Candidate{OverlapBlocks: 5, Wait: 0.6}, want: 1, cost: 1},
		"… of less than what is saved":          {a: Candidate{}, b: Candidate{OverlapBlocks: 5, Wait: 0.4}, want: 2, cost: 0.9},
		"much comes, so work is dearer":         {flow: Flow{Arrivals: 0.4, Busy: 0.8}, a: Candidate{}, b: Candidate{OverlapBlocks: 5, Wait: 0.6}, want: 2, cost: 1.65},
		"a rank that is slow":                   {a: Candidate{Pace: Pace{0.002, 0.1}}, b: Candidate{Wait: 0.9}, want: 2, cost: 1.9},
		"running answers":                       {a: Candidate{ActiveDecodeBlocks: 300}, b: Candidate{Wait: 0.5}, want: 2, cost: 1.5},
		"an estimate counts for half":           {a: Candidate{OverlapBlocks: 10, Estimated: true}, b: Candidate{OverlapBlocks: 6}, want: 2, cost: 0.4},
		"more is cached than there is of it":    {a: Candidate{OverlapBlocks: 40}, b: Candidate{}, want: 1, cost: 0},
		"a load that is not known counts for 0": {a: Candidate{Wait: 9, LoadUnknown: true}, b: Candidate{Wait: 0.1}, want: 1, cost: 1},
		"a tie goes to who has computed less":   {a: Candidate{Lately: 3}, b: Candidate{Lately: 2.9}, want: 2, cost: 1},
		"blocks in host memory":                 {a: Candidate{HostBlocks: 4}, b: Candidate{OverlapBlocks: 2}, want: 1, cost: 0.7},
		"an overload beyond all measure": {
			flow: Flow{Arrivals: 1e6, Busy: 1e9}, a: Candidate{Wait: 1e6}, b: Candidate{Wait: 1e6, OverlapBlocks: 10}, want: 2, cost: 1e6,
		},
	} {
		q := req
		q.Flow = c.flow
		d := inSeconds(t, &q, c.a, c.b)
		require.Equal(t, worker.ID(c.want), d.Rank.ID, name)
		require.InDelta(t, c.cost, d.Cost, 1e-9, name)
	}
}

// TestTheShortFormOfSecondsGivesTheSameBits: for candidates of all kinds.
func TestTheShortFormOfSecondsGivesTheSameBits(t *testing.T) {
	rng := newRand(9)
	for range 300 {
		cands := randomCandidates(1+rng.IntN(150), rng)
		for i := range cands {
			c := &cands[i]
			c.Wait, c.Pace, c.Lately = rng.Float64()*20, Pace{rng.Float64() / 1000, rng.Float64() / 50}, rng.Float64()
			if rng.IntN(40) == 0 {
				c.HostBlocks, c.Degraded, c.LoadUnknown = 3, true, rng.IntN(2) == 0
			}
		}
		c := NewCandidates(cands...)
		p := DefaultParamsFor(worker.Prefill)
		req := Request{ISLTokens: rng.IntN(5000), Flow: Flow{rng.Float64(), rng.Float64()}}
		var d Decision
		_, err := c.prepare(&p, &d)
		require.NoError(t, err)
		k := newCoster(&req, c, &p)
		var buf costs
		for w := range c.in {
			for j := range k.fill(w, &buf) {
				var tm terms
				k.of(w*chunk+j, &tm)
				require.Equal(t, tm.cost, buf[j])
			}
		}
	}
}
