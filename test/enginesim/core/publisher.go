package core

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"slices"
	"sync"
	"time"
)

// subscriberQueue is how many messages may wait for one slow subscriber. Further ones are
// dropped for it, as a PUB socket does at its high-water mark.
const subscriberQueue = 100_000

// replayEnd is the sequence number of the message that ends a replay.
const replayEnd = ^uint64(0)

// encoder appends the payload of one batch of a rank's events.
type encoder func(dst []byte, ts float64, events []Event, rank uint32) []byte

// publisher sends one rank's event batches, with a PUB socket, and a ROUTER socket that
// replays the last batches.
type publisher struct {
	// set at construction, read-only
	rank   uint32
	topic  []byte
	keep   int
	pub    net.Listener
	replay net.Listener // nil: no replay
	encode encoder

	mu      sync.Mutex // guards the fields below
	seq     uint64     // of the next batch
	batches [][]byte   // a ring of the payloads of the last len(batches) sequence numbers
	drop    int        // batches that will still be kept from the PUB socket
	mute    bool       // all are kept back, and no replay is answered; see Lie
	subs    map[*subscriber]struct{}
}

// subscriber is one connection of the PUB socket.
type subscriber struct {
	out Outbox

	mu     sync.Mutex // guards topics
	topics [][]byte
}

// publish sends events as one batch. It never blocks.
func (p *publisher) publish(events []Event) {
	if p == nil {
		return
	}
	payload := p.encode(nil, float64(time.Now().UnixMicro())/1e6, events, p.rank)
	p.mu.Lock()
	defer p.mu.Unlock()
	seq := p.seq
	p.seq++
	if len(p.batches) < p.keep {
		p.batches = append(p.batches, payload)
	} else {
		p.batches[seq%uint64(p.keep)] = payload
	}
	if p.drop > 0 {
		p.drop--
		return
	}
	if len(p.subs) == 0 || p.mute {
		return
	}
	wire := appendZMTP(nil, p.topic, binary.BigEndian.AppendUint64(nil, seq), payload)
	for s := range p.subs {
		s.send(p.topic, wire)
	}
}

func (s *subscriber) send(topic, wire []byte) {
	s.mu.Lock()
	wanted := slices.ContainsFunc(s.topics, func(t []byte) bool { return bytes.HasPrefix(topic, t) })
	s.mu.Unlock()
	if wanted {
		s.out.Push(wire, subscriberQueue)
	}
}

// next returns the sequence number of the next batch.
func (p *publisher) next() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seq
}

// subscribed reports whether a subscription is in.
func (p *publisher) subscribed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.subs {
		s.mu.Lock()
		n := len(s.topics)
		s.mu.Unlock()
		if n > 0 {
			return true
		}
	}
	return false
}

func (p *publisher) muted() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mute
}

func (p *publisher) dropNext(n int) {
	p.mu.Lock()
	p.drop = n
	p.mu.Unlock()
}

// servePub runs one PUB connection until it ends.
func (p *publisher) servePub(ctx context.Context, c net.Conn) {
	r, err := acceptZMTP(c, "PUB")
	if err != nil {
		return
	}
	s := &subscriber{out: NewOutbox()}
	p.mu.Lock()
	p.subs[s] = struct{}{}
	p.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { s.out.Run(ctx, c) })
	s.read(r)
	p.mu.Lock()
	delete(p.subs, s)
	p.mu.Unlock()
	cancel()
	wg.Wait()
}

// read applies the peer's subscriptions: commands in ZMTP 3.1, messages in 3.0.
func (s *subscriber) read(r *bufio.Reader) {
	for {
		m, err := readZMTP(r)
		if err != nil {
			return
		}
		var topic []byte
		var add bool
		name, body := "", m.frames[0]
		if m.command {
			name, body = cutZMTPCommand(m.frames[0])
		}
		switch {
		case name == "SUBSCRIBE", name == "CANCEL":
			topic, add = body, name == "SUBSCRIBE"
		case name == "PING" && len(body) >= 2:
			s.out.Push(pong(body[2:]), 0)
			continue
		case !m.command && len(body) > 0 && body[0] <= 1:
			topic, add = body[1:], body[0] == 1
		default:
			continue
		}
		s.mu.Lock()
		if add {
			s.topics = append(s.topics, topic)
		} else if i := slices.IndexFunc(s.topics, func(t []byte) bool { return bytes.Equal(t, topic) }); i >= 0 {
			s.topics = slices.Delete(s.topics, i, i+1)
		}
		s.mu.Unlock()
	}
}

// serveReplay runs one ROUTER connection. Each request ["", seq] is answered with the
// kept batches from seq on and then the end mark, in the framing of SGLang >= 0.5.22:
// ["", topic, seq, payload] and ["", "", -1, ""].
func (p *publisher) serveReplay(_ context.Context, c net.Conn) {
	r, err := acceptZMTP(c, "ROUTER")
	if err != nil {
		return
	}
	for {
		m, err := readZMTP(r)
		if err != nil {
			return
		}
		if m.command {
			if name, body := cutZMTPCommand(m.frames[0]); name == "PING" && len(body) >= 2 {
				if _, err := c.Write(pong(body[2:])); err != nil {
					return
				}
			}
			continue
		}
		if len(m.frames) != 2 || len(m.frames[0]) != 0 || len(m.frames[1]) != 8 {
			continue
		}
		if p.muted() {
			continue
		}
		if _, err := c.Write(p.replayFrom(binary.BigEndian.Uint64(m.frames[1]))); err != nil {
			return
		}
	}
}

func (p *publisher) replayFrom(start uint64) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	var wire []byte
	for seq := max(start, p.seq-uint64(len(p.batches))); seq < p.seq; seq++ {
		wire = appendZMTP(wire, nil, p.topic, binary.BigEndian.AppendUint64(nil, seq), p.batches[seq%uint64(p.keep)])
	}
	return appendZMTP(wire, nil, nil, binary.BigEndian.AppendUint64(nil, replayEnd), nil)
}

func (p *publisher) close() {
	if p == nil {
		return
	}
	_ = p.pub.Close()
	if p.replay != nil {
		_ = p.replay.Close()
	}
}
