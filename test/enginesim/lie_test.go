package enginesim

import (
	"context"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"

	"github.com/seed-60ae5743/baton/test/enginesim/core"
)

// TestAWorkerThatLiesTellsNothingOfIt: what it holds changes, and its events do not.
func TestAWorkerThatLiesTellsNothingOfIt(t *testing.T) {
	s := start(t, Config{Role: worker.Aggregated, Engine: worker.VLLM, PageSize: 4})
	ctl := Client{BaseURL: s.URL()}
	prompt := func(first int) string {
		return fmt.Sprintf(`{"model":"sim","prompt":[%d,2,3,4,5,6,7,8,9],"max_tokens":1}`, first)
	}
	ask := func(first int) {
		require.Equal(t, 200, post(t.Context(), s.URL()+completions, prompt(first)).status)
	}
	at := func() (blocks int, seq uint64) {
		st, err := ctl.State(t.Context(), true)
		require.NoError(t, err)
		return len(st.Ranks[0].Blocks), st.Ranks[0].EventSeq
	}
	ask(1)
	blocks, seq := at()
	require.Equal(t, 2, blocks)
	require.NoError(t, ctl.Lie(t.Context(), Lie{Forget: true}))
	blocks, same := at()
	require.Zero(t, blocks)
	require.Equal(t, seq, same, "nothing was published")
	require.NoError(t, ctl.Lie(t.Context(), Lie{Page: 8}))
	ask(1)
	blocks, _ = at()
	require.Equal(t, 1, blocks, "of eight tokens")
	sub := subscribe(t, s, 0, "")
	require.NoError(t, ctl.Lie(t.Context(), Lie{Mute: true}))
	ask(10)
	_, seq = at()
	require.NoError(t, ctl.Lie(t.Context(), Lie{}))
	ask(11)
	require.Equal(t, seq, binary.BigEndian.Uint64((<-sub)[1]), "what was kept back did not come")
	require.Error(t, ctl.Lie(t.Context(), Lie{Page: -1}))

	require.NoError(t, s.SetFault(Fault{Mode: FaultHang, When: Mid}))
	ctx, leave := context.WithCancel(t.Context())
	out := later(ctx, s.URL()+completions, prompt(12))
	Eventually(t, func() bool { return s.State(false).KVHeldBlocks > 0 }, "a request holds blocks")
	require.ErrorIs(t, s.Lie(Lie{Forget: true}), core.ErrHeld)
	leave()
	require.Error(t, (<-out).err)
}
