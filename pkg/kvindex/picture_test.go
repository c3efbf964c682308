package kvindex

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/hashvectors"
)

// padValue returns the token id that stands for each token of the multimodal object with
// the hash, as in Dynamo's router and in SGLang workers that have Dynamo's patch: ids from
// 1,000,000 on, above every id of a vocabulary and within 32 bits. SGLang without the patch
// uses other ids since 0.5.23 (docs/engines.md#event-pads).
func padValue(hash uint64) uint32 { return 1_000_000 + uint32(hash&(1<<30-1)) }

func TestMultimodalObjectsAreCalledAsInVectorsOfAnotherImplementation(t *testing.T) {
	t.Parallel()
	vectors, err := hashvectors.ReadObjects("testdata/vectors/objects.txt")
	require.NoError(t, err)
	digests := 0
	for _, v := range vectors {
		hash, ok := HashMMIdentifier(v.Identifier)
		require.True(t, ok)
		require.Equal(t, v.Hash, hash, v.Identifier)
		require.Equal(t, v.Pad, padValue(hash), v.Identifier)
		hash, ok = HashMMIdentifier([]byte(v.Identifier))
		require.True(t, ok)
		require.Equal(t, v.Hash, hash, v.Identifier)
		if len(v.Identifier) == 64 {
			digests++
		}
	}
	require.Greater(t, digests, 5)
	require.Greater(t, len(vectors)-digests, 10)
	_, ok := HashMMIdentifier("")
	require.False(t, ok, "no name is none")
}

func TestAPictureGoesIntoTheHashesOfTheBlocksThatItIsIn(t *testing.T) {
	t.Parallel()
	tokens := []uint32{1, 2, 9, 9, 9, 9, 9, 3, 4, 5, 6, 7}
	at := func(hash uint64, offset, length int) Picture {
		return Picture{Hash: hash, Offset: offset, Length: length}
	}
	hashes := func(p ...Picture) []LocalHash { return AppendPictureHashes(nil, tokens, p, 4, false, baseSeed) }
	plain := AppendLocalHashes(nil, tokens, 4, baseSeed)
	require.Equal(t, plain, hashes())

	one := hashes(at(7, 2, 5))
	require.NotEqual(t, plain[0], one[0])
	require.NotEqual(t, plain[1], one[1])
	require.Equal(t, plain[2], one[2], "it is not in the third")
	var scratch []uint32
	require.Equal(t, AppendKeyedHash(nil, tokens[:4], []uint64{7, 2}, baseSeed, &scratch)[0], one[0])
	require.Equal(t, AppendKeyedHash(nil, tokens[4:8], []uint64{7, 1<<64 - 2}, baseSeed, &scratch)[0], one[1])

	for name, other := range map[string][]Picture{
		"another picture":          {at(8, 2, 5)},
		"at another place":         {at(7, 1, 6)},
		"in two":                   {at(7, 2, 2), at(7, 4, 3)},
		"of two the other first":   {at(8, 2, 2), at(7, 4, 3)},
		"of two in one block":      {at(7, 2, 1), at(8, 3, 4)},
		"and those the other way":  {at(8, 2, 1), at(7, 3, 4)},
		"a picture of no length":   {at(7, 2, 0)},
		"a picture behind the end": {at(7, 12, 5)},
	} {
		require.NotEqual(t, one, hashes(other...), name)
	}
	require.NotEqual(t, hashes(at(7, 2, 1), at(8, 3, 4)), hashes(at(8, 2, 1), at(7, 3, 4)))

	pairs := AppendPictureHashes(nil, tokens, []Picture{at(7, 2, 5)}, 4, true, baseSeed)
	require.Len(t, pairs, 2, "the last pair is not whole")
	require.Equal(t, AppendKeyedHash(nil, tokens[:5], []uint64{7, 2}, baseSeed, &scratch)[0], pairs[0])
	require.Empty(t, AppendPictureHashes(nil, tokens, nil, 0, false, baseSeed))
}

func TestManyPicturesAreHashedInOneWalk(t *testing.T) {
	t.Parallel()
	const n = 10_000
	tokens := seqTokens(1, 16*n)
	pictures := make([]Picture, n)
	for i := range pictures {
		h, _ := HashMMIdentifier(strings.Repeat("x", i%300+1))
		pictures[i] = Picture{Hash: h, Offset: 16*i + i%16, Length: 16}
	}
	pictures[n-1].Length = 1
	got := AppendPictureHashes(nil, tokens, pictures, 16, false, baseSeed)
	require.Len(t, got, n)
	some := AppendPictureHashes(nil, tokens[:32], pictures[:2], 16, false, baseSeed)
	require.Equal(t, some, got[:2])
}
