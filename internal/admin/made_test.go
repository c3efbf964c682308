package admin

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/hour"
	"github.com/seed-60ae5743/baton/internal/journal"
)

// Made are the functions of internal/admin/admintest, which imports this package: TestMain, which
// is outside of it, sets them.
var Made struct { //nolint:gochecknoglobals // set once, before the tests
	NightState                func(now time.Time) State
	NightJournal, FullJournal func(now time.Time) (*journal.Journal, error)
	FleetState                func(now time.Time, n int, models ...string) State
	BusyHour                  func(end time.Time) *hour.Hour
}

func nightState() State { return Made.NightState(now()) }

func nightJournal(tb testing.TB) *journal.Journal {
	tb.Helper()
	j, err := Made.NightJournal(now())
	require.NoError(tb, err)
	return j
}

func fullJournal(tb testing.TB, now time.Time) *journal.Journal {
	tb.Helper()
	j, err := Made.FullJournal(now)
	require.NoError(tb, err)
	return j
}

func fleetState(now time.Time, n int, models ...string) State {
	return Made.FleetState(now, n, models...)
}

func busyHour(end time.Time) *hour.Hour { return Made.BusyHour(end) }
