package tokens

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/hashvectors"
	"github.com/seed-60ae5743/baton/internal/openai"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// A prompt must have the same hashes as the blocks that it becomes. pkg/kvevents compares
// those with the same vectors.
func TestPromptsHashToVectorsOfAnotherImplementation(t *testing.T) {
	vectors, err := hashvectors.Read("../kvindex/testdata/vectors/hashes.txt")
	require.NoError(t, err)
	r := newResolver(t, Config{})
	eagle := 0
	for _, v := range vectors {
		if v.Objects != nil || len(v.Tokens) == 0 {
			continue // no request has ids together with media, or has no ids
		}
		t.Run(v.Name, func(t *testing.T) {
			body, err := json.Marshal(map[string]any{"model": "m", "prompt": v.Tokens})
			require.NoError(t, err)
			q := query(t, openai.Completions, string(body))
			q.BlockSize, q.Eagle, q.Salt = v.BlockSize, v.Eagle, kvindex.Salt{LoRA: v.LoRA, CacheSalt: v.CacheSalt}
			p, ok := r.Fast(q, new(Scratch))
			require.True(t, ok)
			require.Equal(t, FromRequest, p.Source)
			require.Len(t, p.Hashes, len(v.Local))
			for i, h := range p.Hashes {
				require.Equal(t, kvindex.LocalHash(v.Local[i]), h, "block %d", i)
			}
		})
		if v.Eagle {
			eagle++
		}
	}
	require.Greater(t, eagle, 4)
}

func TestATokenizersAnswerIsHashedAsThePoolsBlocksAre(t *testing.T) {
	tk := newTokenizer(t)
	r := newResolver(t, patient)
	q := text(t, "abcdefghi")
	for _, q.Eagle = range []bool{false, true} {
		p, err := r.Engine(t.Context(), q, []worker.Endpoint{tk.ep})
		require.NoError(t, err)
		want := kvindex.AppendLocalHashes
		if q.Eagle {
			want = kvindex.AppendPairHashes
		}
		require.Equal(t, want(nil, p.Tokens, 4, kvindex.Salt{}.Seed()), p.Hashes)
		require.Len(t, p.Hashes, 2)
		cached, ok := r.Fast(q, new(Scratch))
		require.True(t, ok)
		require.Equal(t, p.Hashes, cached.Hashes)
	}
}

func TestNoMoreBlocksAreHashedThanIsAllowed(t *testing.T) {
	r := newResolver(t, Config{MaxBlocks: 2})
	for name, c := range map[string]struct {
		eagle  bool
		tokens string
		want   int
	}{
		"fewer":                             {false, "1,2,3,4,5,6,7", 1},
		"as many":                           {false, "1,2,3,4,5,6,7,8", 2},
		"more":                              {false, "1,2,3,4,5,6,7,8,9,10,11,12", 2},
		"pairs, one token short of as many": {true, "1,2,3,4,5,6,7,8", 1},
		"as many of pairs":                  {true, "1,2,3,4,5,6,7,8,9", 2},
		"more of pairs":                     {true, "1,2,3,4,5,6,7,8,9,10,11,12,13", 2},
		"no pair":                           {true, "1", 0},
	} {
		t.Run(name, func(t *testing.T) {
			q := query(t, openai.Completions, `{"model":"m","prompt":[`+c.tokens+`]}`)
			q.Eagle = c.eagle
			p, ok := r.Fast(q, new(Scratch))
			require.True(t, ok)
			require.Len(t, p.Hashes, c.want)
		})
	}
}
