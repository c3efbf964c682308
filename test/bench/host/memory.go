package host

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Memory returns the memory of a process that is resident now, and the most that ever was,
// in bytes. Only Linux tells it (proc_pid_status(5): VmRSS, VmHWM).
func Memory(pid int) (resident, most int64, err error) {
	name := fmt.Sprintf("/proc/%d/status", pid)
	f, err := os.Open(name)
	if err != nil {
		return 0, 0, fmt.Errorf("memory of process %d: %w", pid, err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		what, rest, _ := strings.Cut(s.Text(), ":")
		into := map[string]*int64{"VmRSS": &resident, "VmHWM": &most}[what]
		if into == nil {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("memory of process %d: %s: %w", pid, what, err)
		}
		*into = kib << 10
	}
	if resident == 0 || most == 0 {
		return 0, 0, fmt.Errorf("memory of process %d: expected VmRSS and VmHWM in %s", pid, name)
	}
	return resident, most, nil
}
