package enginesim

import (
	"context"
	"net"
	"sync"
)

// outbox is an unbounded queue of wire messages for one connection, so that a peer that
// does not read stops no other. Safe for concurrent use.
type outbox struct {
	mu    sync.Mutex
	queue net.Buffers
	wake  chan struct{} // one element: the queue is not empty
}

func newOutbox() outbox { return outbox{wake: make(chan struct{}, 1)} }

// push queues a message, unless limit messages are waiting (0: no limit).
func (o *outbox) push(wire []byte, limit int) {
	o.mu.Lock()
	full := limit > 0 && len(o.queue) >= limit
	if !full {
		o.queue = append(o.queue, wire)
	}
	o.mu.Unlock()
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// run writes to c until ctx ends or the connection fails, and then closes c.
func (o *outbox) run(ctx context.Context, c net.Conn) {
	defer c.Close() //nolint:errcheck // the connection is of no more use
	for {
		select {
		case <-ctx.Done():
			return
		case <-o.wake:
		}
		o.mu.Lock()
		q := o.queue
		o.queue = nil
		o.mu.Unlock()
		if _, err := q.WriteTo(c); err != nil {
			return
		}
	}
}
