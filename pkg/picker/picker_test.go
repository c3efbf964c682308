package picker

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, seed)) }

func rank(id uint64, dp uint32) worker.Rank {
	return worker.Rank{ID: worker.ID(id), DPRank: worker.DPRank(dp)}
}

func randomCandidates(n int, rng *rand.Rand) []Candidate {
	cands := make([]Candidate, n)
	for i := range cands {
		cands[i] = Candidate{
			Rank:                rank(uint64(i/8+1), uint32(i%8)),
			OverlapBlocks:       uint32(rng.IntN(20)),
			ActivePrefillTokens: int64(rng.IntN(4000)),
			ActiveDecodeBlocks:  int64(rng.IntN(2000)),
			ActiveRequests:      int32(rng.IntN(30)),
		}
	}
	return cands
}

func TestNamesReadBackAsThemselves(t *testing.T) {
	for m := range numModes {
		got, err := ParseMode(m.String())
		require.NoError(t, err)
		require.Equal(t, m, got)
	}
	_, err := ParseMode("kV")
	require.ErrorContains(t, err, `"kV": expected one of kv, round-robin`)
	seen := map[string]bool{}
	for r := range numReasons {
		require.NotEmpty(t, r.String())
		require.False(t, seen[r.String()])
		seen[r.String()] = true
	}
	require.Equal(t, "invalid", numModes.String())
	require.Equal(t, "invalid", numReasons.String())
}

func TestDefaultsAreValidAndFaultsAreAllNamed(t *testing.T) {
	p := DefaultParams()
	require.NoError(t, p.Validate())
	p = Params{Mode: numModes, OverlapScoreCredit: math.NaN(), Temperature: -1, HostHitWeight: 2, PrefillLoadScale: math.Inf(1)}
	err := p.Validate()
	for _, name := range []string{"mode", "block_size", "overlap_score_credit", "temperature", "host_cache_hit_weight", "prefill_load_scale"} {
		require.ErrorContains(t, err, name)
	}
	require.NotContains(t, err.Error(), "disk_cache_hit_weight")
}

func TestDecodeOverrideKeepsWhatIsNotAboutThePrompt(t *testing.T) {
	p := DefaultParams()
	p.Temperature, p.DecodeActiveRequestWeight, p.BlockSize, p.Mode = 0.7, 3, 32, PowerOfTwo
	want := p
	want.OverlapScoreCredit, want.SharedCacheMultiplier, want.TrackPrefillTokens = 0, 0, false
	require.Equal(t, want, DecodeOverride(p))
}

func TestNoCandidateLeavesTheCursor(t *testing.T) {
	for m := range numModes {
		d, err := Pick(&Request{}, NewCandidates(), &Params{Mode: m}, 9, newRand(1))
		require.ErrorIs(t, err, ErrNoCandidate)
		require.Equal(t, Decision{Index: -1, Cursor: 9}, d)
	}
}

func TestOnlyRoundRobinMovesTheCursor(t *testing.T) {
	cands := randomCandidates(5, newRand(1))
	for m := range numModes {
		d, err := Pick(&Request{ISLTokens: 100}, NewCandidates(cands...), &Params{Mode: m, BlockSize: 16}, 9, newRand(1))
		require.NoError(t, err)
		want := uint64(9)
		if m == RoundRobin {
			want = 10
		}
		require.Equal(t, want, d.Cursor, m)
		require.Equal(t, cands[d.Index].Rank, d.Rank)
		require.Equal(t, 5, d.Candidates)
	}
}

// chiSquared compares counts with a uniform draw. For few degrees of freedom the 99.9th
// percentile is below 30.
func chiSquared(counts []int) float64 {
	total := 0
	for _, c := range counts {
		total += c
	}
	want := float64(total) / float64(len(counts))
	sum := 0.0
	for _, c := range counts {
		sum += (float64(c) - want) * (float64(c) - want) / want
	}
	return sum
}

func TestTiesAreDrawnUniformlyWhereverTheyLie(t *testing.T) {
	for _, tied := range [][]int{{0, 1}, {2, 5, 6}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, {9, 0}} {
		for _, mode := range []Mode{KV, LeastLoaded} {
			cands := make([]Candidate, 10)
			for i := range cands {
				cands[i] = Candidate{Rank: rank(uint64(i+1), 0), ActiveRequests: 5, ActiveDecodeBlocks: int64(50 + i)}
			}
			at := map[int]int{}
			for n, i := range tied {
				cands[i].ActiveRequests, cands[i].ActiveDecodeBlocks = 1, 1
				at[i] = n
			}
			counts, rng, columns := make([]int, len(tied)), newRand(7), NewCandidates(cands...)
			for range 10000 {
				d, err := Pick(&Request{}, columns, &Params{Mode: mode, BlockSize: 16}, 0, rng)
				require.NoError(t, err)
				n, is := at[d.Index]
				require.True(t, is)
				counts[n]++
			}
			require.Less(t, chiSquared(counts), 30.0, "%v %v %v", mode, tied, counts)
		}
	}
}

func TestRandomAndEqualSoftmaxAreUniform(t *testing.T) {
	cands := NewCandidates(make([]Candidate, 8)...)
	for _, p := range []Params{{Mode: Random}, {Mode: KV, Temperature: 0.5, BlockSize: 16}} {
		counts, rng := make([]int, 8), newRand(3)
		for range 16000 {
			d, err := Pick(&Request{}, cands, &p, 0, rng)
			require.NoError(t, err)
			counts[d.Index]++
		}
		require.Less(t, chiSquared(counts), 30.0, "%v %v", p.Mode, counts)
	}
}

func TestSoftmaxFollowsItsFormula(t *testing.T) {
	cands := make([]Candidate, 4)
	costs := []float64{10, 20, 25, 30}
	for i := range cands {
		cands[i].ActiveDecodeBlocks = int64(costs[i])
	}
	for _, temperature := range []float64{0.2, 1, 5} {
		p := Params{Mode: KV, BlockSize: 16, Temperature: temperature}
		want, sum := make([]float64, 4), 0.0
		for i, c := range costs {
			want[i] = math.Exp(-c / (30 - 10) / temperature)
			sum += want[i]
		}
		const draws = 40000
		counts, rng, columns := make([]float64, 4), newRand(11), NewCandidates(cands...)
		for range draws {
			d, err := Pick(&Request{}, columns, &p, 0, rng)
			require.NoError(t, err)
			require.Equal(t, costs[d.Index], d.Cost)
			require.Equal(t, Sampled, d.Reason)
			counts[d.Index]++
		}
		for i := range counts {
			require.InDelta(t, want[i]/sum, counts[i]/draws, 0.015, "temperature %v", temperature)
		}
	}
}

func TestATinyTemperatureStillGoesByCost(t *testing.T) {
	cands := NewCandidates(Candidate{ActiveDecodeBlocks: 30}, Candidate{ActiveDecodeBlocks: 10}, Candidate{ActiveDecodeBlocks: 20})
	for _, temperature := range []float64{1e-9, 1e-300, 1e-320} {
		rng := newRand(3)
		for range 100 {
			d, err := Pick(&Request{}, cands, &Params{Mode: KV, BlockSize: 16, Temperature: temperature}, 0, rng)
			require.NoError(t, err)
			require.Equal(t, 1, d.Index, "temperature %g", temperature)
		}
	}
}

func TestPowerOfTwoComparesTwoDifferentOnes(t *testing.T) {
	cands := NewCandidates(Candidate{ActiveRequests: 1}, Candidate{ActiveRequests: 2}, Candidate{ActiveRequests: 3})
	counts, rng := make([]int, 3), newRand(5)
	for range 9000 {
		d, err := Pick(&Request{}, cands, &Params{Mode: PowerOfTwo}, 0, rng)
		require.NoError(t, err)
		counts[d.Index]++
	}
	require.Zero(t, counts[2])
	require.InDelta(t, 6000, counts[0], 300) // two of the three pairs have candidate 0
}

func TestTheTableHasTheCostThatThePickSaw(t *testing.T) {
	rng := newRand(13)
	for range 200 {
		cands := NewCandidates(randomCandidates(1+rng.IntN(200), rng)...)
		p := DefaultParams()
		p.Mode, p.BlockSize = Mode(rng.IntN(int(numModes))), 1+rng.IntN(20)
		req := &Request{Role: worker.Role(1 + rng.IntN(3)), ISLTokens: max(0, rng.IntN(500)-99), NewBlocks: rng.IntN(9), Estimated: rng.IntN(2) == 0}
		d, err := Pick(req, cands, &p, rng.Uint64(), rng)
		require.NoError(t, err)
		rows := AppendTable(nil, req, cands, &p)
		require.Equal(t, rows[d.Index].Cost, d.Cost)
		require.Equal(t, rows[d.Index].UncachedTokens, d.UncachedTokens)
		require.Equal(t, d.UncachedTokens, UncachedTokens(req, cands.Overlap[d.Index], &p))
		if p.Mode == KV || p.Mode == LeastLoaded {
			for _, r := range rows {
				require.LessOrEqual(t, d.Cost, r.Cost)
			}
		}
	}
}

// slowCost is the formula of the package comment, written in the plainest way.
func slowCost(req *Request, cands []Candidate, c Candidate, p *Params) float64 {
	b := float64(p.BlockSize)
	w := 1.0
	if c.Estimated || req.Estimated {
		w = p.EstimatedOverlapWeight
	} else if c.Degraded {
		w = p.DegradedOverlapWeight
	}
	device, host, disk := w*float64(c.OverlapBlocks), w*float64(c.HostBlocks), w*float64(c.DiskBlocks)
	lower := p.HostHitWeight*host + p.DiskHitWeight*disk
	cached := math.Round(b * (device + lower))
	uncached := math.Max(0, float64(req.ISLTokens)-cached)
	shared := math.Max(0, float64(req.SharedBlocks)-float64(c.OverlapBlocks)-float64(c.HostBlocks)-float64(c.DiskBlocks))
	creditBlocks := p.OverlapScoreCredit*device + lower + p.SharedCacheMultiplier*shared
	raw := 0.0
	if p.TrackPrefillTokens {
		raw = float64(c.ActivePrefillTokens) + uncached + cached
	}
	prefill := p.PrefillLoadScale * math.Max(0, raw/b-creditBlocks)
	if !p.TrackPrefillTokens {
		prefill = 0
	}
	decode := float64(c.ActiveDecodeBlocks) + float64(req.NewBlocks)
	if req.Role == worker.Decode && !p.TrackPrefillTokens && p.OverlapScoreCredit > 0 {
		decode = math.Max(0, decode-creditBlocks)
	}
	cost := prefill + decode + p.DecodeActiveRequestWeight*float64(c.ActiveRequests)
	if req.FetchesLacking {
		held, most := device, 0.0
		for _, o := range cands {
			worth := 1.0
			if o.Estimated || req.Estimated {
				worth = p.EstimatedOverlapWeight
			} else if o.Degraded {
				worth = p.DegradedOverlapWeight
			}
			most = math.Max(most, worth*float64(o.OverlapBlocks))
		}
		if c.Starved {
			held = most
		}
		cost += p.FetchCost * math.Max(0, float64(req.RequestBlocks)-held)
	}
	return cost * math.Exp(-math.Tanh(float64(c.TaintWeight)))
}

func TestTheCostIsThatOfThePlainFormula(t *testing.T) {
	for seed := range uint64(600) {
		rng := newRand(seed)
		cands := randomCandidates(1+rng.IntN(150), rng)
		tiers, estimated, degraded, taints := rng.IntN(3) == 0, rng.IntN(4), rng.IntN(4), rng.IntN(3) == 0
		for i := range cands {
			if tiers && rng.IntN(3) == 0 {
				cands[i].HostBlocks, cands[i].DiskBlocks = uint32(rng.IntN(9)), uint32(rng.IntN(9))
			}
			// None, all or some are estimated: the code is different for each case.
			cands[i].Estimated = estimated == 1 || estimated > 1 && rng.IntN(estimated) == 0
			cands[i].Starved = seed%2 == 0 && rng.IntN(4) == 0
			cands[i].Degraded = degraded == 1 || degraded > 1 && rng.IntN(degraded) == 0
			if taints {
				cands[i].TaintWeight = float32(rng.IntN(3)-1) / 4
			}
		}
		p := Params{
			BlockSize:          1 + rng.IntN(64),
			OverlapScoreCredit: float64(rng.IntN(4)) / 2,
			PrefillLoadScale:   float64(rng.IntN(5)) / 2, DecodeActiveRequestWeight: float64(rng.IntN(3)),
			HostHitWeight: 0.75, DiskHitWeight: 0.25, EstimatedOverlapWeight: rng.Float64(), DegradedOverlapWeight: rng.Float64(),
			TrackPrefillTokens: rng.IntN(2) == 0, SharedCacheMultiplier: float64(rng.IntN(3)) / 4,
			FetchCost: float64(rng.IntN(3)) / 2,
		}
		req := &Request{
			Role: worker.Role(1 + rng.IntN(3)), ISLTokens: rng.IntN(2000), RequestBlocks: rng.IntN(50), NewBlocks: rng.IntN(50),
			Estimated: rng.IntN(3) == 0, SharedBlocks: rng.IntN(2) * rng.IntN(60), FetchesLacking: rng.IntN(3) == 0,
		}
		least, columns := math.Inf(1), NewCandidates(cands...)
		columns.Near = new(Shortlist)
		for i, r := range AppendTable(nil, req, columns, &p) {
			want := slowCost(req, cands, cands[i], &p)
			if math.Abs(want-r.Cost) > 1e-9*(1+want) { // require is slow for so many cases
				require.InDelta(t, want, r.Cost, 1e-9*(1+want), "seed %d, candidate %d", seed, i)
			}
			least = min(least, want)
		}
		d, err := Pick(req, columns, &p, 0, rng)
		require.NoError(t, err)
		require.InDelta(t, least, d.Cost, 1e-9*(1+least), "seed %d", seed)
		requireCheapest(t, columns, req, &p, &d)
	}
}

// requireCheapest compares a shortlist with the whole table.
func requireCheapest(t *testing.T, c *Candidates, req *Request, p *Params, d *Decision) {
	near := AppendNear(nil, req, c, p, d)
	require.Equal(t, d.Rank, near[0].Rank)
	require.Equal(t, d.Cost, near[0].Cost)
	all := AppendTable(nil, req, c, p)
	slices.SortStableFunc(all, func(a, b Row) int { return cmp.Compare(a.Cost, b.Cost) })
	all = slices.DeleteFunc(all, func(r Row) bool { return r.Rank == d.Rank })
	for i, r := range near[1:] {
		require.Equal(t, all[i].Cost, r.Cost, "row %d", i+1)
	}
	require.GreaterOrEqual(t, len(near), min(len(all)+1, ShortlistLen))
}

// The short forms of fill.go are compared with coster.of, bit by bit: two candidates of
// equal cost in different chunks must be a tie.
func TestTheShortFormsGiveTheSameBits(t *testing.T) {
	for seed := range uint64(1000) {
		rng := newRand(seed)
		cands := randomCandidates(1+rng.IntN(140), rng)
		some := rng.IntN(3)
		for i := range cands {
			cands[i].Estimated = some == 1
			cands[i].Degraded = some == 2 && i >= 64
			if seed%4 == 0 && i%3 == 0 {
				cands[i].TaintWeight = [...]float32{0.5, -2}[i%2]
			}
			if seed%3 == 0 && i < 64 { // a chunk in which no candidate holds anything of the prompt
				cands[i].OverlapBlocks = 0
			}
		}
		p := DefaultParams()
		p.BlockSize, p.OverlapScoreCredit, p.PrefillLoadScale = 1+rng.IntN(64), 3*rng.Float64(), rng.Float64()
		p.DecodeActiveRequestWeight, p.EstimatedOverlapWeight, p.DegradedOverlapWeight = rng.Float64(), rng.Float64(), rng.Float64()
		p.TrackPrefillTokens, p.FetchCost = rng.IntN(3) > 0, rng.Float64()
		if seed%10 == 0 {
			p = DecodeOverride(p)
		}
		if rng.IntN(2) == 0 {
			p.DecodeActiveRequestWeight = 0
		}
		req := &Request{
			Role: worker.Role(1 + rng.IntN(3)), ISLTokens: rng.IntN(2000), RequestBlocks: rng.IntN(99), NewBlocks: rng.IntN(9),
			Estimated: rng.IntN(4) == 0, FetchesLacking: seed%5 == 0,
		}
		c := NewCandidates(cands...)
		require.Equal(t, len(cands), c.Admit())
		k := newCoster(req, c, &p)
		var buf costs
		for w := range c.in {
			for j := range k.fill(w, &buf) {
				var tm terms
				k.of(w*chunk+j, &tm)
				if tm.cost != buf[j] {
					require.Equal(t, tm.cost, buf[j], "seed %d, candidate %d", seed, w*chunk+j)
				}
			}
		}
	}
}

// A candidate in Out is never picked and never in the shortlist, in any mode and at any
// position. The others are picked as they would be if it were not there.
func TestWhoIsOutIsNeverPicked(t *testing.T) {
	for seed := range uint64(150) {
		rng := newRand(seed)
		cands := randomCandidates(1+rng.IntN(300), rng)
		c, out := NewCandidates(cands...), NewBits(len(cands))
		for i := range cands {
			if rng.IntN(4) > 0 {
				out.Set(i)
			}
		}
		c.Out, c.Near = out, new(Shortlist)
		var left []Candidate
		for i := range cands {
			if !out.Has(i) {
				left = append(left, cands[i])
			}
		}
		for m := range numModes {
			p := DefaultParams()
			p.Mode = m
			if rng.IntN(3) == 0 {
				p.Temperature = 0.3
			}
			req := &Request{Role: worker.Prefill, ISLTokens: 500, RequestBlocks: 31}
			d, err := Pick(req, c, &p, 77, rng)
			if len(left) == 0 {
				require.ErrorIs(t, err, ErrNoCandidate)
				continue
			}
			require.NoError(t, err)
			require.False(t, out.Has(d.Index))
			require.Equal(t, len(left), d.Candidates)
			for n := range c.Near.Len() {
				require.False(t, out.Has(c.Near.Position(n)))
			}
			alone, err := Pick(req, NewCandidates(left...), &p, 77, rng)
			require.NoError(t, err)
			if m == RoundRobin {
				require.Equal(t, alone.Rank, d.Rank)
			}
			if m == KV && p.Temperature == 0 || m == LeastLoaded {
				require.Equal(t, alone.Cost, d.Cost)
			}
		}
	}
}

func TestPickAllocatesNothing(t *testing.T) {
	rng := newRand(1)
	cands := NewCandidates(randomCandidates(200, rng)...)
	cands.Near = new(Shortlist)
	req := &Request{Role: worker.Prefill, ISLTokens: 1000, RequestBlocks: 62}
	for m := range numModes {
		for _, temperature := range []float64{0, 0.001, 1} {
			p := DefaultParams()
			p.Mode, p.Temperature = m, temperature
			p.PrefillTokensThreshold = 3000
			once := func() { _, _ = Pick(req, cands, &p, 3, rng) }
			once()
			require.Zero(t, testing.AllocsPerRun(100, once), m)
		}
	}
	p := DefaultParams()
	rows := make([]Row, 0, len(cands.Ranks))
	d, err := Pick(req, cands, &p, 0, rng)
	require.NoError(t, err)
	require.Zero(t, testing.AllocsPerRun(100, func() { rows = AppendTable(rows[:0], req, cands, &p) }))
	require.Zero(t, testing.AllocsPerRun(100, func() { rows = AppendNear(rows[:0], req, cands, &p, &d) }))
}

// Both ways of sample must give the probabilities of the softmax: with many candidates
// of which one is far cheaper, so that most throws fail, and with many of similar cost.
func TestSampleDrawsByWeightWhicheverWayItTakes(t *testing.T) {
	const n, draws = 500, 10000
	for _, temperature := range []float64{0.05, 0.12, 0.5} {
		c := NewCandidates(make([]Candidate, n)...)
		for i := range n {
			c.Decode[i] = 100
		}
		c.Decode[300], c.Decode[50] = 0, 10
		p := Params{Mode: KV, BlockSize: 16, Temperature: temperature}
		weight := func(cost float64) float64 { return math.Exp(-cost / 100 / temperature) }
		sum := (n-2)*weight(100) + weight(0) + weight(10)
		got := map[int]float64{}
		rng := newRand(3)
		for range draws {
			d, err := Pick(&Request{}, c, &p, 0, rng)
			require.NoError(t, err)
			got[d.Index]++
		}
		require.InDelta(t, weight(0)/sum, got[300]/draws, 0.02)
		require.InDelta(t, weight(10)/sum, got[50]/draws, 0.02)
	}
}

func TestNthFindsEachMember(t *testing.T) {
	rng := newRand(9)
	for range 200 {
		n := 1 + rng.IntN(300)
		b, want := NewBits(n), []int{}
		for i := range n {
			if rng.IntN(3) == 0 {
				b.Set(i)
				want = append(want, i)
			}
		}
		require.Equal(t, len(want), b.Count())
		for k, i := range want {
			require.Equal(t, i, b.nth(k))
		}
		require.Equal(t, -1, b.nth(len(want)))
	}
}

func TestTheQueueLimitCountsThoseWhoCouldTakeTheRequest(t *testing.T) {
	c := NewCandidates(
		Candidate{ActivePrefillTokens: 100}, Candidate{ActivePrefillTokens: 50}, Candidate{ActivePrefillTokens: 1 << 30, LoadUnknown: true})
	require.NoError(t, CheckQueue(c, 0))
	require.NoError(t, CheckQueue(c, 151))
	var full *SaturatedError
	require.ErrorAs(t, CheckQueue(c, 150), &full)
	require.Equal(t, SaturatedError{QueuedISLTokens: 150, MaxQueuedISLTokens: 150}, *full)
	require.ErrorContains(t, full, "150 prompt tokens are queued: expected fewer than 150")
	c.Out = NewBits(3)
	c.Out.Set(0)
	require.NoError(t, CheckQueue(c, 51))
	require.ErrorAs(t, CheckQueue(c, 50), &full)
	c.Out[0] = 7
	require.NoError(t, CheckQueue(c, 1))
}

// Whole words are added in a faster way: the result must be that of a loop over all
// candidates.
func TestTheLeastAndTheSumOfTheQueuesAreThoseOfEachCandidate(t *testing.T) {
	rng := newRand(17)
	for range 300 {
		n := 1 + rng.IntN(300)
		rows := make([]Candidate, n)
		for i := range rows {
			rows[i].ActivePrefillTokens = int64(10 + rng.IntN(1000))
		}
		c := NewCandidates(rows...)
		c.Out, c.LoadUnknown = NewBits(n), NewBits(n)
		for range rng.IntN(4) { // only a few, so that most words stay whole; they have the extreme values
			i, j := rng.IntN(n), rng.IntN(n)
			c.Out.Set(i)
			c.LoadUnknown.Set(j)
			c.Prefill[i], c.Prefill[j] = float64(i%5), float64(j%5)
		}
		sum := 0.0
		for i := range rows {
			if !c.Out.Has(i) && !c.LoadUnknown.Has(i) {
				sum += c.Prefill[i]
			}
		}
		require.Equal(t, int64(sum), QueuedTokens(c))
	}
}
