package admin_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/seed-60ae5743/baton/internal/admin"
	"github.com/seed-60ae5743/baton/internal/admin/admintest"
)

func TestMain(m *testing.M) {
	admin.Made.NightState, admin.Made.NightJournal = admintest.NightState, admintest.NightJournal
	admin.Made.FleetState, admin.Made.FullJournal = admintest.FleetState, admintest.FullJournal
	admin.Made.BusyHour = admintest.BusyHour
	goleak.VerifyTestMain(m)
}
