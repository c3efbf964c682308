//go:build linux

package node

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Here is this machine. What cannot be read is not there.
func Here() *Place {
	read := func(file string) string {
		text, _ := os.ReadFile(file)
		return string(text)
	}
	p := &Place{
		UID: os.Geteuid(), Mounts: read("/proc/self/mountinfo"), Filesystems: read("/proc/filesystems"),
		Groups: map[string]string{}, Temporary: os.TempDir(),
	}
	for line := range strings.Lines(read("/proc/self/status")) {
		if mask, is := strings.CutPrefix(line, "CapEff:"); is {
			p.Capabilities, _ = strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
		}
	}
	for line := range strings.Lines(read("/proc/meminfo")) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "MemAvailable:" {
			kib, _ := strconv.ParseUint(f[1], 10, 64)
			p.Memory = kib >> 10
		}
	}
	kinds, _ := os.ReadDir("/proc/self/ns")
	for _, k := range kinds {
		p.Namespaces = append(p.Namespaces, k.Name())
	}
	for _, name := range []string{"cgroup.controllers", "cgroup.subtree_control", "cgroup.type", "cgroup.procs"} {
		p.Groups[name] = read(filepath.Join(groups, name))
	}
	for program := range debian(true) {
		if _, err := exec.LookPath(program); err == nil {
			p.Programs = append(p.Programs, program)
		}
	}
	if socket, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER); err == nil {
		p.Netfilter = true
		_ = unix.Close(socket)
	}
	var disk unix.Statfs_t
	if unix.Statfs(".", &disk) == nil {
		p.Disk = disk.Bavail * uint64(disk.Bsize) >> 20 //nolint:gosec // a size
	}
	return p
}
