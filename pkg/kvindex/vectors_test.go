package kvindex

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/hashvectors"
)

func TestHashesMatchVectorsOfAnotherImplementation(t *testing.T) {
	vectors, err := hashvectors.Read("testdata/vectors/hashes.txt")
	require.NoError(t, err)
	var seeds, locals, all, eagle int
	for _, v := range vectors {
		t.Run(v.Name, func(t *testing.T) {
			seed := Salt{LoRA: v.LoRA, CacheSalt: v.CacheSalt}.Seed()
			require.Equal(t, v.Seed, seed)
			seeds++
			want := hashes[LocalHash](v.Local)
			all += len(want)
			if v.Objects != nil {
				return // pkg/kvevents makes the local hashes over objects
			}
			hash := AppendLocalHashes
			if v.Eagle {
				hash = AppendPairHashes
				eagle += len(want)
			}
			require.Equal(t, want, hash(nil, v.Tokens, v.BlockSize, seed))
			locals += len(want)
		})
	}
	require.GreaterOrEqual(t, seeds, 25)
	require.Greater(t, all, locals)
	require.Greater(t, locals, eagle)
	require.Positive(t, eagle)
}

func hashes[T ~uint64](of []uint64) []T {
	var out []T
	for _, h := range of {
		out = append(out, T(h))
	}
	return out
}

func TestPairHashesAppendAndRefuseAsLocalOnesDo(t *testing.T) {
	require.Empty(t, AppendPairHashes(nil, seqTokens(1, 9), 0, baseSeed))
	require.Empty(t, AppendPairHashes(nil, seqTokens(1, 9), -1, baseSeed))
	got := AppendPairHashes([]LocalHash{7}, seqTokens(1, 9), 4, baseSeed)
	require.Len(t, got, 3)
	require.Equal(t, LocalHash(7), got[0])
}
