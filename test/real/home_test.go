package real

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhatAMachineLacksIsToldAtOnce(t *testing.T) {
	require.NoError(t, canRun("linux/amd64", "flags : fpu avx avx2 fma"))
	require.NoError(t, canRun("linux/amd64", ""), "a machine that does not describe its CPU")
	err := canRun("darwin/arm64", "flags : fpu")
	require.EqualError(t, err, "vLLM for CPUs is tried on linux/amd64, this is darwin/arm64\nthe CPU has no AVX2, which vLLM for CPUs needs")
}

func TestWhatIsNotInstalledIsNamed(t *testing.T) {
	require.ErrorContains(t, Installed(t.TempDir()), "vllm is not installed: run make real")
}

func TestFreeMemoryIsRead(t *testing.T) {
	free, err := FreeMemory()
	require.NoError(t, err)
	require.Greater(t, free, uint64(1<<20))
}
