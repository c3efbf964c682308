package route

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/internal/outlen"
	"github.com/seed-60ae5743/baton/internal/route/routetest"
)

// Choices are booked by their count: how fast each is written is the same.
func TestTheChoicesOfAnAnswerAreBookedByTheirCount(t *testing.T) {
	r := newRig(t, routetest.Workers(), nil)
	one := r.cfg.growth(&Answer{MaxTokens: outlen.NotSaid, Parallel: 1}, 16)
	require.Positive(t, one.PerSecond)
	for parallel, booked := range map[int]int{1: 1, 4: 4, 1000: mostParallel} {
		want := one
		want.Choices = booked
		require.Equal(t, want, r.cfg.growth(&Answer{MaxTokens: outlen.NotSaid, Parallel: parallel}, 16))
	}
}
