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
