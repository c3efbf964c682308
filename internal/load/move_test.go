package load

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/health"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// told records the calls of a filter in order.
type told struct {
	lines []string
	trial uint64
}

func (f *told) Changes(_ uint64, dst []worker.ID) (now uint64, changed []worker.ID, all bool) {
	return 1, dst, false
}

func (f *told) Standing(worker.Rank) health.Standing { return health.Free }

func (f *told) Begin(r worker.Rank) uint64 {
	f.trial++
	f.lines = append(f.lines, fmt.Sprintf("begin %s trial %d", r, f.trial))
	return f.trial
}

func (f *told) End(r worker.Rank, trial uint64) {
	f.lines = append(f.lines, fmt.Sprintf("end %s trial %d", r, trial))
}

// After a booking has moved, it counts at the new rank only. The filter is told of a
// trial at each rank, once.
func TestTheFilterIsToldOfABookingThatMoves(t *testing.T) {
	s := fleet(t, 3, 1)
	for _, end := range []func(*Reservation) bool{
		func(r *Reservation) bool { r.Release(later); return true },
		func(r *Reservation) bool { return r.Cancel(later) },
	} {
		b, f := New(1), new(told)
		b.Update(s)
		req := prefillRequest(s, 16, params())
		req.Filter = f
		var res Reservation
		require.NoError(t, b.Reserve(req, worker.Rank{ID: 1}, 0, &res))
		require.NoError(t, res.Move(worker.Rank{ID: 2}, later))
		require.Equal(t, []string{"begin 1/0 trial 1", "begin 2/0 trial 2", "end 1/0 trial 1"}, f.lines)

		require.ErrorIs(t, res.Move(worker.Rank{ID: 9}, later), ErrUnknownRank)
		require.Len(t, f.lines, 3, "everything is as it was")

		require.NoError(t, res.Move(worker.Rank{ID: 3}, later))
		require.True(t, end(&res))
		require.ErrorIs(t, res.Move(worker.Rank{ID: 1}, later), ErrReleased)
		require.False(t, res.ReleaseIfHeld(later))
		require.Equal(t, []string{"begin 3/0 trial 3", "end 2/0 trial 2", "end 3/0 trial 3"}, f.lines[3:])
		require.Zero(t, b.Totals())
	}
}
