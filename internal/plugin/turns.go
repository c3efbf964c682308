package plugin

import (
	"errors"
	"net"
	"sync"
)

// turns lets several servers serve one listener, one after the other. The next one takes
// over when one has closed its turn, and no connection is refused between. A drain needs
// this: a gRPC server that tells its clients to go away closes its listener, while the
// legs of requests that have begun still have to come in.
type turns struct {
	at     net.Addr // of the first listener
	next   chan accepted
	closed chan struct{}

	mu   sync.Mutex
	over bool           // guarded by mu
	from []net.Listener // guarded by mu: the listeners that were added
}

// accepted is a result of the listener's Accept.
type accepted struct {
	conn net.Conn
	err  error
}

// inTurns returns turns at an address, without a listener yet.
func inTurns(at net.Addr) *turns {
	return &turns{at: at, next: make(chan accepted), closed: make(chan struct{})}
}

// add takes over l: the listener of the address, or later one beside it, of a socket whose
// file had to be made again. Close closes it and ends its goroutine.
func (t *turns) add(l net.Listener) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		_ = l.Close()
		return
	}
	t.from = append(t.from, l)
	go t.accept(l)
}

// accept passes connections and errors to the server whose turn it is. The server judges
// errors, since some are temporary.
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

func (t *turns) Addr() net.Addr { return t.at }

func (t *turns) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return nil
	}
	t.over = true
	close(t.closed)
	var err error
	for _, l := range t.from {
		err = errors.Join(err, l.Close())
	}
	return err
}

// turn returns a listener for a server. Its Close ends the turn, and leaves the real
// listener open.
func (t *turns) turn() net.Listener { return &turn{turns: t, over: make(chan struct{})} }

type turn struct {
	*turns
	over chan struct{}
	once sync.Once
}

func (t *turn) Accept() (net.Conn, error) {
	select {
	case <-t.over: // checked first, so that no waiting connection is taken after the end
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
