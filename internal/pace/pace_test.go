package pace

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// player lets ranks compute legs.
type player struct {
	f Fleet[worker.Rank]
	r *rand.Rand
	// scatter is that of the logarithms of times.
	scatter float64
}

func newPlayer(seed uint64, scatter float64) *player {
	return &player{r: rand.New(rand.NewPCG(seed, 1)), scatter: scatter}
}

// leg sends a leg to a rank of this speed.
func (p *player) leg(at worker.Rank, s Speed) {
	tokens := 100 + p.r.Int64N(16_000)
	took := s.Seconds(float64(tokens)) * math.Exp(p.scatter*p.r.NormFloat64())
	p.f.Ended(at, time.Duration(took*float64(time.Second)), tokens)
}

func ranks(n int) (out []worker.Rank) {
	for i := range n {
		out = append(out, worker.Rank{ID: worker.ID(i + 1)})
	}
	return out
}

var usual = Speed{PerToken: 1.0 / 8000, PerRequest: 0.02}

func (p *player) slowdown(at worker.Rank) float64 {
	s, _ := p.f.Of(at)
	return s.Seconds(8000) / usual.Seconds(8000)
}

// TestTheFleetsSpeedIsLearned: within a few percent, also with legs that scatter.
func TestTheFleetsSpeedIsLearned(t *testing.T) {
	p := newPlayer(1, 0.3)
	_, known := p.f.Of(worker.Rank{ID: 1})
	require.False(t, known)
	for i := range 800 {
		p.leg(ranks(8)[i%8], usual)
	}
	mean, known := p.f.Mean()
	require.True(t, known)
	require.InEpsilon(t, usual.Seconds(8000), mean.Seconds(8000), 0.2)
	for _, at := range ranks(9) { // the ninth has computed nothing yet
		s, known := p.f.Of(at)
		require.True(t, known)
		require.Equal(t, mean, s, "it is like the fleet")
	}
}

// TestASlowRankIsKnown: and only that one.
func TestASlowRankIsKnown(t *testing.T) {
	p := newPlayer(2, 0.3)
	all, slow := ranks(8), Speed{2 * usual.PerToken, 2 * usual.PerRequest}
	for i := range 640 {
		s := usual
		if i%8 == 3 {
			s = slow
		}
		p.leg(all[i%8], s)
	}
	require.Greater(t, p.slowdown(all[3]), 1.6)
	require.Less(t, p.slowdown(all[2]), 1.4)
}

// TestASuddenChangeIsFound: after twenty of its legs a rank that has halved its speed is believed to be
// slower by 1.6 times, and as soon after it is well again.
func TestASuddenChangeIsFound(t *testing.T) {
	for seed := range uint64(50) {
		p := newPlayer(seed, 0.25)
		all, slow := ranks(8), Speed{2 * usual.PerToken, 2 * usual.PerRequest}
		play := func(rounds int, s Speed) {
			for i := range 8 * rounds {
				if i%8 == 5 {
					p.leg(all[5], s)
				} else {
					p.leg(all[i%8], usual)
				}
			}
		}
		play(100, usual)
		play(20, slow)
		require.Greater(t, p.slowdown(all[5]), 1.6, "seed %d", seed)
		play(60, slow)
		require.InDelta(t, 2, p.slowdown(all[5]), 0.6)
		play(25, usual)
		require.Less(t, p.slowdown(all[5]), 1.3, "seed %d", seed)
	}
}

// TestNoChangeIsFoundWhereThereIsNone: in many legs that scatter.
func TestNoChangeIsFoundWhereThereIsNone(t *testing.T) {
	p := newPlayer(7, 0.4)
	for i := range 80_000 {
		p.leg(ranks(8)[i%8], usual)
		if i > 200 && i%97 == 0 {
			require.Less(t, p.slowdown(ranks(8)[i%8]), 1.35, i)
		}
	}
}

// TestOneLegThatTookVeryLongMovesLittle: nor do legs that are nothing to learn from.
func TestOneLegThatTookVeryLongMovesLittle(t *testing.T) {
	p := newPlayer(3, 0.1)
	for i := range 400 {
		p.leg(ranks(8)[i%8], usual)
	}
	at := ranks(8)[0]
	before := p.slowdown(at)
	p.f.Ended(at, time.Hour, 100)
	p.f.Ended(at, 0, 100)
	p.f.Ended(at, -time.Hour, 100)
	p.f.Ended(at, time.Hour, 0)
	p.f.Ended(at, time.Hour, -5)
	require.InDelta(t, before, p.slowdown(at), 0.1)
	p.f.Keep(func(r worker.Rank) bool { return r != at })
	require.Zero(t, p.f.Legs(at))
	require.NotZero(t, p.f.Legs(ranks(8)[1]))
}

// TestValuesAreFinite: whatever is told.
// TestOneLegThatTookVeryLongMovesLittleOfManyRanks: of the pairs of a large fleet hardly one has
// legs enough to tell by itself what is usual.
func TestOneLegThatTookVeryLongMovesLittleOfManyRanks(t *testing.T) {
	for _, n := range []int{4, 16, 64} {
		var f Fleet[int]
		for i := range 400 {
			f.Ended(i%(n*n), 20*time.Millisecond, 1000)
		}
		f.Ended(1, time.Minute, 1000)
		mean, known := f.Mean()
		require.True(t, known)
		require.Less(t, mean.Seconds(1000), 0.024, "%d by %d", n, n)
	}
}

func TestValuesAreFinite(t *testing.T) {
	var f Fleet[worker.Rank]
	r := rand.New(rand.NewPCG(11, 1))
	at := worker.Rank{ID: 1}
	for range 10_000 {
		f.Ended(at, time.Duration(r.Int64())>>r.UintN(62)-time.Duration(r.UintN(5)), r.Int64()>>r.UintN(62))
		s, _ := f.Of(at)
		for _, v := range []float64{s.PerToken, s.PerRequest} {
			require.False(t, math.IsNaN(v) || math.IsInf(v, 0) || v < 0, "%v", s)
		}
	}
}

// TestARankThatGetsNoLegsIsNotSlowForEver: once its mates have computed some hundred legs each it is believed to be
// like them.
func TestARankThatGetsNoLegsIsNotSlowForEver(t *testing.T) {
	p := newPlayer(7, 0.1)
	slow := Speed{PerToken: 10 * usual.PerToken, PerRequest: 10 * usual.PerRequest}
	all := ranks(8)
	for range 100 {
		p.leg(all[0], slow)
		for _, at := range all[1:] {
			p.leg(at, usual)
		}
	}
	require.Greater(t, p.slowdown(all[0]), 5.0)
	mean, _ := p.f.Mean()
	legs := 0
	for ; p.slowdown(all[0]) > 1.5*mean.Seconds(8000)/usual.Seconds(8000); legs++ {
		p.leg(all[1+legs%7], usual)
		mean, _ = p.f.Mean()
		require.Less(t, legs, 2000)
	}
	p.leg(all[0], slow)
	require.Greater(t, p.slowdown(all[0]), 5.0, "one leg tells that it still is")
}

// TestWhatIsKnownIsKept: another process believes the same.
func TestWhatIsKnownIsKept(t *testing.T) {
	p := newPlayer(7, 0.1)
	all := ranks(4)
	for i := range 400 {
		p.leg(all[i%4], Speed{PerToken: 1e-4 * float64(1+i%4/3), PerRequest: 0.01}) // the last is half as fast
	}
	b, err := json.Marshal(&p.f)
	require.NoError(t, err)
	var later Fleet[worker.Rank]
	require.NoError(t, json.Unmarshal(b, &later))
	for _, r := range all {
		is, _ := p.f.Of(r)
		got, known := later.Of(r)
		require.True(t, known)
		require.InEpsilon(t, is.PerToken, got.PerToken, 1e-9)
		require.InEpsilon(t, p.f.Legs(r), later.Legs(r), 1e-9)
	}
	for _, bad := range []string{`{`, `[]`, `{"All":{"N":-1}}`, `{"Ranks":[{"At":{"ID":1},"Legs":{"XX":-1}}]}`} {
		require.Error(t, json.Unmarshal([]byte(bad), &later), bad)
	}
}

// TestWhatOthersHaveSeenMakesUpForWhatIsLacking: a fleet that has seen nothing believes another's, and its own
// legs count more and more.
func TestWhatOthersHaveSeenMakesUpForWhatIsLacking(t *testing.T) {
	usual, slow := Speed{1e-4, 0.02}, Speed{3e-4, 0.02}
	other, own := newPlayer(1, 0.2), newPlayer(2, 0.2)
	all := ranks(4)
	for range 60 {
		for _, r := range all[1:] {
			other.leg(r, usual)
		}
		other.leg(all[0], slow)
	}
	own.f.Share(7, &other.f)
	s, known := own.f.Of(all[0])
	require.True(t, known)
	require.InEpsilon(t, slow.Seconds(8000), s.Seconds(8000), 0.3)
	require.Greater(t, own.f.Legs(all[0]), float64(enough))
	s, _ = own.f.Of(all[1])
	require.InEpsilon(t, usual.Seconds(8000), s.Seconds(8000), 0.3)
	b, err := json.Marshal(&own.f)
	require.NoError(t, err)
	require.NotContains(t, string(b), `"Legs"`, "what others have seen is not passed on")

	for range 60 { // it is slow no more
		own.leg(all[0], usual)
	}
	s, _ = own.f.Of(all[0])
	require.InEpsilon(t, usual.Seconds(8000), s.Seconds(8000), 0.3, "one's own legs count")
	own.f.Share(7, nil)
	fresh := newPlayer(3, 0)
	fresh.f.Share(7, &own.f)
	fresh.f.Share(7, nil)
	_, known = fresh.f.Mean()
	require.False(t, known)
}
