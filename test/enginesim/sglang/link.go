package sglang

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-60ae5743/baton/test/enginesim/core"
)

// waiter is one decode request that waits for KV.
type waiter struct {
	ask  linkMessage
	want int              // prefill rank that the request names, or -1: the room determines it
	done chan linkMessage // buffered: gets msgKV or msgFailed
}

// link is a decode worker's connection to the bootstrap server of one prefill worker. It
// exists as long as requests wait there or the connection stands.
type link struct {
	all  *links
	addr string

	mu      sync.Mutex         // guards the fields below
	waiting map[uint64]*waiter // by Call
	conn    net.Conn           // nil if there is none
	dpSize  int                // of the prefill worker, known once conn was set
	out     *core.Outbox       // of conn
	over    bool               // run has ended; a new link is needed
}

// links are a decode worker's links. Safe for concurrent use.
type links struct {
	s        *core.Sim
	cfg      core.Config
	client   *http.Client // to bootstrap servers
	nextCall atomic.Uint64
	waiting  atomic.Int64 // requests that wait for their KV

	mu sync.Mutex // taken before the mutex of a link
	to map[string]*link
}

func newLinks(s *core.Sim, cfg core.Config) *links {
	return &links{s: s, cfg: cfg, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}, to: make(map[string]*link)}
}

// await waits for the KV of an item, whose decode expects it from a prefill rank (-1: the
// room's), and returns prefill's cached tokens. Its error is the context's, a *refused if
// the prefill worker refused, or a core.APIError if that died or did not come within
// WaitingTimeout.
func (ls *links) await(ctx context.Context, it *core.Item, prefillRank int) (int, error) {
	ls.waiting.Add(1)
	defer ls.waiting.Add(-1)
	w := &waiter{
		ask:  linkMessage{Type: msgAsk, Room: it.Meet.Room, Call: ls.nextCall.Add(1), Digest: it.Digest, Group: ls.cfg.KVGroup},
		want: prefillRank,
		done: make(chan linkMessage, 1),
	}
	l := ls.join(it.Meet.Addr, w)
	timeout := time.NewTimer(ls.cfg.WaitingTimeout)
	defer timeout.Stop()
	select {
	case m := <-w.done:
		switch {
		case m.Type == msgKV:
			if m.Aborted {
				it.Digest = ^it.Digest // decode goes on, and answers something else
			}
			return m.Cached, nil
		case m.Violation:
			return 0, &refused{m.Error}
		default:
			return 0, &core.APIError{Status: http.StatusInternalServerError, Reason: "prefill_lost", Msg: m.Error}
		}
	case <-ctx.Done():
		l.leave(w)
		return 0, ctx.Err()
	case <-timeout.C:
		l.leave(w)
		return 0, &core.APIError{Status: http.StatusInternalServerError, Reason: "waiting_timeout", Msg: fmt.Sprintf(
			"Decode handshake failed: no KV for bootstrap room %d from %s within %s", it.Meet.Room, it.Meet.Addr, ls.cfg.WaitingTimeout)}
	}
}

// refused is why a prefill worker gives no KV: a rule was broken.
type refused struct{ msg string }

// Error implements error.
func (r *refused) Error() string { return r.msg }

// join registers w with the link to addr, and makes the link if there is none.
func (ls *links) join(addr string, w *waiter) *link {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if l := ls.to[addr]; l != nil && l.add(w) {
		return l
	}
	l := &link{all: ls, addr: addr, waiting: map[uint64]*waiter{w.ask.Call: w}}
	ls.to[addr] = l
	ls.s.Start(l.run)
	return l
}

func (ls *links) get(ctx context.Context, url string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	return ls.client.Do(req)
}

func (l *link) add(w *waiter) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return false
	}
	l.waiting[w.ask.Call] = w
	if l.conn != nil {
		l.askLocked(w)
	}
	return true
}

func (l *link) askLocked(w *waiter) {
	m := w.ask
	m.Rank = w.want
	if m.Rank < 0 {
		m.Rank = int(m.Room % int64(l.dpSize))
	}
	l.out.Push(appendLine(m), 0)
}

func (l *link) leave(w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.waiting, w.ask.Call)
	if l.conn != nil {
		l.out.Push(appendLine(linkMessage{Type: msgCancel, Room: w.ask.Room, Call: w.ask.Call}), 0)
	}
}

// run keeps the connection and the heartbeat. As in the engine, waiting requests fail
// after HeartbeatFailures beats without an answer, not at once when a connection is lost.
func (l *link) run(ctx context.Context) {
	beat := time.NewTicker(l.all.cfg.HeartbeatInterval)
	defer beat.Stop()
	lost := l.connect(ctx)
	for failures := 0; ; {
		select {
		case <-ctx.Done():
			l.closeConn()
			return
		case <-lost:
			l.closeConn()
			lost = nil
			beat.Reset(l.all.cfg.HeartbeatInterval)
			continue
		case <-beat.C:
		}
		alive := false
		if lost == nil {
			lost = l.connect(ctx)
			alive = lost != nil
		} else {
			alive = l.beat(ctx)
		}
		if alive {
			failures = 0
			continue
		}
		failures++
		if failures >= l.all.cfg.HeartbeatFailures {
			failures = 0
			l.fail()
		}
		if lost == nil && l.endIfIdle() {
			return
		}
	}
}

// endIfIdle ends a link without connection if no request waits on it.
func (l *link) endIfIdle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = len(l.waiting) == 0
	return l.over
}

// fail ends every wait with an error. It also sends a cancel for each: a prefill worker
// that was only stopped reads the cancels when it goes on.
func (l *link) fail() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for call, w := range l.waiting {
		delete(l.waiting, call)
		if l.conn != nil {
			l.out.Push(appendLine(linkMessage{Type: msgCancel, Room: w.ask.Room, Call: call}), 0)
		}
		w.done <- linkMessage{Type: msgFailed, Error: fmt.Sprintf(
			"Decode handshake failed: prefill bootstrap server %s missed %d heartbeats, bootstrap room %d is lost",
			l.addr, l.all.cfg.HeartbeatFailures, w.ask.Room)}
	}
}

func (l *link) closeConn() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil {
		_ = l.conn.Close()
		l.conn = nil
	}
}

// beat asks the bootstrap server for a sign of life.
func (l *link) beat(ctx context.Context) bool {
	if l.all.s.Apart(l.addr) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, l.all.cfg.HeartbeatInterval)
	defer cancel()
	resp, err := l.all.get(ctx, "http://"+l.addr+"/health")
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// connect fetches the topology, opens the connection and asks for every room that is
// waited for. It returns a channel that is closed with the connection, or nil if it
// fails.
func (l *link) connect(ctx context.Context) <-chan struct{} {
	if l.all.s.Apart(l.addr) {
		return nil
	}
	tctx, cancel := context.WithTimeout(ctx, l.all.cfg.HeartbeatInterval)
	defer cancel()
	top, err := l.topology(tctx)
	if err != nil {
		return nil
	}
	conn, r, err := dialLink(tctx, l.addr)
	if err != nil {
		return nil
	}
	lost := make(chan struct{})
	out := core.NewOutbox()
	l.mu.Lock()
	l.conn, l.dpSize, l.out = conn, top.DPSize, &out
	for _, w := range l.waiting {
		l.askLocked(w)
	}
	l.mu.Unlock()
	wctx, stop := context.WithCancel(ctx)
	l.all.s.Start(func(context.Context) { out.Run(wctx, conn) })
	l.all.s.Start(func(context.Context) {
		defer close(lost)
		defer stop()
		l.read(r)
	})
	return lost
}

func (l *link) read(r *bufio.Reader) {
	dec := json.NewDecoder(r)
	for {
		var m linkMessage
		if dec.Decode(&m) != nil {
			return
		}
		l.mu.Lock()
		w := l.waiting[m.Call]
		delete(l.waiting, m.Call)
		l.mu.Unlock()
		if w != nil {
			w.done <- m
		}
	}
}

func (l *link) topology(ctx context.Context) (topology, error) {
	var top topology
	resp, err := l.all.get(ctx, "http://"+l.addr+"/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1")
	if err != nil {
		return top, err
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	if err := json.NewDecoder(resp.Body).Decode(&top); err != nil {
		return top, err
	}
	if resp.StatusCode != http.StatusOK || top.DPSize < 1 {
		return top, errors.New("no topology")
	}
	return top, nil
}

func dialLink(ctx context.Context, addr string) (net.Conn, *bufio.Reader, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, nil, err
	}
	deadline, _ := ctx.Deadline()
	_ = c.SetDeadline(deadline)
	r := bufio.NewReader(c)
	_, err = fmt.Fprintf(c, "GET /sim/link HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", addr, linkProtocol)
	if err == nil {
		var resp *http.Response
		resp, err = http.ReadResponse(r, nil)
		if err == nil && resp.StatusCode != http.StatusSwitchingProtocols {
			err = fmt.Errorf("status %d", resp.StatusCode)
		}
	}
	if err != nil {
		_ = c.Close()
		return nil, nil, err
	}
	return c, r, c.SetDeadline(time.Time{})
}
