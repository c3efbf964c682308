package kvevents

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// Wire constants of ZMTP 3.1, https://rfc.zeromq.org/spec/37/.
const (
	flagMore    = 1 << 0
	flagLong    = 1 << 1
	flagCommand = 1 << 2

	greetingSize = 64
	maxFrames    = 8 // per message; the known streams have at most four
	// readBuffer is small because there may be thousands of connections. Larger payloads
	// are read around the buffer.
	readBuffer = 16 << 10
	maxCommand = 8 << 10 // bytes; a READY with all its properties has some hundred
	maxTopic   = 1 << 10 // bytes of a first frame that names a worker
)

// socketType is the ZeroMQ pattern that a connection takes part in.
type socketType string

const (
	typeSub    socketType = "SUB"
	typeDealer socketType = "DEALER"
)

// accepts reports whether a socket of this type may talk to the peer's type.
func (s socketType) accepts(peer string) bool {
	if s == typeSub {
		return peer == "PUB" || peer == "XPUB"
	}
	return peer == "ROUTER"
}

var errFrame = errors.New("kvevents: zmtp")

// conn is one ZMTP connection with the NULL mechanism. Any goroutine may send;
// one goroutine at a time may receive.
type conn struct {
	// set at construction, read-only
	nc        net.Conn
	peer      string // its address, for logs and errors
	minor     byte   // minor protocol version of the peer; the major one is 3
	maxBytes  int    // per message
	quiet     time.Duration
	heartbeat time.Duration

	// owned by the receiving goroutine
	r    *bufio.Reader
	head [8]byte // the size of the frame that is read

	// writeMu guards writing: frames of two messages must not mix. No other lock is taken
	// under it.
	writeMu sync.Mutex
	out     []byte
}

type connConfig struct {
	maxBytes  int           // per message, all frames together
	heartbeat time.Duration // between PINGs; a peer that sends no byte for three of them is lost
	timeout   time.Duration // for dial and handshake together; of a router also for each answer
}

type dialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// dialZMQ connects to a bound socket and shakes hands. Cancelling ctx ends the
// handshake too; after that the caller closes the connection.
func dialZMQ(ctx context.Context, dial dialFunc, addr string, typ socketType, cfg connConfig) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, cfg.timeout)
	defer cancel()
	nc, err := dial(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("kvevents: connect to %s: %w", addr, err)
	}
	c, err := shake(ctx, nc, typ, cfg)
	if err != nil {
		_ = nc.Close()
		return nil, fmt.Errorf("kvevents: handshake with %s: %w", addr, err)
	}
	c.peer = addr
	return c, nil
}

// shake performs the handshake on a connection that was dialed or accepted. The NULL
// mechanism is the same for both sides.
func shake(ctx context.Context, nc net.Conn, typ socketType, cfg connConfig) (*conn, error) {
	stop := context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) })
	c := &conn{nc: nc, maxBytes: cfg.maxBytes, r: bufio.NewReaderSize(nc, readBuffer)}
	err := c.handshake(typ)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	switch {
	case typ == typeDealer:
		// No PINGs: an answer is due, so a router is given up when it has been silent for
		// the timeout.
		c.quiet = cfg.timeout
	case c.minor >= 1:
		// The RFC's "PING … TTL" is unknown to a 3.0 peer. Only TCP keepalive then tells a
		// dead peer from a quiet one.
		c.heartbeat, c.quiet = cfg.heartbeat, 3*cfg.heartbeat
	}
	return c, nil
}

func (c *conn) close() { _ = c.nc.Close() }

// handshake exchanges greetings and READY commands.
func (c *conn) handshake(typ socketType) error {
	var hello [greetingSize]byte
	hello[0], hello[9], hello[10], hello[11] = 0xff, 0x7f, 3, 1
	copy(hello[12:32], "NULL")
	if _, err := c.nc.Write(hello[:]); err != nil {
		return err
	}
	var peer [greetingSize]byte
	if _, err := io.ReadFull(c.r, peer[:]); err != nil {
		return fmt.Errorf("greeting: %w", err)
	}
	if peer[0] != 0xff || peer[9]&1 == 0 || peer[10] < 3 {
		return fmt.Errorf("%w: greeting % x: expected version 3", errFrame, peer[:12])
	}
	if m := string(peer[12:17]); m != "NULL\x00" {
		return fmt.Errorf("%w: mechanism %q: expected NULL", errFrame, m)
	}
	c.minor = peer[11]
	if peer[10] > 3 {
		c.minor = 1
	}
	ready := appendProperty([]byte("\x05READY"), "Socket-Type", string(typ))
	if typ == typeDealer {
		// NB: some routers send replies to every peer of one identity, also of the empty
		// one. The identity is random, since a router may refuse one whose connection it
		// believes to be open.
		ready = appendProperty(ready, "Identity", rand.Text())
	}
	if err := c.write(flagCommand, ready); err != nil {
		return err
	}
	flags, body, err := c.frame(maxCommand)
	if err != nil {
		return fmt.Errorf("ready: %w", err)
	}
	name, data, err := command(body)
	if flags&flagCommand == 0 || err != nil || name != "READY" {
		return fmt.Errorf("%w: %q: expected READY", errFrame, truncated(body))
	}
	got, err := property(data, "Socket-Type")
	if err != nil {
		return err
	}
	if !typ.accepts(got) {
		return fmt.Errorf("%w: socket type %q does not serve %s", errFrame, got, typ)
	}
	return nil
}

func truncated(b []byte) []byte { return b[:min(len(b), 64)] }

func appendProperty(b []byte, name, value string) []byte {
	b = append(append(b, byte(len(name))), name...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(value)))
	return append(b, value...)
}

// property returns a metadata property; names are case-insensitive.
func property(data []byte, want string) (string, error) {
	for len(data) > 0 {
		n := int(data[0])
		if len(data) < 1+n+4 {
			break
		}
		name, rest := data[1:1+n], data[1+n:]
		size := binary.BigEndian.Uint32(rest)
		if uint64(len(rest)-4) < uint64(size) {
			break
		}
		if strings.EqualFold(string(name), want) {
			return string(rest[4 : 4+size]), nil
		}
		data = rest[4+size:]
	}
	return "", fmt.Errorf("%w: metadata without %s", errFrame, want)
}

func command(body []byte) (name string, data []byte, err error) {
	if len(body) == 0 || len(body) < 1+int(body[0]) {
		return "", nil, fmt.Errorf("%w: command of %d bytes", errFrame, len(body))
	}
	n := 1 + int(body[0])
	return string(body[1:n]), body[n:], nil
}

// subscribe asks for messages whose first frame begins with the topic. Publishers of
// every 3.x version understand the message form (1, topic).
func (c *conn) subscribe(topic string) error {
	return c.write(0, append([]byte{1}, topic...))
}

// send writes one message of several frames.
func (c *conn) send(frames ...[]byte) error {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	c.out = c.out[:0]
	for i, f := range frames {
		flags := byte(0)
		if i < len(frames)-1 {
			flags = flagMore
		}
		c.out = appendFrame(c.out, flags, f)
	}
	return c.flushLocked()
}

func (c *conn) write(flags byte, body []byte) error {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	c.out = appendFrame(c.out[:0], flags, body)
	return c.flushLocked()
}

func (c *conn) flushLocked() error {
	if c.quiet > 0 {
		// A peer that reads nothing for so long is lost.
		_ = c.nc.SetWriteDeadline(time.Now().Add(c.quiet))
	}
	_, err := c.nc.Write(c.out)
	return err
}

func appendFrame(b []byte, flags byte, body []byte) []byte {
	if len(body) > 255 {
		b = append(b, flags|flagLong)
		b = binary.BigEndian.AppendUint64(b, uint64(len(body)))
	} else {
		b = append(b, flags, byte(len(body)))
	}
	return append(b, body...)
}

// frame reads one frame of at most limit bytes into new memory. A command may have at
// most maxCommand bytes.
func (c *conn) frame(limit int) (flags byte, body []byte, err error) {
	flags, err = c.r.ReadByte()
	if err != nil {
		return 0, nil, err
	}
	if flags&^(flagMore|flagLong|flagCommand) != 0 {
		return 0, nil, fmt.Errorf("%w: frame flags %#x", errFrame, flags)
	}
	head := c.head[7:]
	clear(c.head[:])
	if flags&flagLong != 0 {
		head = c.head[:]
	}
	_, err = io.ReadFull(c.r, head)
	if err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint64(c.head[:])
	if flags&flagCommand != 0 {
		limit = maxCommand
	}
	if n > uint64(max(limit, 0)) {
		return 0, nil, fmt.Errorf("%w: frame of %d bytes: at most %d are taken", errFrame, n, limit)
	}
	body, err = c.body(int(n))
	return flags, body, err
}

// body reads n bytes. The buffer grows with the bytes that arrive, not by the announced
// size: a peer makes us take at most twice what it has sent.
func (c *conn) body(n int) ([]byte, error) {
	b := make([]byte, min(n, readBuffer))
	for from := 0; ; {
		if _, err := io.ReadFull(c.r, b[from:]); err != nil || len(b) == n {
			return b, err
		}
		from = len(b)
		b = append(make([]byte, 0, min(n, 2*from)), b...)
		b = b[:cap(b)]
	}
}

// receive reads the next message into frames, which may be reused, and answers PINGs on
// the way. The bytes of the frames belong to the caller. After an error the connection is
// of no use. keepalive must run in another goroutine meanwhile.
func (c *conn) receive(frames [][]byte) ([][]byte, error) { return c.receiveIf(frames, nil) }

// receiveIf is like receive, but calls judge, unless it is nil, with the first frame,
// which may then have at most maxTopic bytes. An error of judge is returned, and nothing
// more is read.
func (c *conn) receiveIf(frames [][]byte, judge func(first []byte) error) ([][]byte, error) {
	frames = frames[:0]
	left := c.maxBytes
	for {
		if c.quiet > 0 {
			_ = c.nc.SetReadDeadline(time.Now().Add(c.quiet))
		}
		limit := left
		if judge != nil && len(frames) == 0 {
			limit = min(left, maxTopic)
		}
		flags, body, err := c.frame(limit)
		if err != nil {
			return frames, err
		}
		if flags&flagCommand != 0 {
			if err := c.command(body); err != nil {
				return frames, err
			}
			continue
		}
		if judge != nil && len(frames) == 0 {
			if err := judge(body); err != nil {
				return frames, err
			}
		}
		frames = append(frames, body)
		left -= len(body)
		if flags&flagMore == 0 {
			return frames, nil
		}
		if len(frames) == maxFrames {
			return frames, fmt.Errorf("%w: message of more than %d frames", errFrame, maxFrames)
		}
	}
}

// command handles a command between messages. A PING is answered ("PONG … the context of
// the PING"), an ERROR ends the connection, and others are ignored, as the protocol asks.
func (c *conn) command(body []byte) error {
	name, data, err := command(body)
	if err != nil {
		return err
	}
	switch name {
	case "PING": // 2 bytes TTL, then up to 16 bytes of context
		if len(data) < 2 {
			return fmt.Errorf("%w: PING of %d bytes", errFrame, len(data))
		}
		return c.write(flagCommand, append([]byte("\x04PONG"), data[2:min(len(data), 18)]...))
	case "ERROR":
		return fmt.Errorf("%w: peer says %q", errFrame, truncated(data))
	}
	return nil
}

// ping asks the peer for a sign of life. A 3.0 peer knows no PING, so nothing is sent to
// it.
func (c *conn) ping() error {
	if c.heartbeat == 0 {
		return nil
	}
	return c.write(flagCommand, []byte("\x04PING\x00\x00"))
}
