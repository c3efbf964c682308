package prefill_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// TestDrawnRoomsPinTheRankAndLeaveSpaceForParallelPrompts tests docs/behaviour.md#room.
func TestDrawnRoomsPinTheRankAndLeaveSpaceForParallelPrompts(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		size := r.Uint32N(64) + 1
		rank := worker.DPRank(r.Uint32N(size))
		prompts := r.IntN(1000)
		room := prefill.DrawRoom(r, rank, size, prompts)
		require.Equal(t, uint64(rank), uint64(room)%uint64(size))
		require.LessOrEqual(t, uint64(room)+uint64(max(prompts, 1))-1, uint64(math.MaxInt64))
	}
}

// highest is a source that always gives the largest number.
type highest struct{}

func (highest) Uint64() uint64 { return math.MaxUint64 }

func TestTheHighestRoomIsStillInRange(t *testing.T) {
	for _, size := range []uint32{1, 2, 3, 48, math.MaxUint32} {
		room := prefill.DrawRoom(rand.New(highest{}), worker.DPRank(size-1), size, 128)
		require.Equal(t, uint64(size-1), uint64(room)%uint64(size))
		require.LessOrEqual(t, uint64(room)+127, uint64(math.MaxInt64))
	}
}

func newLeg() prefill.Leg {
	return prefill.Leg{
		Owner: "baton-0@10.0.0.1:9002", Nonce: math.MaxUint64 - 3,
		Prefill: worker.Rank{ID: math.MaxUint64, DPRank: 7}, Room: prefill.MaxRoom,
		Deadline: time.UnixMilli(1_800_000_000_123),
	}
}

func TestALegTokenOpensToWhatWasSealed(t *testing.T) {
	s, err := prefill.NewSealer([]byte("0123456789abcdef"))
	require.NoError(t, err)
	for _, owner := range []string{"", "a", strings.Repeat("o", 255)} {
		l := newLeg()
		l.Owner = owner
		token, err := s.Seal(l)
		require.NoError(t, err)
		got, err := s.Open(token)
		require.NoError(t, err)
		require.Equal(t, l, got)
	}
	l := newLeg()
	l.Owner = strings.Repeat("o", 256)
	_, err = s.Seal(l)
	require.Error(t, err)
}

func TestALegTokenWithAnyByteChangedIsRefused(t *testing.T) {
	s, err := prefill.NewSealer([]byte("0123456789abcdef"))
	require.NoError(t, err)
	token, err := s.Seal(newLeg())
	require.NoError(t, err)
	for i := range token {
		for _, c := range []byte{'A', 'z', '=', 0, '\n'} {
			if token[i] == c {
				continue
			}
			_, err := s.Open(token[:i] + string(c) + token[i+1:])
			require.ErrorIs(t, err, prefill.ErrLegInvalid, "byte %d", i)
		}
		_, err := s.Open(token[:i])
		require.Error(t, err)
	}
	_, err = s.Open(token + "\n")
	require.ErrorIs(t, err, prefill.ErrLegInvalid)
	_, err = s.Open("")
	require.ErrorIs(t, err, prefill.ErrLegMissing)
	_, err = s.Open(token + "A")
	require.ErrorIs(t, err, prefill.ErrLegInvalid)
	_, err = s.Open(strings.Repeat("A", 4096))
	require.ErrorIs(t, err, prefill.ErrLegInvalid)
}

func TestALegTokenOfAnotherKeyIsRefused(t *testing.T) {
	a, err := prefill.NewSealer([]byte("0123456789abcdef"))
	require.NoError(t, err)
	b, err := prefill.NewSealer([]byte("0123456789abcdeF"))
	require.NoError(t, err)
	token, err := a.Seal(newLeg())
	require.NoError(t, err)
	_, err = b.Open(token)
	require.ErrorIs(t, err, prefill.ErrLegInvalid)
	_, err = prefill.NewSealer([]byte("short"))
	require.ErrorContains(t, err, "expected at least 16")
}

func TestSealingAllocatesTheTokenOnly(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates by itself")
	}
	s, err := prefill.NewSealer([]byte("0123456789abcdef"))
	require.NoError(t, err)
	l := newLeg()
	require.LessOrEqual(t, testing.AllocsPerRun(200, func() {
		if _, err := s.Seal(l); err != nil {
			t.Fatal(err)
		}
	}), 4.0)
}

func TestHeaderNamesOfEachDialect(t *testing.T) {
	plain, err := prefill.NamesOf(prefill.DialectPlain)
	require.NoError(t, err)
	require.Equal(t, []string{"x-worker-instance-id"}, plain.WorkerID)
	both, err := prefill.NamesOf(prefill.DialectBoth)
	require.NoError(t, err)
	require.Equal(t, []string{"x-prefill-instance-id", "x-dynamo-prefill-instance-id"}, both.PrefillID)
	dyn, err := prefill.NamesOf(prefill.DialectDynamo)
	require.NoError(t, err)
	require.Contains(t, dyn.PrefillID, "x-prefill-instance-id", "the mission's own header is always set")
	_, err = prefill.NamesOf("other")
	require.Error(t, err)
}

func FuzzOpen(f *testing.F) {
	s, err := prefill.NewSealer([]byte("0123456789abcdef"))
	require.NoError(f, err)
	token, err := s.Seal(newLeg())
	require.NoError(f, err)
	f.Add(token)
	f.Add("")
	f.Add("AQ")
	f.Add(token + "\r\n")
	f.Fuzz(func(t *testing.T, in string) {
		l, err := s.Open(in)
		if err != nil {
			return
		}
		again, err := s.Seal(l)
		require.NoError(t, err)
		require.Equal(t, in, again, "only what we sealed opens, and it has one spelling")
	})
}
