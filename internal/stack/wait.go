package stack

import (
	"context"
	"fmt"
	"math/rand/v2"
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

// FreePorts returns n loopback TCP ports that were free a moment ago. They are of
// the range that the kernel also gives to outgoing connections; for what is to
// come back to its port after a while, use [KeptPorts].
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

// KeptPorts returns n different loopback ports that were free a moment ago and
// that the kernel gives to nobody by itself (Linux: 32768 and up), so that a
// process that was killed finds its port free when it is started again. On a
// kernel's own port a client that dials the dead process can even be connected
// to itself.
func KeptPorts(n int) ([]int, error) {
	const first, last, tries = 20000, 32000, 200
	var ports []int
	for range tries {
		if len(ports) == n {
			return ports, nil
		}
		port := first + rand.IntN(last-first)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		defer l.Close()
		ports = append(ports, port)
	}
	return nil, fmt.Errorf("stack: no %d free ports from %d to %d", n, first, last)
}
