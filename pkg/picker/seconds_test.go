package picker

import (
	"math"
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

// forDecode is a pick of decode by seconds, of an answer of at most 400 tokens to a prompt of 10 blocks of 100.
func forDecode(t *testing.T, fetches bool, cands ...Candidate) Decision {
	t.Helper()
	for i := range cands {
		cands[i].Rank = rank(uint64(i+1), 0)
	}
	p := DecodeOverride(DefaultParamsFor(worker.Decode))
	p.BlockSize = 100
	req := Request{Role: worker.Decode, ISLTokens: 1000, RequestBlocks: 10, NewBlocks: 10, AnswerTokens: 400, HandOff: 0.001, FetchesLacking: fetches}
	d, err := Pick(&req, NewCandidates(cands...), &p, 0, newRand(1))
	require.NoError(t, err)
	return d
}

// TestDecodeIsPickedInSeconds: by when the answer is written, what that does to others, and room.
func TestDecodeIsPickedInSeconds(t *testing.T) {
	slow, fast := Writing{Base: 0.04, PerBlock: 0.0001}, Writing{Base: 0.02, PerBlock: 0.0001}
	for name, c := range map[string]struct {
		fetches bool
		a, b    Candidate
		cost    float64 // a tenth of the answer's time, 100 tokens on average, and what else counts
		want    uint64
	}{
		"the one that writes faster":            {a: Candidate{Writing: slow}, b: Candidate{Writing: fast}, want: 2, cost: 0.21},
		"… as long as it holds less":            {a: Candidate{Writing: slow}, b: Candidate{Writing: fast, ActiveDecodeBlocks: 210}, want: 1, cost: 0.41},
		"fewer blocks":                          {a: Candidate{Writing: fast, ActiveDecodeBlocks: 100}, b: Candidate{Writing: fast, ActiveDecodeBlocks: 50}, want: 2, cost: 0.26},
		"it slows those that run":               {a: Candidate{Writing: fast, ActiveRequests: 50}, b: Candidate{Writing: fast, ActiveDecodeBlocks: 40}, want: 2, cost: 0.25},
		"a pair that is far":                    {a: Candidate{Writing: fast, Farther: 0.1}, b: Candidate{Writing: fast, ActiveDecodeBlocks: 50}, want: 2, cost: 0.26},
		"what it holds need not be fetched":     {fetches: true, a: Candidate{Writing: fast}, b: Candidate{Writing: fast, OverlapBlocks: 5, ActiveDecodeBlocks: 50}, want: 2, cost: 0.76},
		"there is no room":                      {a: Candidate{Writing: fast, ActiveDecodeBlocks: 100, CapacityBlocks: 100}, b: Candidate{Writing: slow, ActiveDecodeBlocks: 100}, want: 2, cost: 0.51},
		"answers will need the room":            {a: Candidate{Writing: fast, ActiveDecodeBlocks: 50, Growing: 200, CapacityBlocks: 80}, b: Candidate{Writing: slow, ActiveDecodeBlocks: 50}, want: 2, cost: 0.46},
		"nothing is known of either":            {a: Candidate{ActiveDecodeBlocks: 10}, b: Candidate{}, want: 2, cost: 0.1 * 100 * (0.02 + 1e-6*10)},
		"a load that is not known counts for 0": {a: Candidate{ActiveDecodeBlocks: 10, LoadUnknown: true}, b: Candidate{ActiveDecodeBlocks: 9}, want: 1, cost: 0.1 * 100 * (0.02 + 1e-6*10)},
	} {
		d := forDecode(t, c.fetches, c.a, c.b)
		require.Equal(t, worker.ID(c.want), d.Rank.ID, name)
		require.InDelta(t, c.cost, d.Cost, 1e-9, name)
	}
}

// TestWhoKeepsTheTargetIsPicked: before any who does not, whatever the cost; and nobody may keep it.
func TestWhoKeepsTheTargetIsPicked(t *testing.T) {
	cheap := Candidate{OverlapBlocks: 9, Wait: 1, Pace: Pace{PerToken: 0.001}}         // 1.1 s
	dear := Candidate{ActiveDecodeBlocks: 900, Wait: 0, Pace: Pace{PerToken: 0.00101}} // 1.01 s, and answers run
	for target, want := range map[float64]struct {
		id   worker.ID
		late bool
	}{0: {1, false}, 2: {1, false}, 1.05: {2, false}, 0.5: {1, true}} {
		req := Request{Role: worker.Aggregated, ISLTokens: 1000, Target: target}
		d := inSeconds(t, &req, cheap, dear)
		require.Equal(t, want.id, d.Rank.ID, target)
		require.Equal(t, want.late, d.Late, target)
		require.Less(t, d.Cost, 10.0)
	}
}

// TestTaintsDoNotChangeWhoIsBelievedToBeWhat: a rank that a request prefers has a lower cost, of which no part may be
// left out, and it keeps its target no better than it does.
func TestTaintsDoNotChangeWhoIsBelievedToBeWhat(t *testing.T) {
	rng := newRand(3)
	p := DefaultParamsFor(worker.Aggregated)
	for range 200 {
		cands := randomCandidates(200, rng)
		for i := range cands {
			c := &cands[i]
			c.Wait, c.Pace = rng.Float64(), Pace{rng.Float64() / 1000, 0.01}
			if rng.IntN(3) == 0 {
				c.TaintWeight = rng.Float32() * 2
			}
		}
		c := NewCandidates(cands...)
		c.Near = new(Shortlist)
		for _, role := range []worker.Role{worker.Aggregated, worker.Decode} {
			req := Request{Role: role, ISLTokens: 5000, NewBlocks: 300, AnswerTokens: 900, Target: []float64{0, 1e-9, 2}[rng.IntN(3)]}
			d, err := Pick(&req, c, &p, 0, rng)
			require.NoError(t, err)
			k := newCoster(&req, c, &p)
			best, late := math.Inf(1), 0
			for i := range cands {
				var tm terms
				k.of(i, &tm)
				best = min(best, tm.cost)
				if tm.late {
					late++
				}
			}
			require.InDelta(t, best, d.Ranked(), 1e-6)
			require.Equal(t, late == len(cands), d.Late)
			require.Less(t, d.Cost, 1e6)
			for _, r := range AppendNear(nil, &req, c, &p, &d) {
				require.GreaterOrEqual(t, r.Cost, 0.0)
				require.Less(t, r.Cost, 1e6)
			}
		}
	}
}
