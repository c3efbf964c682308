package engine

import (
	"context"
	"net"
	"sync/atomic"
)

// watch dials connections and reports when one is closed. The HTTP transport always reads
// an idle connection, and closes it when the other side does.
type watch struct {
	lost chan struct{}
	idle atomic.Bool // no question is under way, and the other side has promised to keep the connection
}

func newWatch() *watch { return &watch{lost: make(chan struct{}, 1)} }

func (w *watch) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &watched{Conn: c, w: w}, nil
}

// watched is a connection that reports its end, once. If a connection ends during a
// question, the question fails: that needs no report.
type watched struct {
	net.Conn
	w      *watch
	closed atomic.Bool
}

func (c *watched) Close() error {
	if !c.closed.Swap(true) && c.w.idle.Load() {
		select {
		case c.w.lost <- struct{}{}:
		default:
		}
	}
	return c.Conn.Close()
}
