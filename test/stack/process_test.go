package stack

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// A process of several threads has stopped when Signal returns, not some time later.
func TestAProcessThatIsStoppedHasStopped(t *testing.T) {
	t.Parallel()
	p, err := start(t.Context(), "busy", nil, "sh", "-c", "while :; do :; done")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Kill()) })
	for range 20 {
		require.False(t, stopped(p.PID()))
		require.NoError(t, p.Signal(syscall.SIGSTOP))
		require.True(t, stopped(p.PID()))
		require.NoError(t, p.Signal(syscall.SIGCONT))
	}
}
