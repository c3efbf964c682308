package main

import (
	"time"

	"golang.org/x/sys/unix"
)

// exactTimers has the kernel wake the calling thread as soon as it may.
func exactTimers() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) }

// sleep blocks the calling thread in the kernel.
func sleep(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&ts, nil)
}
