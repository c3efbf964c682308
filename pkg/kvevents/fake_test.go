package kvevents

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"sync"
)

// peer is the other side of a connection. It writes single bytes, so that it can break
// the protocol. It fails no test by itself: the far end may be gone at any time.
type peer struct {
	nc net.Conn
	r  *bufio.Reader
	mu sync.Mutex
}

// greet exchanges greetings and READY commands as the given socket type.
func (p *peer) greet(minor byte, typ string) error {
	g := make([]byte, 64)
	g[0], g[9], g[10], g[11] = 0xff, 0x7f, 3, minor
	copy(g[12:], "NULL")
	ready := appendProperty([]byte("\x05READY"), "Socket-Type", typ)
	sent := make(chan error, 1)
	go func() { sent <- p.write(append(g, appendFrame(nil, flagCommand, ready)...)) }()
	if _, err := io.ReadFull(p.r, make([]byte, 64)); err != nil {
		return err
	}
	if _, _, err := p.read(); err != nil {
		return err
	}
	return <-sent
}

func (p *peer) write(b []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err := p.nc.Write(b)
	return err
}

func (p *peer) send(frames ...[]byte) error {
	var b []byte
	for i, f := range frames {
		flags := byte(0)
		if i < len(frames)-1 {
			flags = flagMore
		}
		b = appendFrame(b, flags, f)
	}
	return p.write(b)
}

func (p *peer) read() (flags byte, body []byte, err error) {
	var h [2]byte
	if _, err := io.ReadFull(p.r, h[:]); err != nil {
		return 0, nil, err
	}
	body = make([]byte, h[1]) // our side sends no long frames
	_, err = io.ReadFull(p.r, body)
	return h[0], body, err
}

func newPeer(nc net.Conn) *peer { return &peer{nc: nc, r: bufio.NewReader(nc)} }

func be64(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// canned is a connection whose peer has already sent all its bytes. Writes are dropped.
type canned struct{ net.Conn }

func (canned) Write(b []byte) (int, error) { return len(b), nil }

func newTestConn(said []byte) *conn {
	return &conn{nc: canned{}, maxBytes: testConn.maxBytes, r: bufio.NewReader(bytes.NewReader(said))}
}
