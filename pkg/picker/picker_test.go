package picker

import (
	"math"
	"math/rand/v2"
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
	for _, name := range []string{"mode", "block_size", "overlap_score_credit", "temperature", "host_hit_weight", "prefill_load_scale"} {
		require.ErrorContains(t, err, name)
	}
	require.NotContains(t, err.Error(), "disk_hit_weight")
}

func TestDecodeOverrideKeepsWhatIsNotAboutThePrompt(t *testing.T) {
	p := DefaultParams()
	p.Temperature, p.DecodeActiveRequestWeight, p.BlockSize, p.Mode = 0.7, 3, 32, PowerOfTwo
	want := p
	want.OverlapScoreCredit, want.AssumeKVReuse, want.TrackPrefillTokens = 0, false, false
	require.Equal(t, want, DecodeOverride(p))
}

func TestNoCandidateLeavesTheCursor(t *testing.T) {
	for m := range numModes {
		d, err := Pick(&Request{}, nil, &Params{Mode: m}, 9, newRand(1))
		require.ErrorIs(t, err, ErrNoCandidate)
		require.Equal(t, Decision{Index: -1, Cursor: 9}, d)
	}
}

func TestOnlyRoundRobinMovesTheCursor(t *testing.T) {
	cands := randomCandidates(5, newRand(1))
	for m := range numModes {
		d, err := Pick(&Request{ISLTokens: 100}, cands, &Params{Mode: m, BlockSize: 16}, 9, newRand(1))
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

// chiSquared is against a uniform draw; 99.9th percentiles of few degrees of
// freedom are under 30.
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
			counts, rng := make([]int, len(tied)), newRand(7)
			for range 10000 {
				d, err := Pick(&Request{}, cands, &Params{Mode: mode, BlockSize: 16}, 0, rng)
				require.NoError(t, err)
				require.Contains(t, at, d.Index)
				counts[at[d.Index]]++
			}
			require.Less(t, chiSquared(counts), 30.0, "%v %v %v", mode, tied, counts)
		}
	}
}

func TestRandomAndEqualSoftmaxAreUniform(t *testing.T) {
	cands := make([]Candidate, 8)
	for _, p := range []Params{{Mode: Random}, {Mode: KV, Temperature: 0.5, BlockSize: 16}} {
		counts, rng := make([]int, len(cands)), newRand(3)
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
		counts, rng := make([]float64, 4), newRand(11)
		for range draws {
			d, err := Pick(&Request{}, cands, &p, 0, rng)
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

func TestPowerOfTwoComparesTwoDifferentOnes(t *testing.T) {
	cands := []Candidate{{ActiveRequests: 1}, {ActiveRequests: 2}, {ActiveRequests: 3}}
	counts, rng := make([]int, 3), newRand(5)
	for range 9000 {
		d, err := Pick(&Request{}, cands, &Params{Mode: PowerOfTwo}, 0, rng)
		require.NoError(t, err)
		counts[d.Index]++
	}
	require.Zero(t, counts[2])
	require.InDelta(t, 6000, counts[0], 300) // two of the three pairs hold it
}

func TestTheTableHasTheCostThatThePickSaw(t *testing.T) {
	rng := newRand(13)
	for range 200 {
		cands := randomCandidates(1+rng.IntN(30), rng)
		p := DefaultParams()
		p.Mode = Mode(rng.IntN(int(numModes)))
		p.OverlapScoreCreditDecay = float64(rng.IntN(3))
		req := &Request{Role: worker.Role(1 + rng.IntN(3)), ISLTokens: rng.IntN(500), NewBlocks: rng.IntN(9), Estimated: rng.IntN(2) == 0}
		d, err := Pick(req, cands, &p, rng.Uint64(), rng)
		require.NoError(t, err)
		rows := AppendTable(nil, req, cands, &p)
		require.Equal(t, rows[d.Index].Cost, d.Cost)
		require.Equal(t, rows[d.Index].UncachedTokens, UncachedTokens(req, &cands[d.Index], &p))
		if p.Mode == KV || p.Mode == LeastLoaded {
			for _, r := range rows {
				require.LessOrEqual(t, d.Cost, r.Cost)
			}
		}
	}
}

// slowCost is the formula of the package comment written out plainly.
func slowCost(req *Request, cands []Candidate, c Candidate, p *Params) float64 {
	b := float64(p.BlockSize)
	w := 1.0
	if c.Estimated || req.Estimated {
		w = p.EstimatedOverlapWeight
	}
	device, host, disk := w*float64(c.OverlapBlocks), w*float64(c.HostBlocks), w*float64(c.DiskBlocks)
	lower := p.HostHitWeight*host + p.DiskHitWeight*disk
	cached := math.Round(b * (device + lower))
	uncached := math.Max(0, float64(req.ISLTokens)-cached)
	least := math.Inf(1)
	for _, o := range cands {
		least = math.Min(least, float64(o.ActivePrefillTokens))
	}
	decay := 1 / (1 + p.OverlapScoreCreditDecay*((float64(c.ActivePrefillTokens)-least)/b)/math.Max(1, float64(req.RequestBlocks)))
	creditBlocks := p.OverlapScoreCredit*decay*device + lower
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
	return cost * math.Exp(-math.Tanh(float64(c.TaintWeight)))
}

func TestTheCostIsThatOfThePlainFormula(t *testing.T) {
	for seed := range uint64(2000) {
		rng := newRand(seed)
		cands := randomCandidates(1+rng.IntN(12), rng)
		for i := range cands {
			if rng.IntN(3) == 0 {
				cands[i].HostBlocks, cands[i].DiskBlocks = uint32(rng.IntN(9)), uint32(rng.IntN(9))
			}
			cands[i].Estimated = rng.IntN(4) == 0
			cands[i].TaintWeight = float32(rng.IntN(3)-1) / 4
		}
		p := Params{
			BlockSize:               1 + rng.IntN(64),
			OverlapScoreCredit:      float64(rng.IntN(4)) / 2,
			OverlapScoreCreditDecay: float64(rng.IntN(3)) / 2,
			PrefillLoadScale:        float64(rng.IntN(5)) / 2, DecodeActiveRequestWeight: float64(rng.IntN(3)),
			HostHitWeight: 0.75, DiskHitWeight: 0.25, EstimatedOverlapWeight: rng.Float64(),
			TrackPrefillTokens: rng.IntN(2) == 0, AssumeKVReuse: rng.IntN(2) == 0,
		}
		req := &Request{
			Role: worker.Role(1 + rng.IntN(3)), ISLTokens: rng.IntN(2000), RequestBlocks: rng.IntN(50), NewBlocks: rng.IntN(50),
			Estimated: rng.IntN(3) == 0,
		}
		least := math.Inf(1)
		for i, r := range AppendTable(nil, req, cands, &p) {
			want := slowCost(req, cands, cands[i], &p)
			require.InDelta(t, want, r.Cost, 1e-9*(1+want), "seed %d, candidate %d", seed, i)
			least = min(least, want)
		}
		d, err := Pick(req, cands, &p, 0, rng)
		require.NoError(t, err)
		require.InDelta(t, least, d.Cost, 1e-9*(1+least), "seed %d", seed)
	}
}

func TestTheShortFormGivesTheSameBits(t *testing.T) {
	rng := newRand(21)
	for range 5000 {
		cands := randomCandidates(1, rng)
		p := DefaultParams()
		p.BlockSize, p.OverlapScoreCredit, p.PrefillLoadScale = 1+rng.IntN(64), rng.Float64(), rng.Float64()
		p.DecodeActiveRequestWeight = rng.Float64()
		req := &Request{Role: worker.Prefill, ISLTokens: rng.IntN(2000), NewBlocks: rng.IntN(9)}
		k := newCoster(req, cands, &p)
		require.True(t, k.straight() && cands[0].plain())
		var tm terms
		k.of(&cands[0], &tm)
		require.Equal(t, tm.cost, k.cost(&cands[0]))
	}
}

func TestPickAllocatesNothing(t *testing.T) {
	rng := newRand(1)
	cands := randomCandidates(64, rng)
	req := &Request{Role: worker.Prefill, ISLTokens: 1000, RequestBlocks: 62}
	for m := range numModes {
		for _, temperature := range []float64{0, 1} {
			p := DefaultParams()
			p.Mode, p.Temperature, p.OverlapScoreCreditDecay = m, temperature, 1
			require.Zero(t, testing.AllocsPerRun(100, func() {
				_, _ = Pick(req, cands, &p, 3, rng)
			}), m)
		}
	}
	p := DefaultParams()
	rows := make([]Row, 0, len(cands))
	require.Zero(t, testing.AllocsPerRun(100, func() { rows = AppendTable(rows[:0], req, cands, &p) }))
	require.Zero(t, testing.AllocsPerRun(100, func() { UncachedTokens(req, &cands[0], &p) }))
}
