package plugin

import (
	"errors"
	"net"
	"sync"
)

// turns lets several servers serve one listener, one after the other: the next
// takes over where one has closed its turn, and no connection is refused between.
// A drain needs it: a gRPC server that tells its clients to go away closes its
// listener, and the legs of requests that have begun still have to come in.
type turns struct {
	net.Listener
	next   chan accepted
	closed chan struct{}

	mu   sync.Mutex
	over bool           // guarded by mu
	more []net.Listener // guarded by mu: those that have been added
}

// accepted is what the listener's Accept has returned.
type accepted struct {
	conn net.Conn
	err  error
}

// inTurns takes l over. Close ends it, and the goroutine.
func inTurns(l net.Listener) *turns {
	t := &turns{Listener: l, next: make(chan accepted), closed: make(chan struct{})}
	go t.accept(l)
	return t
}

// add serves l beside the first, as where a socket's file had to be made again. Close ends
// it, too.
func (t *turns) add(l net.Listener) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		_ = l.Close()
		return
	}
	t.more = append(t.more, l)
	go t.accept(l)
}

// accept offers what comes to whose turn it is. Errors are theirs, too: some pass.
func (t *turns) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		select {
		case t.next <- accepted{c, err}:
		case <-t.closed:
			if c != nil {
				_ = c.Close()
			}
			return
		}
	}
}

func (t *turns) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return nil
	}
	t.over = true
	close(t.closed)
	err := t.Listener.Close()
	for _, l := range t.more {
		err = errors.Join(err, l.Close())
	}
	return err
}

// turn returns a listener to serve. Its Close ends the turn, and leaves the real one
// open.
func (t *turns) turn() net.Listener { return &turn{turns: t, over: make(chan struct{})} }

type turn struct {
	*turns
	over chan struct{}
	once sync.Once
}

func (t *turn) Accept() (net.Conn, error) {
	select {
	case <-t.over: // before a connection that waits
		return nil, net.ErrClosed
	default:
	}
	select {
	case <-t.over:
		return nil, net.ErrClosed
	case <-t.closed:
		return nil, net.ErrClosed
	case a := <-t.next:
		return a.conn, a.err
	}
}

func (t *turn) Close() error {
	t.once.Do(func() { close(t.over) })
	return nil
}
