package core

import (
	"context"
	"net"
	"sync"
)

// Outbox is an unbounded queue of wire messages for one connection, so that a peer that
// does not read stops no other. Safe for concurrent use.
type Outbox struct {
	mu    sync.Mutex // guards Queue
	Queue net.Buffers
	wake  chan struct{} // one element: the queue is not empty
}

// NewOutbox returns an empty queue.
func NewOutbox() Outbox { return Outbox{wake: make(chan struct{}, 1)} }

// Push queues a message, unless limit messages are waiting (0: no limit).
func (o *Outbox) Push(wire []byte, limit int) {
	o.mu.Lock()
	full := limit > 0 && len(o.Queue) >= limit
	if !full {
		o.Queue = append(o.Queue, wire)
	}
	o.mu.Unlock()
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// Run writes to c until ctx ends or the connection fails, and then closes c.
func (o *Outbox) Run(ctx context.Context, c net.Conn) {
	defer c.Close() //nolint:errcheck // the connection is of no more use
	for {
		select {
		case <-ctx.Done():
			return
		case <-o.wake:
		}
		o.mu.Lock()
		q := o.Queue
		o.Queue = nil
		o.mu.Unlock()
		if _, err := q.WriteTo(c); err != nil {
			return
		}
	}
}
