package kvevents

import (
	"context"
	"sync/atomic"
)

// room bounds the bytes that wait in a channel between two goroutines. The channel itself
// bounds only the number of messages, and a few may have many megabytes.
type room struct {
	held atomic.Int64
	left chan struct{} // one slot: bytes were taken out since held was last read
}

func newRoom() *room { return &room{left: make(chan struct{}, 1)} }

// enter waits until fewer than waitingBytes wait. A message may thus be larger than the
// whole room.
func (r *room) enter(ctx context.Context, bytes int) error {
	for r.held.Load() >= waitingBytes {
		select {
		case <-r.left:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	r.held.Add(int64(bytes))
	return nil
}

func (r *room) leave(bytes int) {
	r.held.Add(-int64(bytes))
	select {
	case r.left <- struct{}{}:
	default: // the slot is full: enter has not read held since
	}
}
