package host

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheCPUClockOfAProcessGoesOn(t *testing.T) {
	before, err := CPUTime(os.Getpid())
	require.NoError(t, err)
	for {
		now, err := CPUTime(os.Getpid())
		require.NoError(t, err)
		if now > before {
			break
		}
	}
	_, err = CPUTime(1 << 25)
	require.Error(t, err)
}

func TestTheMemoryOfAProcessIsTold(t *testing.T) {
	resident, most, err := Memory(os.Getpid())
	require.NoError(t, err)
	require.Greater(t, resident, int64(1<<20))
	require.GreaterOrEqual(t, most, resident)
	_, _, err = Memory(1 << 25)
	require.Error(t, err)
}
