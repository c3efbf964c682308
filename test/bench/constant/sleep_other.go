//go:build !linux

package main

import "time"

// exactTimers does nothing: this system's timers are what they are.
func exactTimers() {}

func sleep(d time.Duration) { time.Sleep(d) }
