package stack

import (
	"context"
	"fmt"
	"time"
)

// The pauses between two calls of ok. They are short at first, since most answers come
// soon. Later they are longer, since a call may cost a process a page of metrics.
const firstPause, lastPause = 5 * time.Millisecond, 80 * time.Millisecond

// poll calls ok until it returns true, the context ends, or p (may be nil) ends.
func poll(ctx context.Context, what string, p *Process, ok func() bool) error {
	pause := firstPause
	tick := time.NewTimer(pause)
	defer tick.Stop()
	var died <-chan struct{}
	if p != nil {
		died = p.Done()
	}
	for !ok() {
		select {
		case <-tick.C:
			pause = min(pause*2, lastPause)
			tick.Reset(pause)
		case <-died:
			return fmt.Errorf("stack: waited for %s: it ended: %w", what, p.Err())
		case <-ctx.Done():
			return fmt.Errorf("stack: waited for %s: %w", what, ctx.Err())
		}
	}
	return nil
}

// Await calls ok until it returns true or the context ends.
func Await(ctx context.Context, what string, ok func() bool) error { return poll(ctx, what, nil, ok) }
