package budget

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// fill lets in as many bodies of n bytes as there is room for.
func fill(b *Budget, n int64) (in []*Share) {
	for s := new(Share); s.Admit(b, n); s = new(Share) {
		in = append(in, s)
	}
	return in
}

func TestLargeBodiesLeaveRoomForSmallOnes(t *testing.T) {
	t.Parallel()
	b := New(100 << 20)
	require.False(t, b.Tight())
	large := fill(b, 10<<20)
	require.Len(t, large, 7)
	require.True(t, b.Tight())
	require.EqualValues(t, 70<<20, b.Used(), "who is refused holds nothing")
	small := fill(b, Small)
	require.Len(t, small, 30)
	require.Equal(t, b.Limit(), b.Used())
	large[0].Set(b, 0)
	require.False(t, new(Share).Admit(b, 10<<20+1), "it has to be less than what large ones may have")
	require.Len(t, fill(b, Small), 10)
	require.Empty(t, fill(b, 2*Small), "small ones may fill all that is free")
}

// TestSecondLegsDoNotTakeWhatSmallBodiesHave: they are counted, and may exceed the budget.
func TestSecondLegsDoNotTakeWhatSmallBodiesHave(t *testing.T) {
	t.Parallel()
	b := New(100 << 20)
	for range fill(b, 10<<20) {
		new(Share).Set(b, 10<<20)
	}
	require.EqualValues(t, 140<<20, b.Used())
	require.Len(t, fill(b, Small), 25)
	require.Empty(t, fill(b, 2*Small))
}

func TestAShareGrowsAndIsSet(t *testing.T) {
	t.Parallel()
	b := New(0)
	require.EqualValues(t, Least, b.Limit())
	const most = 4 << 20
	var s Share
	require.True(t, s.Grow(b, 4000, most))
	require.EqualValues(t, 4000, s.Size(), "so little may be small")
	require.True(t, s.Grow(b, 5000, most))
	require.EqualValues(t, Small, s.Size())
	require.True(t, s.Grow(b, 5000, most), "what is held already needs no room")
	require.True(t, s.Grow(b, 2<<20+1, most))
	require.EqualValues(t, most, s.Size(), "no more than may be")
	other := new(Share)
	require.True(t, other.Grow(b, 4096, most))
	require.False(t, other.Grow(b, 4097, most), "half of the room for large ones is gone")
	require.EqualValues(t, 4096, other.Size(), "a share that cannot grow stays as it was")
	s.Set(b, 20<<20)
	require.EqualValues(t, 20<<20+4096, b.Used(), "what was let in is counted")
	require.False(t, new(Share).Admit(b, Small+1))
	s.Set(b, 1000)
	other.Set(b, 0)
	require.EqualValues(t, 1000, b.Used())
	s.Set(b, 0)
	require.Zero(t, b.Used())
}

// TestBodiesOfUnknownSizeComeToTheirEnd: of many at once, some are refused early, and those
// that go on have room.
func TestBodiesOfUnknownSizeComeToTheirEnd(t *testing.T) {
	t.Parallel()
	const most, size = 64 << 20, 10 << 20
	b := New(128 << 20)
	shares := make([]*Share, 250)
	for i := range shares {
		shares[i] = new(Share)
	}
	for n := int64(16 << 10); n <= size; n += 16 << 10 {
		for i, s := range shares {
			if s != nil && !s.Grow(b, n, most) {
				s.Set(b, 0)
				shares[i] = nil
			}
		}
		require.True(t, new(Share).Admit(b, 0))
		require.GreaterOrEqual(t, len(fillAndLeave(b)), 16, "small ones find room beside them")
	}
	whole := 0
	for _, s := range shares {
		if s != nil {
			whole++
		}
	}
	require.Equal(t, 6, whole, "each counts for 16 MiB")
	require.Empty(t, fill(b, 2*Small))
}

// TestABodyMayHaveAllTheRoomForLargeOnes, whether it says what it will come to or not: who
// is refused may ask again, and has to find room some day.
func TestABodyMayHaveAllTheRoomForLargeOnes(t *testing.T) {
	t.Parallel()
	for _, limit := range []int64{Least, 100 << 20, 1 << 30} {
		b := New(limit)
		most := b.Large()
		for name, whole := range map[string]func(s *Share) bool{
			"said":   func(s *Share) bool { return s.Admit(b, most) },
			"unseen": func(s *Share) bool { return s.AdmitUnseen(b, limit/256) && s.Grow(b, most, most) },
			"unsaid": func(s *Share) bool {
				for n := most / 64; n < most; n += most / 64 {
					if !s.Grow(b, n, most) {
						return false
					}
				}
				return s.Grow(b, most, most)
			},
			"unsaid, at once": func(s *Share) bool { return s.Grow(b, most, most) },
		} {
			var s, other Share
			require.True(t, other.Admit(b, 2*Small))
			require.False(t, whole(&s), "%s: another is there", name)
			s.Set(b, 0)
			other.Set(b, 0)
			require.True(t, whole(&s), "%s, of %d", name, limit)
			require.Equal(t, most, b.Used())
			require.False(t, other.Admit(b, 2*Small))
			s.Set(b, 0)
		}
	}
}

func fillAndLeave(b *Budget) []*Share {
	in := fill(b, Small)
	for _, s := range in {
		s.Set(b, 0)
	}
	return in
}

func TestABodyThatNobodySeesIsTakenForALargeOne(t *testing.T) {
	t.Parallel()
	b := New(100 << 20)
	for s := new(Share); s.AdmitUnseen(b, Small); s = new(Share) {
		require.Less(t, b.Used(), b.Limit())
	}
	require.Equal(t, b.Large(), b.Used())
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
				switch r.IntN(6) {
				case 0, 1:
					s.Set(b, 0)
				case 2:
					s.Admit(b, r.Int64N(3<<20))
				default:
					s.Grow(b, s.Size()+r.Int64N(2<<20), 8<<20)
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
