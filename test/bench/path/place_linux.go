package main

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// cpus returns the processors that this process may run on, nil where that is
// not known.
func cpus() []int {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil {
		return nil
	}
	var out []int
	for i := range 8 * len(set) * 8 {
		if set.IsSet(i) {
			out = append(out, i)
		}
	}
	return out
}

// placed calls start on a thread that may run only on the given processors, so
// that a process started there inherits them. None given: no limit.
func placed(on []int, start func() error) error {
	if len(on) == 0 {
		return start()
	}
	var old, set unix.CPUSet
	for _, c := range on {
		set.Set(c)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.SchedGetaffinity(0, &old); err != nil {
		return fmt.Errorf("read the processors of a thread: %w", err)
	}
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("place on processors %v: %w", on, err)
	}
	defer func() { _ = unix.SchedSetaffinity(0, &old) }()
	return start()
}
