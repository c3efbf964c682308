package core

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// This is the server's side of ZMTP 3.1 with the NULL mechanism, as far as PUB and ROUTER
// need https://rfc.zeromq.org/spec/37/.
const (
	zmtpMore    = 0x01
	zmtpLong    = 0x02
	zmtpCommand = 0x04

	zmtpMaxFrame      = 1 << 20 // largest frame that a peer may send; subscriptions and replay requests are tiny
	zmtpMaxFrames     = 64
	zmtpHandshakeTime = 5 * time.Second
)

// zmtpMessage is one command, or one message with all its frames.
type zmtpMessage struct {
	command bool
	frames  [][]byte // a command has one frame, which includes its name
}

// readZMTP reads one command or message.
func readZMTP(r *bufio.Reader) (zmtpMessage, error) {
	var m zmtpMessage
	for {
		flags, err := r.ReadByte()
		if err != nil {
			return m, err
		}
		if flags&^(zmtpMore|zmtpLong|zmtpCommand) != 0 {
			return m, fmt.Errorf("enginesim: zmtp frame flags %#x: reserved bits are set", flags)
		}
		var size uint64
		if flags&zmtpLong != 0 {
			var b [8]byte
			if _, err := io.ReadFull(r, b[:]); err != nil {
				return m, err
			}
			size = binary.BigEndian.Uint64(b[:])
		} else {
			b, err := r.ReadByte()
			if err != nil {
				return m, err
			}
			size = uint64(b)
		}
		if size > zmtpMaxFrame || len(m.frames) == zmtpMaxFrames {
			return m, fmt.Errorf("enginesim: zmtp frame of %d bytes: expected at most %d in %d frames", size, zmtpMaxFrame, zmtpMaxFrames)
		}
		frame := make([]byte, size)
		if _, err := io.ReadFull(r, frame); err != nil {
			return m, err
		}
		m.frames = append(m.frames, frame)
		m.command = flags&zmtpCommand != 0
		if m.command && (flags&zmtpMore != 0 || len(m.frames) > 1) {
			return m, errors.New("enginesim: zmtp command inside a message")
		}
		if flags&zmtpMore == 0 {
			return m, nil
		}
	}
}

// appendZMTP appends a message with the frames in wire form.
func appendZMTP(dst []byte, frames ...[]byte) []byte {
	for i, f := range frames {
		var flags byte
		if i < len(frames)-1 {
			flags = zmtpMore
		}
		dst = appendZMTPFrame(dst, flags, f)
	}
	return dst
}

func appendZMTPFrame(dst []byte, flags byte, body []byte) []byte {
	if len(body) > 255 {
		dst = binary.BigEndian.AppendUint64(append(dst, flags|zmtpLong), uint64(len(body)))
	} else {
		dst = append(dst, flags, byte(len(body)))
	}
	return append(dst, body...)
}

// pong returns the answer to a PING with the given context.
func pong(context []byte) []byte {
	return appendZMTPFrame(nil, zmtpCommand, append([]byte("\x04PONG"), context...))
}

// cutZMTPCommand splits a command's frame into name and body.
func cutZMTPCommand(frame []byte) (name string, body []byte) {
	if len(frame) == 0 || len(frame) < 1+int(frame[0]) {
		return "", nil
	}
	n := 1 + int(frame[0])
	return string(frame[1:n]), frame[n:]
}

// acceptZMTP performs the server's side of the handshake for a socket type.
func acceptZMTP(c net.Conn, socketType string) (*bufio.Reader, error) {
	_ = c.SetDeadline(time.Now().Add(zmtpHandshakeTime))
	var hello [64]byte
	hello[0], hello[9], hello[10], hello[11] = 0xff, 0x7f, 3, 1
	copy(hello[12:], "NULL")
	ready := append([]byte{5}, "READY\x0bSocket-Type"...)
	ready = binary.BigEndian.AppendUint32(ready, uint32(len(socketType)))
	ready = append(ready, socketType...)
	if _, err := c.Write(appendZMTPFrame(hello[:], zmtpCommand, ready)); err != nil {
		return nil, err
	}
	r := bufio.NewReader(c)
	var peer [64]byte
	if _, err := io.ReadFull(r, peer[:]); err != nil {
		return nil, err
	}
	if peer[0] != 0xff || peer[9] != 0x7f || peer[10] < 3 || !bytes.HasPrefix(peer[12:32], []byte("NULL\x00")) {
		return nil, errors.New("enginesim: zmtp greeting: expected version 3 and mechanism NULL")
	}
	m, err := readZMTP(r)
	if err != nil {
		return nil, err
	}
	if name, _ := cutZMTPCommand(m.frames[0]); !m.command || name != "READY" {
		return nil, errors.New("enginesim: zmtp handshake: expected READY")
	}
	return r, c.SetDeadline(time.Time{})
}
