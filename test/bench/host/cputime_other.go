//go:build !linux

package host

import (
	"errors"
	"time"
)

// CPUTime is known on Linux only.
func CPUTime(int) (time.Duration, error) {
	return 0, errors.New("cpu time of a process: expected Linux")
}
