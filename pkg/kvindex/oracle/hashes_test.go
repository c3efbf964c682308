package oracle

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/hashvectors"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
)

func sequences(chain []kvindex.LocalHash) (out []sequenceHash) {
	var s sequenceHash
	for i, l := range chain {
		s = nextSequence(s, i > 0, l)
		out = append(out, s)
	}
	return out
}

func TestSequenceHashesMatchVectorsOfAnotherImplementation(t *testing.T) {
	vectors, err := hashvectors.Read("../testdata/vectors/hashes.txt")
	require.NoError(t, err)
	checked := 0
	for _, v := range vectors {
		var local []kvindex.LocalHash
		var want []sequenceHash
		for i := range v.Local {
			local, want = append(local, kvindex.LocalHash(v.Local[i])), append(want, sequenceHash(v.Sequence[i]))
		}
		require.Len(t, v.Sequence, len(v.Local), v.Name)
		require.Equal(t, want, sequences(local), v.Name)
		checked += len(want)
	}
	require.Greater(t, checked, 50)
}

func TestSequenceHashesMatchTheVectorsOfDynamo(t *testing.T) {
	require.Equal(t,
		[]sequenceHash{14643705804678351452, 4945711292740353085, 12583592247330656132},
		sequences([]kvindex.LocalHash{14643705804678351452, 16777012769546811212, 483935686894639516}))
	require.Equal(t, sequenceHash(13769157705258532664),
		sequences([]kvindex.LocalHash{15310707395893867146, 15292316782987903195})[1])
}
