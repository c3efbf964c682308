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

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// A publisher may dial: vLLM does where its endpoint names no wildcard. The
// subscriber then listens, and finds out whose connection it is by the first
// message:
//
//   - by its topic, kv@ADDRESS@MODEL, where ADDRESS is the worker's endpoint,
//     with or without the port;
//   - without such a topic by the address that it was dialed from, if one
//     worker only has it.
//
// The rank is the one that the batch names. From there on the connection is
// followed as if it had been dialed, but for the replay: the publisher's router
// is asked only where discovery names it.
//
// Whoever reaches the address can dial, so nothing that a peer sends decides how
// much memory it takes before its topic or its address has named a worker: its
// frames are small until then, its handshake has Config.Timeout, and one that
// sends no byte for three heartbeats is let go. How many may wait follows from
// the workers that are known.

var (
	errReplaced = errors.New("kvevents: the publisher has dialed again")
	errStranger = errors.New("kvevents: the publisher is of no worker that is known and names no address of its own")
)

// adopted is a connection that a publisher has dialed, and what was read of it
// to find out whose it is.
type adopted struct {
	conn  *conn
	first message
}

// binder accepts connections of publishers on one address.
type binder struct {
	sub       *Subscriber
	addr      string
	newcomers *newcomers

	// mu guards status. A leaf.
	mu     sync.Mutex
	status ChannelStatus
}

func newBinder(s *Subscriber, addr string) *binder {
	return &binder{sub: s, addr: addr, newcomers: newNewcomers(), status: ChannelStatus{Name: "bind " + addr, Since: time.Now()}}
}

// run listens until ctx ends, and tries again while the address cannot be had.
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
	b.status.Up, b.status.Since, b.status.Name = true, time.Now(), "bind "+l.Addr().String()
	b.mu.Unlock()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer l.Close() //nolint:errcheck // nothing is lost with it
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

// most is how many peers may wait: an idle worker's does until its first event.
func (b *binder) most() int {
	told := b.sub.told.Load()
	if told == nil {
		return leastNewcomers
	}
	return max(leastNewcomers, 2*len(*told))
}

// enter lets a peer in, in the place of another one where there are too many.
func (b *binder) enter(nc net.Conn) {
	most := b.most()
	out, log := b.newcomers.enter(nc, most, time.Now())
	if out == nil {
		return
	}
	b.refuse(TooManyPeers)
	b.failed(fmt.Errorf("%w: %s, at most %d may wait", errCrowded, out.RemoteAddr(), most))
	if log {
		b.sub.cfg.Logger.Warn("too many peers dial the address of KV events and say nothing: who has waited longest is let go",
			slog.String("address", b.addr), slog.Int("limit", most), slog.String("peer", out.RemoteAddr().String()))
	}
	_ = out.Close()
}

// greet finds out whose connection it is and hands it over.
func (b *binder) greet(ctx context.Context, nc net.Conn) {
	stop := context.AfterFunc(ctx, func() { _ = nc.Close() })
	m := meeting{binder: b, nc: nc}
	defer m.end()
	a, rank, err := m.meet(ctx)
	var s *stream
	if err == nil {
		if s = b.sub.awaiting(rank); s == nil {
			err = fmt.Errorf("%w: rank %s", errStranger, rank)
		}
	}
	stayed := b.newcomers.leave(nc)
	if !stop() || err != nil || !stayed {
		if stayed { // else it was told when it had to go
			b.parted(err)
		}
		_ = nc.Close()
		return
	}
	b.mu.Lock()
	b.status.Messages++
	b.mu.Unlock()
	s.adopt(a)
}

// parted notes why a peer was not taken.
func (b *binder) parted(err error) {
	b.failed(err)
	switch {
	case errors.Is(err, errStranger):
		b.refuse(UnknownWorker)
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, errSlow):
		b.refuse(SilentPeer)
	}
}

// meeting is the time until it is known whose a connection is.
type meeting struct {
	binder *binder
	nc     net.Conn

	worker worker.ID   // named by the topic or the address
	placed bool        // holds a place among those that send a payload
	slow   *time.Timer // closes the connection; nil: not yet
}

// end gives back what the meeting has taken.
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
	c.quiet = 3 * cfg.Heartbeat // of a peer that cannot be asked for a sign of life, too
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

// judge finds out whose message begins with the topic, and waits for a place to
// read the rest of it.
func (m *meeting) judge(ctx context.Context, topic []byte) error {
	var ok bool
	if m.worker, ok = m.binder.sub.dialers.Load().find(string(topic), m.nc.RemoteAddr().String()); !ok {
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

func (b *binder) refuse(why Reason) {
	b.mu.Lock()
	b.status.Refused[why]++
	b.mu.Unlock()
	b.sub.cfg.Hooks.refused(worker.Rank{}, why, 1)
}

func (b *binder) failed(err error) {
	if err == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.status.LastError, b.status.LastFault = err.Error(), time.Now()
}

func (b *binder) snapshot() ChannelStatus {
	b.mu.Lock()
	st := b.status
	b.mu.Unlock()
	st.Waiting, st.MaxWaiting = b.newcomers.count(), b.most()
	return st
}

// dialers are the workers whose publishers may dial, by the names they go by.
// Immutable.
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
			delete(d, h) // it names several
		}
	}
	return &d
}

// find returns whose publisher has the topic, or dials from the address.
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

// batchRank reads the rank of a batch; 0 where it names none.
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

// adopt gives the stream a connection. The newest one counts.
func (s *stream) adopt(a adopted) {
	select {
	case s.adopted <- a:
	case <-s.ended:
		a.conn.close()
	}
}

// await follows one connection after the other of a publisher that dials.
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
