package hitloss

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

var (
	one   = worker.Rank{ID: 1}
	two   = worker.Rank{ID: 2, DPRank: 3}
	began = time.Unix(1000, 0)
)

func TestARankThatLiesIsFoundDiscountedAndHealed(t *testing.T) {
	t.Parallel()
	var j Judge
	for i := range 4 {
		require.Equal(t, Same, j.Add(one, 640, 0, began), i)
	}
	require.Nil(t, j.Discounts())
	require.Empty(t, j.Doubted(began))
	require.Equal(t, Found, j.Add(one, 640, 160, began))
	require.Equal(t, Same, j.Add(two, 640, 640, began), "another tells the truth")
	require.Len(t, j.Discounts(), 1)
	require.InDelta(t, 0.057, j.Discounts()[one], 0.001)
	d := j.Doubted(began)
	require.Equal(t, []Doubt{{Rank: one, Since: began, Told: d[0].Told, Delivered: 160, Prompts: 5, Short: 5}}, d)
	require.Equal(t, Same, j.Add(one, 640, 0, began), "it is found once")
	for i := range findAt - 1 {
		require.Equal(t, Same, j.Add(one, 640, 700, began), i)
		require.Greater(t, j.Discounts()[one], 0.05*float64(min(i, 12)), "what it delivers counts again")
	}
	require.Equal(t, Healed, j.Add(one, 640, 640, began))
	require.Nil(t, j.Discounts())
	require.Empty(t, j.Doubted(began))
}

// TestARankOfWhichNoEventComesIsMute, if it computes prompts one after the other, until one comes.
func TestARankOfWhichNoEventComesIsMute(t *testing.T) {
	t.Parallel()
	var j Judge
	at := func(n int) time.Time { return began.Add(time.Duration(n) * time.Second) }
	require.Equal(t, Same, j.Computed(one, 7, at(0), at(1)))
	for i := range 30 {
		require.Equal(t, Same, j.Computed(one, 7, at(0), at(2)), "%d: picked before the one before was over", i)
		require.Equal(t, Same, j.Computed(two, uint64(i+8), at(2*i), at(2*i+1)), "one whose events come")
	}
	for i := range muteAt - 1 {
		require.Equal(t, Same, j.Computed(one, 7, at(3+2*i), at(4+2*i)), i)
	}
	require.Equal(t, Mute, j.Computed(one, 7, at(100), at(101)))
	require.Equal(t, Same, j.Computed(one, 7, at(102), at(103)))
	require.Equal(t, []Doubt{{Rank: one, Since: at(101), Mute: true}}, j.Doubted(at(103)))
	require.Nil(t, j.Discounts(), "nothing was short")
	require.Equal(t, Healed, j.Computed(one, 8, at(104), at(105)))
	require.Empty(t, j.Doubted(at(105)))
}

func TestOfRanksThatAreGoneOrSayNothingMoreNothingIsKept(t *testing.T) {
	t.Parallel()
	var j Judge
	for range 9 {
		j.Add(one, 640, 0, began)
		j.Add(two, 640, 0, began.Add(time.Minute))
	}
	require.Len(t, j.Doubted(began.Add(2*time.Minute)), 2)
	require.Len(t, j.Doubted(began.Add(keptFor)), 1, "an hour has passed without a prompt of it")
	j.Keep(func(r worker.Rank) bool { return r != two })
	require.Empty(t, j.ranks)
	j.Add(one, 640, 0, began)
	j.Add(one, 640, 0, began.Add(-time.Hour)) // a clock that jumps
	require.Len(t, j.ranks, 1)
}

// TestALiarIsFoundWithinTwentyPrompts, of which half and more are short.
func TestALiarIsFoundWithinTwentyPrompts(t *testing.T) {
	t.Parallel()
	late := 0
	for seed := range uint64(1000) {
		rng := rand.New(rand.NewPCG(seed, 3))
		var j Judge
		n, found := 0, false
		for ; !found && n < 1000; n++ {
			delivered := int64(640)
			if rng.Float64() < 0.75 {
				delivered = rng.Int64N(320)
			}
			found = j.Add(one, 640, delivered, began) == Found
		}
		if n > 20 {
			late++
		}
	}
	require.Less(t, late, 10, "of 1,000, where three prompts in four are short")
}

// TestChanceFindsNobody: of 64 ranks with 10,000 prompts each, one prompt in twenty is short by
// chance; the rule's own number is one false alarm in 60,000 prompts and more.
func TestChanceFindsNobody(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(11, 11))
	alarms := map[float64]int{}
	for _, noise := range []float64{0.01, 0.05} {
		for range 64 {
			var j Judge
			for range 10_000 {
				delivered := int64(640)
				if rng.Float64() < noise {
					delivered = 0
				}
				if j.Add(one, 640, delivered, began) == Found {
					alarms[noise]++
				}
			}
		}
	}
	require.Zero(t, alarms[0.01])
	require.LessOrEqual(t, alarms[0.05], 64*10_000/60_000)
	t.Log(alarms)
}

func TestAPromptOfWhichLittleWasToldSaysNothing(t *testing.T) {
	t.Parallel()
	require.False(t, Judgeable(31, 16))
	require.True(t, Judgeable(32, 16))
	require.False(t, Judgeable(1, 0))
}
