package stack

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// groupOf returns how many processes are in the group of a process.
func groupOf(t *testing.T, pid int) (n int) {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(t, err)
	for _, name := range stats {
		b, err := os.ReadFile(name)
		if err != nil {
			continue // the process has ended
		}
		// The line is: pid (name) state parent group …. A zombie has ended, so it does
		// not count.
		f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if f[2] == strconv.Itoa(pid) && f[0] != "Z" {
			n++
		}
	}
	return n
}

func TestAProgramEndsWithAllItHasStarted(t *testing.T) {
	t.Parallel()
	p, err := StartProgram(t.Context(), ProgramOptions{Name: "two", Path: "sh", Args: []string{"-c", "sleep 60 & sleep 60"}})
	require.NoError(t, err)
	require.NoError(t, Await(t.Context(), "both to run", func() bool { return groupOf(t, p.PID()) == 3 }))
	require.NoError(t, p.Signal(syscall.SIGSTOP))
	require.NoError(t, p.Signal(syscall.SIGCONT))
	require.NoError(t, p.Kill())
	require.NoError(t, Await(t.Context(), "all to be gone", func() bool { return groupOf(t, p.PID()) == 0 }))
	require.NoError(t, p.Stop(time.Second), "again")
}
