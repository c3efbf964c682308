package budget

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLargeBodiesLeaveRoomForSmallOnes(t *testing.T) {
	t.Parallel()
	b := New(100 << 20)
	var large []*Share
	for {
		s := new(Share)
		if !s.Grow(b, 10<<20) {
			require.Zero(t, s.Size(), "who is refused holds nothing")
			break
		}
		large = append(large, s)
	}
	require.Len(t, large, 7)
	require.EqualValues(t, 70<<20, b.Used())
	small := 0
	for s := new(Share); s.Grow(b, Small); s = new(Share) {
		small++
	}
	require.Equal(t, 30, small)
	require.Equal(t, b.Limit(), b.Used())
	large[0].Set(b, 0)
	require.False(t, new(Share).Grow(b, 10<<20), "it has to be less than what large ones may have")
	require.True(t, new(Share).Grow(b, 1))
}

func TestAShareGrowsAndIsSet(t *testing.T) {
	t.Parallel()
	b := New(0)
	require.EqualValues(t, Least, b.Limit())
	var s Share
	require.True(t, s.Grow(b, 5<<20))
	require.True(t, s.Grow(b, 1), "what is held already needs no room")
	require.EqualValues(t, 5<<20, s.Size())
	require.False(t, s.Grow(b, 7<<20))
	require.EqualValues(t, 5<<20, b.Used(), "a share that cannot grow stays as it was")
	s.Set(b, 20<<20)
	require.EqualValues(t, 20<<20, b.Used(), "what was let in is counted")
	require.False(t, new(Share).Grow(b, 1))
	s.Set(b, 1000)
	require.EqualValues(t, 1000, b.Used())
	s.Set(b, 0)
	require.Zero(t, b.Used())
}

func TestSharesOfManyStreamsNeverExceedTheLimit(t *testing.T) {
	t.Parallel()
	b := New(16 << 20)
	var g sync.WaitGroup
	for i := range 8 {
		g.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 1))
			var s Share
			for range 20_000 {
				if r.IntN(3) == 0 {
					s.Set(b, 0)
				} else {
					s.Grow(b, s.Size()+r.Int64N(2<<20))
				}
				if used := b.Used(); used < 0 || used > b.Limit() {
					t.Errorf("%d bytes are counted of %d", used, b.Limit())
					return
				}
			}
			s.Set(b, 0)
		})
	}
	g.Wait()
	require.Zero(t, b.Used())
}
