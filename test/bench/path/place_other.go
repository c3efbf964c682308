//go:build !linux

package main

import "errors"

// cpus returns nil: this system does not say which processors this process may
// run on, and places nothing.
func cpus() []int { return nil }

// placed calls start. It refuses to place it anywhere, which this system
// cannot.
func placed(on []int, start func() error) error {
	if len(on) > 0 {
		return errors.New("place on processors: only Linux can")
	}
	return start()
}
