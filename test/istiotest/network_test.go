//go:build kube

package istiotest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// alone reports whether this process has a network of its own.
func alone() (bool, error) {
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return false, err
	}
	parents, err := os.Readlink("/proc/" + strconv.Itoa(os.Getppid()) + "/ns/net")
	return own != parents, err
}

// again runs this command in a new network, and returns its exit code.
func again() int {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return exit.ExitCode()
	case err != nil:
		fmt.Fprintln(os.Stderr, "istiotest: a network of its own (this needs root):", err)
		return 1
	}
	return 0
}

// raise brings the loopback device up, with all addresses of the pods' network.
func raise() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	set := func(name string, request uint, fill func(*unix.Ifreq) error) error {
		r, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		if err := fill(r); err != nil {
			return err
		}
		return unix.IoctlIfreq(s, request, r)
	}
	up := func(r *unix.Ifreq) error {
		r.SetUint16(unix.IFF_UP | unix.IFF_LOOPBACK | unix.IFF_RUNNING)
		return nil
	}
	address := func(a ...byte) func(*unix.Ifreq) error {
		return func(r *unix.Ifreq) error { return r.SetInet4Addr(a) }
	}
	return errors.Join(
		set("lo", unix.SIOCSIFFLAGS, up),
		set("lo:1", unix.SIOCSIFADDR, address(10, 77, 0, 1)),
		set("lo:1", unix.SIOCSIFNETMASK, address(255, 255, 255, 0)),
	)
}
