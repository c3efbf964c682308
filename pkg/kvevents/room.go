package kvevents

import (
	"context"
	"sync/atomic"
)

// room bounds the bytes of what waits in a channel from one goroutine to another: by their
// count alone, few messages and many megabytes are the same.
type room struct {
	held atomic.Int64
	left chan struct{} // one slot: something was taken since held was looked at
}

func newRoom() *room { return &room{left: make(chan struct{}, 1)} }

// enter waits until there is room. Of what is larger than all of it one fits.
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
	default: // it has not been looked at since
	}
}
