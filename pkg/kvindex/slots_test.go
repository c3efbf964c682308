package kvindex

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

func TestGenerationChangesWithTheNumberingOnly(t *testing.T) {
	s := NewSlots()
	m := newTree(t, s)
	g := s.Generation()
	m.Attach(worker.Rank{ID: 1})
	require.NotEqual(t, g, s.Generation())
	g = s.Generation()
	m.Attach(worker.Rank{ID: 1})
	require.NoError(t, m.Clear(worker.Rank{ID: 1}))
	require.Equal(t, g, s.Generation())
	m.Detach(worker.Rank{ID: 1})
	require.NotEqual(t, g, s.Generation())
}
