package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/seed-60ae5743/baton/internal/config"
)

// sleepCommand waits for so many seconds. The image has the program as /bin/sleep, too: a
// deployment that is made for another picker may wait by it before the picker is stopped
// (KServe's preStop does), and the image has no other program.
func sleepCommand(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("%w: sleep: expected a number of seconds", config.ErrUsage)
	}
	seconds, err := strconv.ParseFloat(args[0], 64)
	if err != nil || !(seconds >= 0 && seconds <= 86400) {
		return fmt.Errorf("%w: sleep %q: expected a number of seconds, at most a day", config.ErrUsage, args[0])
	}
	select {
	case <-ctx.Done():
	case <-time.After(time.Duration(seconds * float64(time.Second))):
	}
	return nil
}
