package kvevents

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// A publisher may dial: vLLM does so if its endpoint has no wildcard. The subscriber then
// listens, and learns from the first message which worker a connection belongs to:
//
//   - from the topic kv@ADDRESS@MODEL, where ADDRESS is the worker's endpoint, with or
//     without the port;
//   - without such a topic, from the peer's address, if only one worker has it.
//
// The batch names the rank. After that the connection is followed as if the subscriber
// had dialed it, except for replays: they are asked for only if discovery names the
// publisher's router.
//
// Any peer that reaches the address can dial. So until a peer's topic or address has
// named a worker, the peer cannot decide how much memory it takes: its frames must be
// small, its handshake must end within Config.Timeout, and it is closed if it sends no
// byte for three heartbeats. How many peers may wait follows from the number of known
// workers.

var (
	errReplaced = errors.New("kvevents: the publisher has dialed again")
	errStranger = errors.New("kvevents: the publisher is of no worker that is known and names no address of its own")
)

// adopted is a connection that a publisher has dialed, and the first message, which was
// read to learn its worker.
type adopted struct {
	conn  *conn
	first message
}

// binder accepts the connections of publishers on one address.
type binder struct {
	sub       *Subscriber
	addr      string
	newcomers *newcomers
	channelState
}

func newBinder(s *Subscriber, addr string) *binder {
	return &binder{sub: s, addr: addr, newcomers: newNewcomers(), channelState: channelState{status: ChannelStatus{Name: "bind " + addr, Since: time.Now()}}}
}

// run listens until ctx ends. If it cannot listen on the address, it tries again.
func (b *binder) run(ctx context.Context) {
	cfg := &b.sub.cfg
	for {
		b.failed(b.listen(ctx))
		if !sleep(ctx, cfg.MaxBackoff) {
			return
		}
	}
}

func (b *binder) listen(ctx context.Context) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", b.addr)
	if err != nil {
		return fmt.Errorf("kvevents: listen on %s: %w", b.addr, err)
	}
	b.mu.Lock()
	b.status.Name = "bind " + l.Addr().String()
	b.mu.Unlock()
	b.setUp(true)
	defer b.setUp(false)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer l.Close() //nolint:errcheck // closing a listener loses nothing
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	for {
		nc, err := l.Accept()
		if err != nil {
			return fmt.Errorf("kvevents: accept on %s: %w", b.addr, err)
		}
		b.enter(nc)
		wg.Go(func() { b.greet(ctx, nc) })
	}
}

// most is how many peers may wait: also the publisher of an idle worker waits, until its
// first event.
func (b *binder) most() int {
	told := b.sub.told.Load()
	if told == nil {
		return leastNewcomers
	}
	return max(leastNewcomers, 2*len(*told))
}

// enter adds a peer to those that wait. If there are too many, the one that has waited
// longest is closed.
func (b *binder) enter(nc net.Conn) {
	most := b.most()
	out, log := b.newcomers.enter(nc, most, time.Now())
	if out == nil {
		return
	}
	b.refuse(TooManyPeers)
	b.failed(fmt.Errorf("%w: %s, at most %d may wait", errCrowded, out.RemoteAddr(), most))
	if log {
		b.sub.cfg.Logger.Warn("too many peers dial the address of KV events and send nothing: the one that has waited longest is disconnected",
			slog.String(logkey.Address, b.addr), slog.Int(logkey.Limit, most), slog.String(logkey.Peer, out.RemoteAddr().String()))
	}
	_ = out.Close()
}

// greet learns which rank a connection belongs to and gives it to the rank's stream.
func (b *binder) greet(ctx context.Context, nc net.Conn) {
	stop := context.AfterFunc(ctx, func() { _ = nc.Close() })
	m := meeting{binder: b, nc: nc}
	defer m.end()
	a, rank, err := m.meet(ctx)
	var s *stream
	if err == nil {
		s = b.sub.awaiting(rank)
		if s == nil {
			err = fmt.Errorf("%w: rank %s", errStranger, rank)
		}
	}
	stayed := b.newcomers.leave(nc)
	if !stop() || err != nil || !stayed {
		if stayed { // else the reason was noted when it had to go
			b.parted(err)
		}
		_ = nc.Close()
		return
	}
	b.counted()
	s.adopt(a)
}

// parted notes why a peer was not taken.
func (b *binder) parted(err error) {
	if err != nil { // else the subscriber ends
		b.failed(err)
	}
	switch {
	case errors.Is(err, errStranger):
		b.refuse(UnknownWorker)
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, errSlow):
		b.refuse(SilentPeer)
	}
}

// meeting is the time in which the worker of a connection is not known yet.
type meeting struct {
	binder *binder
	nc     net.Conn

	worker worker.ID   // named by the topic or the address
	placed bool        // it has an element in newcomers.payloads
	slow   *time.Timer // closes the connection when the first message takes too long; nil: not started
}

// end frees the place for a payload.
func (m *meeting) end() {
	if m.placed {
		<-m.binder.newcomers.payloads
	}
}

// meet shakes hands and reads the first message.
func (m *meeting) meet(ctx context.Context) (adopted, worker.Rank, error) {
	b, cfg := m.binder, &m.binder.sub.cfg
	peer := m.nc.RemoteAddr().String()
	shaking, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	c, err := shake(shaking, m.nc, typeSub, cfg.conn())
	if err != nil {
		return adopted{}, worker.Rank{}, fmt.Errorf("kvevents: handshake with %s: %w", peer, err)
	}
	c.peer = peer
	if err := c.subscribe(""); err != nil {
		return adopted{}, worker.Rank{}, fmt.Errorf("kvevents: subscribe at %s: %w", peer, err)
	}
	quiet := c.quiet
	c.quiet = 3 * cfg.Heartbeat // also of a 3.0 peer, which cannot be asked for a sign of life
	var wg sync.WaitGroup
	defer wg.Wait()
	alive, stop := context.WithCancel(ctx)
	defer stop()
	wg.Go(func() { c.keepalive(alive, cfg.Heartbeat) })
	frames, err := c.receiveIf(nil, func(topic []byte) error { return m.judge(ctx, topic) })
	if m.slow != nil && !m.slow.Stop() && err != nil {
		err = errSlow
	}
	if err != nil {
		return adopted{}, worker.Rank{}, fmt.Errorf("kvevents: first message of %s: %w", peer, err)
	}
	c.quiet = quiet
	_ = m.nc.SetReadDeadline(time.Time{})
	first, ok := parsePublished(frames)
	if !ok {
		b.refuse(BadFrames)
		return adopted{}, worker.Rank{}, fmt.Errorf("%w: first message of %s has %d frames: expected topic, sequence and payload", errFrame, peer, len(frames))
	}
	return adopted{conn: c, first: first}, worker.Rank{ID: m.worker, DPRank: batchRank(first.payload)}, nil
}

// judge looks up the worker of a message by its topic, and waits until the rest of the
// message may be read.
func (m *meeting) judge(ctx context.Context, topic []byte) error {
	var ok bool
	m.worker, ok = m.binder.sub.dialers.Load().find(string(topic), m.nc.RemoteAddr().String())
	if !ok {
		return fmt.Errorf("%w: topic %.64q", errStranger, topic)
	}
	late := time.NewTimer(m.binder.sub.cfg.Timeout)
	defer late.Stop()
	select {
	case m.binder.newcomers.payloads <- struct{}{}:
		m.placed = true
	case <-late.C:
		return errSlow
	case <-ctx.Done():
		return ctx.Err()
	}
	m.slow = time.AfterFunc(m.binder.sub.cfg.Timeout, func() { _ = m.nc.Close() })
	return nil
}

func (b *binder) refuse(why Reason) { b.refused(&b.sub.cfg.Hooks, why, 1) }

func (b *binder) snapshot() ChannelStatus {
	st := b.channelState.snapshot()
	st.Waiting, st.MaxWaiting = b.newcomers.count(), b.most()
	return st
}

// dialers are the workers whose publishers may dial, by their addresses, with and without
// the port. Immutable.
type dialers map[string]worker.ID

func dialersOf(ws []*worker.Worker) *dialers {
	d := make(dialers)
	hosts := make(map[string]int)
	for _, w := range ws {
		if !w.KVEvents.IsZero() {
			continue
		}
		at := w.Endpoint.AddrPort()
		for a := range w.Addresses() {
			d[a.String()] = w.ID
		}
		d[at.Addr().String()] = w.ID
		hosts[at.Addr().String()]++
	}
	for h, n := range hosts {
		if n > 1 {
			delete(d, h) // several workers have this address
		}
	}
	return &d
}

// find returns the worker that the topic names; without such a topic, the worker at the
// address. False means that there is none.
func (d *dialers) find(topic, from string) (worker.ID, bool) {
	if rest, ok := strings.CutPrefix(topic, "kv@"); ok {
		name, _, _ := strings.Cut(rest, "@")
		id, ok := (*d)[name]
		return id, ok
	}
	at, err := netip.ParseAddrPort(from)
	if err != nil {
		return 0, false
	}
	id, ok := (*d)[at.Addr().Unmap().String()]
	return id, ok
}

// batchRank reads the rank of a batch, 0 if the batch names none.
func batchRank(payload []byte) worker.DPRank {
	r := reader{b: payload}
	fields := r.array()
	r.skip()
	r.skip()
	if fields < 3 || r.nil() {
		return 0
	}
	rank, neg := r.int()
	if r.err != nil || neg || rank > worker.MaxDPSize {
		return 0
	}
	return worker.DPRank(rank)
}

// adopt gives the stream a connection. It replaces an earlier one.
func (s *stream) adopt(a adopted) {
	select {
	case s.adopted <- a:
	case <-s.ended:
		a.conn.close()
	}
}

// await follows the connections of a publisher that dials, one after the other.
func (s *stream) await(ctx context.Context) {
	defer func() {
		close(s.ended)
		if s.next != nil {
			s.next.conn.close()
		}
	}()
	for {
		if s.next == nil {
			select {
			case a := <-s.adopted:
				s.next = &a
			case <-ctx.Done():
				return
			}
		}
		a := s.next
		s.next = nil
		err := s.follow(ctx, a.conn, []message{a.first})
		if ctx.Err() != nil {
			return
		}
		s.fault(err)
		s.setState(StateConnecting)
	}
}
