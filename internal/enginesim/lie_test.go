package enginesim

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// TestAWorkerThatLiesTellsNothingOfIt: what it holds changes, and its events do not.
func TestAWorkerThatLiesTellsNothingOfIt(t *testing.T) {
	s := start(t, Config{Role: worker.Aggregated, Engine: worker.VLLM, PageSize: 4})
	ctl := Client{BaseURL: s.URL()}
	ask := func() {
		require.Equal(t, 200, post(t.Context(), s.URL()+completions, `{"model":"sim","prompt":[1,2,3,4,5,6,7,8,9],"max_tokens":1}`).status)
	}
	at := func() (blocks int, seq uint64) {
		st, err := ctl.State(t.Context(), true)
		require.NoError(t, err)
		return len(st.Ranks[0].Blocks), s.ranks[0].pub.next()
	}
	ask()
	blocks, seq := at()
	require.Equal(t, 2, blocks)
	require.NoError(t, ctl.Lie(t.Context(), Lie{Forget: true}))
	blocks, same := at()
	require.Zero(t, blocks)
	require.Equal(t, seq, same, "nothing was published")
	require.NoError(t, ctl.Lie(t.Context(), Lie{Page: 8}))
	ask()
	blocks, _ = at()
	require.Equal(t, 1, blocks, "of eight tokens")
	require.NoError(t, ctl.Lie(t.Context(), Lie{Mute: true}))
	require.True(t, s.ranks[0].pub.muted())
	require.NoError(t, ctl.Lie(t.Context(), Lie{}))
	require.False(t, s.ranks[0].pub.muted())
	require.Error(t, ctl.Lie(t.Context(), Lie{Page: -1}))
	h, err := s.ranks[0].admit(t.Context(), nil, 1)
	require.NoError(t, err)
	require.ErrorIs(t, s.Lie(Lie{Forget: true}), errHeld)
	h.release()
}
