package host

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// CPUTime returns the CPU time that a process has used, all threads, user and
// system, ended threads included: the kernel's CPUCLOCK_SCHED of the process,
// in nanoseconds (clock_getcpuclockid(3)).
func CPUTime(pid int) (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|2), &ts); err != nil {
		return 0, fmt.Errorf("cpu time of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}
