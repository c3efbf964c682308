package stack

import (
	"context"
	"fmt"
	"time"
)

// poll asks ok until it says yes, the context ends or p (may be nil) dies.
func poll(ctx context.Context, what string, p *Process, ok func() bool) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var died <-chan struct{}
	if p != nil {
		died = p.Done()
	}
	for !ok() {
		select {
		case <-tick.C:
		case <-died:
			return fmt.Errorf("stack: waited for %s: it ended: %w", what, p.Err())
		case <-ctx.Done():
			return fmt.Errorf("stack: waited for %s: %w", what, ctx.Err())
		}
	}
	return nil
}

// Await asks ok every 20 ms until it says yes or the context ends.
func Await(ctx context.Context, what string, ok func() bool) error { return poll(ctx, what, nil, ok) }
