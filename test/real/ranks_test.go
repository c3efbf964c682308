//go:build real

package real

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// coreOf returns the process of one data-parallel rank's engine core, by the name that vLLM
// gives it, among the children of a process.
func coreOf(t *testing.T, rank int) int {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, name := range names {
		line, err := os.ReadFile(name)
		if err == nil && strings.Contains(string(line), fmt.Sprintf("EngineCore_DP%d", rank)) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			require.NoError(t, err)
			return pid
		}
	}
	t.Fatalf("no engine core of rank %d", rank)
	return 0
}

// TestARankOfADataParallelWorkerIsKilled: the ranks of one vLLM live and die together.
func TestARankOfADataParallelWorkerIsKilled(t *testing.T) {
	s := newScene(t, "", "vllm-dp2")
	n := 0
	ask := func() *answer {
		n++
		return s.ask("/v1/completions", fields{"model": "tiny", "prompt": fmt.Sprint("ranks ", n, words(uint64(n), 100)), "max_tokens": 4})
	}
	ranks := map[int]bool{}
	for range 8 {
		require.Equal(t, http.StatusOK, ask().status)
		ranks[s.last().Decode.Rank] = true
	}
	require.Len(t, ranks, 2, "both ranks have served")
	e := s.engines[0]
	require.NoError(t, syscall.Kill(coreOf(t, 1), syscall.SIGKILL))
	s.await("requests to be refused", func() bool { return ask().status == http.StatusServiceUnavailable })
	s.await("the engine to end", func() bool { return !e.Alive() })
	require.NoError(t, e.Restart(context.Background()))
	s.await("both ranks to serve again", func() bool {
		if a := ask(); a.status == http.StatusOK {
			delete(ranks, s.last().Decode.Rank)
		}
		return len(ranks) == 0
	})
	tellf(t, vllm, "data-parallel, 2 ranks: one is killed", "the engine ends whole; refused until it is back, then both ranks serve")
}
