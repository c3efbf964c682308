package invariants_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/invariants"
)

func TestChecksPanicOnlyWhereTheyAreCompiledIn(t *testing.T) {
	expect := func(f func()) {
		if invariants.Enabled {
			require.Panics(t, f)
		} else {
			require.NotPanics(t, f)
		}
	}
	require.NotPanics(t, func() { invariants.Check(true, "fine") })
	expect(func() { invariants.Check(false, "%d is odd", 3) })
}
