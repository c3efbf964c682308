package kvevents

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
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

// maxWaiting bounds the connections that have not said yet whose they are.
const maxWaiting = 1024

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
	sub  *Subscriber
	addr string

	// mu guards status. A leaf.
	mu     sync.Mutex
	status ChannelStatus
}

func newBinder(s *Subscriber, addr string) *binder {
	return &binder{sub: s, addr: addr, status: ChannelStatus{Name: "bind " + addr, Since: time.Now()}}
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
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	waiting := make(chan struct{}, maxWaiting)
	for {
		nc, err := l.Accept()
		if err != nil {
			return fmt.Errorf("kvevents: accept on %s: %w", b.addr, err)
		}
		select {
		case waiting <- struct{}{}:
			wg.Go(func() {
				defer func() { <-waiting }()
				b.greet(ctx, nc)
			})
		default:
			_ = nc.Close()
		}
	}
}

// greet finds out whose connection it is and hands it over.
func (b *binder) greet(ctx context.Context, nc net.Conn) {
	stop := context.AfterFunc(ctx, func() { _ = nc.Close() })
	a, rank, err := b.meet(ctx, nc)
	var s *stream
	if err == nil {
		if s = b.sub.awaiting(rank); s == nil {
			err = fmt.Errorf("%w: rank %s", errStranger, rank)
		}
	}
	if !stop() || err != nil {
		b.failed(err)
		if errors.Is(err, errStranger) {
			b.refuse(UnknownWorker)
		}
		_ = nc.Close()
		return
	}
	b.mu.Lock()
	b.status.Messages++
	b.mu.Unlock()
	s.adopt(a)
}

// meet shakes hands and reads the first message.
func (b *binder) meet(ctx context.Context, nc net.Conn) (adopted, worker.Rank, error) {
	cfg := &b.sub.cfg
	peer := nc.RemoteAddr().String()
	shaking, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	c, err := shake(shaking, nc, typeSub, cfg.conn())
	if err != nil {
		return adopted{}, worker.Rank{}, fmt.Errorf("kvevents: handshake with %s: %w", peer, err)
	}
	c.peer = peer
	if err := c.subscribe(""); err != nil {
		return adopted{}, worker.Rank{}, fmt.Errorf("kvevents: subscribe at %s: %w", peer, err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	alive, stop := context.WithCancel(ctx)
	defer stop()
	wg.Go(func() { c.keepalive(alive, cfg.Heartbeat) })
	frames, err := c.receive(nil)
	if err != nil {
		return adopted{}, worker.Rank{}, fmt.Errorf("kvevents: first message of %s: %w", peer, err)
	}
	m, ok := parsePublished(frames)
	if !ok {
		b.refuse(BadFrames)
		return adopted{}, worker.Rank{}, fmt.Errorf("%w: first message of %s has %d frames: expected topic, sequence and payload", errFrame, peer, len(frames))
	}
	id, ok := b.sub.dialers.Load().find(string(frames[0]), peer)
	if !ok {
		return adopted{}, worker.Rank{}, fmt.Errorf("%w: topic %.64q from %s", errStranger, frames[0], peer)
	}
	return adopted{conn: c, first: m}, worker.Rank{ID: id, DPRank: batchRank(m.payload)}, nil
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
	defer b.mu.Unlock()
	return b.status
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
