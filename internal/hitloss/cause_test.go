package hitloss

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEachLostTokenHasOneCause(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		p    Prompt
		want Lost
	}{
		"nothing is lost where all is delivered":             {Prompt{Tokens: 641, BlockSize: 16, Best: 640, Available: 640, Predicted: 640, Told: 640, Delivered: 640, Counted: true}, Lost{}},
		"the block of the last token is always computed":     {Prompt{Tokens: 640, BlockSize: 16, Best: 640, Available: 640, Predicted: 640, Told: 640, Delivered: 624, Counted: true}, Lost{}},
		"a block less is the engine's rounding":              {Prompt{Tokens: 641, BlockSize: 16, Best: 640, Available: 640, Predicted: 640, Told: 640, Delivered: 624, Counted: true}, Lost{}},
		"another was cheaper":                                {Prompt{Tokens: 641, BlockSize: 16, Best: 640, Available: 640, Predicted: 160, Told: 160, Delivered: 160, Counted: true}, Lost{Load: 480}},
		"another was cheaper, and no usage was told":         {Prompt{Tokens: 641, BlockSize: 16, Best: 640, Available: 640, Predicted: 160, Told: 160}, Lost{Load: 480}},
		"another was cheaper, and held more than was known":  {Prompt{Tokens: 641, BlockSize: 16, Best: 640, Available: 640, Predicted: 160, Told: 160, Delivered: 320, Counted: true}, Lost{Load: 320}},
		"a constraint and the load":                          {Prompt{Tokens: 641, BlockSize: 16, Best: 640, Out: Constraint, Available: 320, Predicted: 160, Told: 160, Delivered: 160, Counted: true}, Lost{Constraint: 320, Load: 160}},
		"the best was aside":                                 {Prompt{Tokens: 641, BlockSize: 16, Best: 640, Out: Aside, Delivered: 0, Counted: true}, Lost{Aside: 640}},
		"the best's events were missing, so it counted less": {Prompt{Tokens: 641, BlockSize: 16, Best: 640, Available: 640, Missing: true, Predicted: 160, Told: 160, Delivered: 160, Counted: true}, Lost{EngineSilent: 480}},
		"the index is wrong":                                 {Prompt{Tokens: 641, BlockSize: 16, Best: 640, Available: 640, Predicted: 640, Told: 640, Kept: 640, Delivered: 0, Counted: true}, Lost{StaleIndex: 640}},
		"blocks went from the middle on":                     {Prompt{Tokens: 641, BlockSize: 16, Best: 640, Available: 640, Predicted: 640, Told: 640, Kept: 320, Delivered: 320, Counted: true}, Lost{Evicted: 320}},
		"a part went, and a part was never there":            {Prompt{Tokens: 641, BlockSize: 16, Best: 640, Available: 640, Predicted: 640, Told: 640, Kept: 320, Delivered: 160, Counted: true}, Lost{StaleIndex: 160, Evicted: 320}},
		"blocks of which no event has told":                  {Prompt{Tokens: 641, BlockSize: 16, Best: 640, Available: 640, Predicted: 640, Told: 320, Kept: 320, Delivered: 320, Counted: true}, Lost{Estimate: 320}},
		"a guess of ours and of another replica":             {Prompt{Tokens: 641, BlockSize: 16, Best: 640, Available: 640, Predicted: 640, Heard: 480, Delivered: 0, Counted: true}, Lost{Estimate: 160, OtherReplica: 480}},
		"events were missing at the pick":                    {Prompt{Tokens: 641, BlockSize: 16, Best: 640, Available: 640, Predicted: 640, Told: 640, Kept: 640, Silent: true, Delivered: 0, Counted: true}, Lost{EngineSilent: 640}},
		"the request has its prompt computed":                {Prompt{Tokens: 641, BlockSize: 16, Best: 640, Available: 640, Predicted: 640, Told: 320, Kept: 320, Heard: 64, Silent: true, Barred: true, Delivered: 0, Counted: true}, Lost{Constraint: 640}},
		"more is delivered than anybody knew":                {Prompt{Tokens: 641, BlockSize: 16, Best: 320, Out: Aside, Available: 160, Predicted: 160, Told: 160, Delivered: 640, Counted: true}, Lost{}},
		"a prompt of nothing":                                {Prompt{Best: 5, Available: 5, Predicted: 5, Told: 5}, Lost{}},
		"what cannot be is no loss either":                   {Prompt{Tokens: 641, BlockSize: -3, Best: -1, Available: -1, Predicted: -5, Told: 9, Kept: -1, Heard: -9, Delivered: -7, Counted: true}, Lost{}},
	} {
		require.Equal(t, c.want, Split(&c.p), name)
	}
}

// TestTheCausesSumUpToWhatWasLost, whatever is known of a prompt, and no guess has more of it than was guessed.
func TestTheCausesSumUpToWhatWasLost(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(7, 7))
	for range 100_000 {
		size := int64(1 + rng.IntN(64))
		some := func(most int64) int64 { return size * rng.Int64N(most/size+1) }
		p := Prompt{Tokens: 1 + rng.Int64N(4000), BlockSize: size, Out: []Cause{Constraint, Aside}[rng.IntN(2)], Missing: rng.IntN(4) == 0, Silent: rng.IntN(4) == 0, Barred: rng.IntN(4) == 0}
		p.Best = some(p.Tokens)
		p.Available = some(p.Best)
		p.Predicted = some(p.Available)
		p.Told = some(p.Predicted)
		p.Kept, p.Heard = some(p.Told), some(p.Predicted)
		p.Delivered, p.Counted = some(p.Tokens), rng.IntN(8) > 0
		l := Split(&p)
		most := (p.Tokens - 1) / size * size
		got := p.Delivered
		if !p.Counted || got < p.Predicted && min(p.Predicted, most)-got <= size {
			got = min(p.Predicted, most)
		}
		require.Equal(t, max(min(p.Best, most)-got, 0), l.Sum(), "%+v", p)
		for c, n := range l {
			require.GreaterOrEqual(t, n, int64(0), "%+v: %s", p, Cause(c))
		}
		require.LessOrEqual(t, l[Estimate]+l[OtherReplica], p.Predicted-p.Told, "%+v", p)
		require.LessOrEqual(t, l[StaleIndex]+l[Evicted], p.Told, "%+v", p)
	}
}

func TestALossIsToldInOneLine(t *testing.T) {
	t.Parallel()
	require.Equal(t, "lost 512 of 2048 tokens: load 512", (&Lost{Load: 512}).Text(2048))
	require.Equal(t, "lost 48 of 64 tokens: stale_index 16, evicted 32", (&Lost{StaleIndex: 16, Evicted: 32}).Text(64))
	require.Empty(t, (&Lost{}).Text(64))
	require.Equal(t, "invalid", Causes.String())
}
