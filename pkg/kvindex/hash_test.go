package kvindex

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"
)

// seqTokens returns the n tokens from, from+1, ….
func seqTokens(from, n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(from + i)
	}
	return out
}

func TestHashesMatchTheVectorsOfDynamo(t *testing.T) {
	base := Salt{}.Seed()
	local := func(tokens []uint32, bs int, seed uint64) []LocalHash {
		return AppendLocalHashes(nil, tokens, bs, seed)
	}

	t.Run("a: the raw hash", func(t *testing.T) {
		require.Equal(t, uint64(13226331709069118873), xxh3.HashSeed([]byte("test data"), baseSeed))
	})
	t.Run("b: blocks of four tokens", func(t *testing.T) {
		require.Equal(t,
			[]LocalHash{14643705804678351452, 16777012769546811212, 483935686894639516},
			local(seqTokens(1, 12), 4, base))
	})
	t.Run("d: LoRA and cache salt change the seed, empty strings do not", func(t *testing.T) {
		for _, c := range []struct {
			salt Salt
			seed uint64
			hash LocalHash
		}{
			{Salt{}, 1337, 9143094415614847814},
			{Salt{LoRA: "adapter-a"}, 8842669519798868182, 6665157333201000639},
			{Salt{CacheSalt: "tenant-a"}, 1948188790972764086, 17009624042690211646},
			{Salt{LoRA: "adapter-a", CacheSalt: "tenant-a"}, 10790858310771630931, 8269515957840517240},
		} {
			require.Equal(t, c.seed, c.salt.Seed(), "%+v", c.salt)
			require.Equal(t, []LocalHash{c.hash}, local(seqTokens(0, 4), 4, c.seed), "%+v", c.salt)
		}
	})
	t.Run("f: other block sizes", func(t *testing.T) {
		two := local(seqTokens(0, 32), 16, base)
		require.Equal(t, []LocalHash{15310707395893867146, 15292316782987903195}, two)
		require.Equal(t, []LocalHash{3478666572770996202}, local(seqTokens(0, 11), 11, base))
		require.Equal(t, []LocalHash{5756925433886871916}, local(seqTokens(0, 32), 32, base))
		require.Equal(t, []LocalHash{3480597578098033343}, local(seqTokens(0, 64), 64, base))
	})
}

func TestOnlyWholeBlocksAreHashed(t *testing.T) {
	whole := AppendLocalHashes(nil, seqTokens(1, 8), 4, baseSeed)
	require.Len(t, whole, 2)
	require.Equal(t, whole, AppendLocalHashes(nil, seqTokens(1, 11), 4, baseSeed))
	require.Empty(t, AppendLocalHashes(nil, seqTokens(1, 3), 4, baseSeed))
	require.Empty(t, AppendLocalHashes(nil, seqTokens(1, 3), 0, baseSeed))
	require.Equal(t, append([]LocalHash{7}, whole...), AppendLocalHashes([]LocalHash{7}, seqTokens(1, 8), 4, baseSeed))
}

func TestByteHashesDependOnEveryByteAndOnTheSeed(t *testing.T) {
	text := []byte("the quick brown fox jumps over the lazy dog")
	h := AppendByteHashes(nil, text, 16, 1)
	require.Len(t, h, 2)
	require.Empty(t, AppendByteHashes(nil, text, 0, 1))
	require.NotEqual(t, h, AppendByteHashes(nil, text, 16, 2))
	text[17] ^= 1
	changed := AppendByteHashes(nil, text, 16, 1)
	require.Equal(t, h[0], changed[0])
	require.NotEqual(t, h[1], changed[1])
}

func TestHashingAllocatesNothingWhenThereIsRoom(t *testing.T) {
	tokens := seqTokens(0, 4096)
	locals := make([]LocalHash, 0, 256)
	require.Zero(t, testing.AllocsPerRun(20, func() {
		AppendLocalHashes(locals, tokens, 16, baseSeed)
	}))
}
