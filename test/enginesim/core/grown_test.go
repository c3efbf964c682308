package core

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Blocks for a whole answer are set aside, but only those that the answer has filled
// count as used.
func TestAnAnswerUsesBlocksAsItGrows(t *testing.T) {
	at := time.Unix(1000, 0)
	g := grown{prompt: 20, output: 30, perToken: time.Second}
	require.Equal(t, 4-2, g.spare(16, at), "the prompt's two of four")
	g.began = at
	require.Equal(t, 4-2, g.spare(16, at), "21 tokens")
	require.Equal(t, 4-3, g.spare(16, at.Add(12*time.Second)), "33 tokens")
	require.Zero(t, g.spare(16, at.Add(28*time.Second)), "49 tokens")
	require.Zero(t, g.spare(16, at.Add(time.Hour)))
	require.Zero(t, (&grown{prompt: 20, output: 30, began: at}).spare(16, at), "without a speed it is there at once")

	r := &Rank{maxRunning: 9, cache: newCache(16, 100, false, false)}
	h, err := r.admit(t.Context(), nil, 4)
	require.NoError(t, err)
	h.expects(20, 30)
	require.Equal(t, 2, r.state(false).UsedBlocks)
	require.Equal(t, 4, r.state(false).HeldBlocks)
	h.Release()
	require.Zero(t, r.state(false).UsedBlocks)
}
