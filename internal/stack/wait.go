package stack

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"sync/atomic"
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

// The ports of [FreePorts], and how many were tried: chance sets where a process
// begins, so that two beside each other seldom meet.
const firstPort, lastPort = 20000, 32000

var (
	portChance = rand.Uint32N(lastPort - firstPort)
	portsTried atomic.Uint32
)

// FreePorts returns n different loopback ports that were free a moment ago, that
// the kernel gives to nobody by itself (Linux: 32768 and up), and that no call of
// this process has returned before (until some thousands later). So nothing that
// asks the kernel for a port takes one meanwhile, and a process that was killed
// finds its port free when it is started again; on a kernel's own port a client
// that dials the dead process can even be connected to itself.
func FreePorts(n int) ([]int, error) {
	var ports []int
	for range lastPort - firstPort {
		if len(ports) == n {
			return ports, nil
		}
		port := firstPort + int((portChance+portsTried.Add(1))%(lastPort-firstPort))
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		defer l.Close()
		ports = append(ports, port)
	}
	return nil, fmt.Errorf("stack: no %d free ports from %d to %d", n, firstPort, lastPort)
}
