package stack

import (
	"context"
	"fmt"
	"net"
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

// FreePorts returns n loopback TCP ports that were free a moment ago.
func FreePorts(n int) ([]int, error) {
	ports := make([]int, n)
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("stack: find a free port: %w", err)
		}
		defer l.Close()
		ports[i] = l.Addr().(*net.TCPAddr).Port
	}
	return ports, nil
}
