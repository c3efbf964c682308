package stack

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// parentEnds is the variable that makes this test's binary a parent process. Its value
// says how that process ends.
const parentEnds = "STACK_TEST_PARENT_ENDS"

// ofAProgram is the end of a parent whose child has children of its own.
const ofAProgram = "kill -9, of a program"

func TestChildrenEndWithTheirParent(t *testing.T) {
	if how := os.Getenv(parentEnds); how != "" {
		beParent(t, how)
	}
	for _, how := range []string{"a panic", "a test's time-out", "kill -9", ofAProgram} {
		t.Run(how, func(t *testing.T) {
			limit := "60s"
			if how == "a test's time-out" {
				limit = "1s"
			}
			parent := exec.CommandContext(bounded(t), os.Args[0], "-test.run", "^TestChildrenEndWithTheirParent$", "-test.timeout", limit)
			parent.Env = append(os.Environ(), parentEnds+"="+how)
			out, err := parent.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, parent.Start())
			var child int
			for s := bufio.NewScanner(out); child == 0 && s.Scan(); {
				if pid, ok := strings.CutPrefix(s.Text(), "child "); ok {
					child, err = strconv.Atoi(pid)
					require.NoError(t, err)
				}
			}
			require.NotZero(t, child, "the parent says whom it has started")
			if strings.HasPrefix(how, "kill -9") {
				require.NoError(t, parent.Process.Kill())
			}
			require.Error(t, parent.Wait())
			require.NoError(t, Await(bounded(t), "the child to end", func() bool { return gone(child) && (how != ofAProgram || groupOf(t, child) == 0) }))
		})
	}
}

// beParent starts a process that would run for an hour, and then ends.
func beParent(t *testing.T, how string) {
	var p *Process
	var err error
	if how == ofAProgram {
		p, err = StartProgram(t.Context(), ProgramOptions{Name: "three", Path: "sh", Args: []string{"-c", "sleep 3600 & sleep 3600"}})
		require.NoError(t, err)
		require.NoError(t, Await(t.Context(), "all three to run", func() bool { return groupOf(t, p.PID()) == 3 }))
	} else {
		p, err = start(t.Context(), "sleeper", nil, "sleep", "3600")
		require.NoError(t, err)
	}
	fmt.Println("child", p.PID())
	if how == "a panic" {
		go panic("as a test's goroutine would")
	}
	<-time.After(time.Hour) // the time-out or the kill ends this process earlier
}

// gone reports whether a process has ended, even if its parent has not waited for it yet.
func gone(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return true
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}
