package kvevents

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// zmqWorker publishes as a worker does, through go-zeromq's sockets.
type zmqWorker struct {
	t           *testing.T
	cancel      context.CancelFunc
	pub, router zmq4.Socket
	served      chan struct{}

	mu     sync.Mutex
	seq    uint64
	sent   []message // for replay
	held   map[int]bool
	replay int // replay requests answered
}

// newZMQWorker listens on the given ports; 0 means any. A negative replay port means that
// there are no replays.
func newZMQWorker(t *testing.T, port, replayPort int) *zmqWorker {
	ctx, cancel := context.WithCancel(context.Background())
	w := &zmqWorker{t: t, cancel: cancel, pub: zmq4.NewPub(ctx), served: make(chan struct{}), held: map[int]bool{}}
	listen := func(s zmq4.Socket, port int) {
		// After a worker has stopped, its port may become free a moment later.
		require.Eventually(t, func() bool { return s.Listen("tcp://127.0.0.1:"+strconv.Itoa(port)) == nil },
			20*time.Second, time.Millisecond)
	}
	listen(w.pub, port)
	if replayPort < 0 {
		close(w.served)
	} else {
		w.router = zmq4.NewRouter(ctx)
		listen(w.router, replayPort)
		go w.serveReplay()
	}
	t.Cleanup(w.stop)
	return w
}

func (w *zmqWorker) stop() {
	w.cancel()
	_ = w.pub.Close()
	if w.router != nil {
		_ = w.router.Close()
	}
	<-w.served
}

func (w *zmqWorker) serveReplay() {
	defer close(w.served)
	for {
		ask, err := w.router.Recv()
		if err != nil {
			return
		}
		from := m64(ask.Frames[2])
		w.mu.Lock()
		for _, m := range w.sent {
			if m.seq >= from {
				_ = w.router.SendMulti(zmq4.NewMsgFrom(ask.Frames[0], nil, []byte("kv"), be64(m.seq), m.payload))
			}
		}
		w.replay++
		w.mu.Unlock()
		_ = w.router.SendMulti(zmq4.NewMsgFrom(ask.Frames[0], nil, nil, be64(endOfReplay), nil))
	}
}

func m64(b []byte) uint64 {
	m, _ := parsePublished([][]byte{nil, b, nil})
	return m.seq
}

func port(s zmq4.Socket) int { return s.Addr().(*net.TCPAddr).Port }

// store publishes that block n is held, a root block of two tokens. With lost no
// subscriber gets the message, as if a queue were full.
func (w *zmqWorker) store(n int, lost bool) {
	w.held[n] = true
	w.publish(store(event{"block_hashes": []int{n}, "parent_block_hash": nil, "token_ids": []int{n, n}}), lost)
}

func (w *zmqWorker) remove(n int, lost bool) {
	delete(w.held, n)
	w.publish(removal(event{"block_hashes": []int{n}}), lost)
}

func (w *zmqWorker) publish(e any, lost bool) {
	p := payload(w.t, 0, e)
	w.mu.Lock()
	m := message{seq: w.seq, payload: p}
	w.seq++
	w.sent = append(w.sent, m)
	w.mu.Unlock()
	if !lost {
		_ = w.pub.SendMulti(zmq4.NewMsgFrom([]byte("kv"), be64(m.seq), p))
	}
}

// newTree returns an empty index.
func newTree(t testing.TB) *kvindex.Tree {
	tree, err := kvindex.NewTree(kvindex.TreeConfig{MaxBytes: 32 << 20, NoHugePages: true}, kvindex.NewSlots())
	require.NoError(t, err)
	return tree
}

// rig is a running subscriber with its index.
type rig struct {
	t     *testing.T
	index *kvindex.Tree
	sub   *Subscriber
	stop  func()
}

func newRig(t *testing.T, change func(*Config)) *rig {
	r := &rig{t: t, index: newTree(t)}
	cfg := Config{Index: r.index, Audit: 100 * time.Millisecond, MinBackoff: time.Millisecond, MaxBackoff: 20 * time.Millisecond}
	if change != nil {
		change(&cfg)
	}
	sub, err := NewSubscriber(cfg)
	require.NoError(t, err)
	r.sub = sub
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- sub.Run(ctx) }()
	var once sync.Once
	r.stop = func() {
		once.Do(func() {
			cancel()
			require.NoError(t, <-done)
		})
	}
	t.Cleanup(r.stop)
	return r
}

// follow gives the subscriber workers; worker i of the list has id i+1.
func (r *rig) follow(events ...worker.KVEvents) {
	var ws []*worker.Worker
	for i, e := range events {
		ws = append(ws, testWorker(r.t, worker.ID(i+1), e))
	}
	snap, err := worker.NewSnapshot(1, ws)
	require.NoError(r.t, err)
	r.sub.Update(snap)
}

func testWorker(t *testing.T, id worker.ID, e worker.KVEvents) *worker.Worker {
	ep, err := worker.ParseEndpoint(netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(1000+id)).String())
	require.NoError(t, err)
	return &worker.Worker{
		ID: id, Role: worker.Prefill, Engine: worker.SGLang, Endpoint: ep, Models: []string{"m"},
		DPSize: 1, BlockSize: 2, KVEvents: e,
	}
}

func (w *zmqWorker) source() worker.KVEvents {
	e := worker.KVEvents{Host: "127.0.0.1", Port: uint16(port(w.pub)), Topic: "kv"}
	if w.router != nil {
		e.ReplayPort = uint16(port(w.router))
	}
	return e
}

// holds reports whether the index has exactly the blocks of want for the rank.
func (r *rig) holds(rank worker.Rank, want map[int]bool) bool {
	st, ok := r.index.Stats(rank)
	if !ok || st.Blocks != len(want) {
		return false
	}
	slot, _ := r.index.Slot(rank)
	var dst kvindex.Overlap
	for n := range want {
		r.index.Overlap(kvindex.AppendLocalHashes(nil, []uint32{uint32(n), uint32(n)}, 2, kvindex.Salt{}.Seed()), &dst)
		if dst.At(slot) != 1 {
			return false
		}
	}
	return true
}

func (r *rig) eventually(what string, cond func() bool) {
	r.t.Helper()
	require.Eventually(r.t, cond, 20*time.Second, 2*time.Millisecond, "%s: %v", what, lazily(func() string {
		return fmt.Sprintf("%+v", r.sub.Status())
	}))
}

// lazily builds a message only when it is printed.
type lazily func() string

func (l lazily) String() string { return l() }

func (r *rig) status(rank worker.Rank) RankStatus {
	for _, s := range r.sub.Status() {
		if s.Rank == rank {
			return s
		}
	}
	return RankStatus{}
}

var one = worker.Rank{ID: 1}

func TestSubscriberLearnsWhatWasPublishedBeforeItCame(t *testing.T) {
	w := newZMQWorker(t, 0, 0)
	for n := range 50 {
		w.store(n, false)
	}
	w.remove(7, false)
	r := newRig(t, nil)
	r.follow(w.source())
	r.eventually("replay from 0", func() bool { return r.holds(one, w.held) && r.status(one).State == StateConnected })
	for n := range 20 {
		w.store(100+n, false)
	}
	r.eventually("live", func() bool { return r.holds(one, w.held) })
	s := r.status(one)
	require.Equal(t, uint64(70), s.LastSeq)
	require.Equal(t, uint64(71), s.Events)
	require.Equal(t, 69, s.Blocks)
	require.Zero(t, s.Resets)
	require.Empty(t, s.Refused.Map())
	require.NoError(t, r.index.Check())
}

func TestSubscriberReplaysWhatWasLost(t *testing.T) {
	w := newZMQWorker(t, 0, 0)
	r := newRig(t, nil)
	r.follow(w.source())
	for n := range 300 {
		w.store(n, n%7 == 3)
		if n%5 == 0 {
			w.remove(n/2, n%3 == 0)
		}
	}
	w.remove(299, true) // the last message is lost: an audit finds it
	r.eventually("in step", func() bool { return r.holds(one, w.held) && r.status(one).State == StateConnected })
	require.Zero(t, r.status(one).Resets)
}

func TestSubscriberWithoutReplayIsDegradedByALoss(t *testing.T) {
	w := newZMQWorker(t, 0, -1)
	r := newRig(t, nil)
	r.follow(w.source())
	n := 0
	// Messages are lost until the subscription has arrived.
	r.eventually("first message", func() bool {
		w.store(n, false)
		n++
		return r.status(one).Seen
	})
	w.store(1000, false)
	w.store(1001, true)
	w.store(1002, false)
	r.eventually("reset", func() bool { return r.status(one).State == StateDegraded && r.holds(one, map[int]bool{1002: true}) })
	w.publish(event{"type": "AllBlocksCleared"}, false)
	w.store(1003, false)
	r.eventually("cleared", func() bool { return r.status(one).State == StateConnected && r.holds(one, map[int]bool{1003: true}) })
}

func TestSubscriberDropsTheBlocksOfARestartedPublisher(t *testing.T) {
	w := newZMQWorker(t, 0, 0)
	r := newRig(t, nil)
	r.follow(w.source())
	for n := range 30 {
		w.store(n, false)
	}
	r.eventually("first life", func() bool { return r.holds(one, w.held) })
	p, rp := port(w.pub), port(w.router)
	w.stop()
	r.eventually("connection lost", func() bool { return r.status(one).State == StateConnecting })
	require.True(t, r.holds(one, w.held), "blocks are kept while it is not known what happened")
	w2 := newZMQWorker(t, p, rp)
	r.eventually("nothing of the first life", func() bool { return r.holds(one, nil) && r.status(one).State == StateConnected })
	for n := range 40 {
		w2.store(500+n, false)
	}
	r.eventually("second life", func() bool { return r.holds(one, w2.held) })
	require.Equal(t, uint64(1), r.status(one).Resets)
}

func TestSubscriberFollowsTheSnapshot(t *testing.T) {
	a, b := newZMQWorker(t, 0, 0), newZMQWorker(t, 0, 0)
	r := newRig(t, nil)
	a.store(1, false)
	b.store(2, false)
	two := worker.Rank{ID: 2}
	r.follow(a.source(), b.source(), worker.KVEvents{})
	r.eventually("both", func() bool { return r.holds(one, a.held) && r.holds(two, b.held) })
	_, attached := r.index.Slot(worker.Rank{ID: 3})
	require.True(t, attached, "a worker without events has a slot")
	require.Equal(t, StateNone, r.status(worker.Rank{ID: 3}).State)
	require.Len(t, r.sub.Status(), 3)

	r.follow(a.source())
	r.eventually("the second left", func() bool { _, ok := r.index.Slot(two); return !ok })
	require.True(t, r.holds(one, a.held))
	require.Len(t, r.sub.Status(), 1)

	r.follow(b.source())
	r.eventually("another address", func() bool { return r.holds(one, b.held) })
	r.stop()
	require.True(t, r.holds(one, b.held), "the index outlives the subscriber")
	require.NoError(t, r.index.Check())
}

func TestSubscriberCountsWhatItRefuses(t *testing.T) {
	w := newZMQWorker(t, 0, 0)
	var mu sync.Mutex
	hooked := map[Reason]uint64{}
	r := newRig(t, func(c *Config) {
		c.Hooks.Refused = func(_ worker.Rank, why Reason, n uint64) {
			mu.Lock()
			hooked[why] += n
			mu.Unlock()
		}
	})
	w.store(1, false)
	w.publish(store(event{"block_size": 64}), false)
	w.publish(store(event{"token_ids": [][]int{{1, 2}, {2, 3}}}), false)
	w.publish(store(event{"parent_block_hash": 77}), false)
	w.publish(store(event{"parent_block_hash": nil, "block_hashes": []int{1}}), false)
	w.publish(17, false)
	r.follow(w.source())
	want := map[string]uint64{"block_size_mismatch": 1, "eagle_mismatch": 1, "unknown_parent": 1, "hash_conflict": 1, "malformed": 1}
	r.eventually("counted", func() bool { s := r.status(one); return s.Messages >= 6 })
	s := r.status(one)
	require.Equal(t, want, s.Refused.Map())
	mu.Lock()
	defer mu.Unlock()
	require.Len(t, hooked, 5)
}

// TestSubscriberSurvivesCutConnections cuts the connections again and again
// while events flow, and compares the index with the worker's own cache.
func TestSubscriberSurvivesCutConnections(t *testing.T) {
	w := newZMQWorker(t, 0, 0)
	var mu sync.Mutex
	var open []net.Conn
	r := newRig(t, func(c *Config) {
		c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			nc, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			if err == nil {
				mu.Lock()
				open = append(open, nc)
				mu.Unlock()
			}
			return nc, err
		}
	})
	r.follow(w.source())
	for n := range 2000 {
		w.store(n, n%91 == 0)
		if n%3 == 0 {
			w.remove(n/2, false)
		}
		if n%200 == 199 {
			mu.Lock()
			for _, nc := range open {
				_ = nc.Close()
			}
			open = nil
			mu.Unlock()
			r.eventually("seen some", func() bool { return r.status(one).LastSeq > w.seq/2 })
		}
	}
	r.eventually("in step", func() bool { return r.holds(one, w.held) })
	require.Zero(t, r.status(one).Resets)
	require.NoError(t, r.index.Check())
}

func TestReconnectsBackOffFromFiftyMillisecondsToTwoSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Time
		r := newRig(t, func(c *Config) {
			c.MinBackoff, c.MaxBackoff = 0, 0
			c.Dial = func(context.Context, string, string) (net.Conn, error) {
				at = append(at, time.Now())
				return nil, net.ErrClosed
			}
		})
		r.follow(worker.KVEvents{Host: "w", Port: 1})
		<-time.After(time.Minute)
		r.stop()
		require.Greater(t, len(at), 30)
		wait := 50 * time.Millisecond
		for i := 1; i < len(at); i++ {
			d := at[i].Sub(at[i-1])
			require.LessOrEqual(t, d, wait)
			require.GreaterOrEqual(t, d, wait/2-1)
			wait = min(2*wait, 2*time.Second)
		}
		require.Contains(t, r.status(one).LastError, "connect to w:1")
		require.Equal(t, StateConnecting, r.status(one).State)
	})
}

func TestConfigNamesItsFaults(t *testing.T) {
	_, err := NewSubscriber(Config{Timeout: -1, MaxMessageBytes: -1, MinBackoff: time.Hour})
	for _, want := range []string{"index", "timeout", "max message bytes", "min backoff"} {
		require.ErrorContains(t, err, want)
	}
}

func TestSourcesArePortBasePlusRank(t *testing.T) {
	w := testWorker(t, 1, worker.KVEvents{Host: "::1", Port: 65534, ReplayPort: 7000, Topic: "x"})
	require.Equal(t, source{addr: "[::1]:65535", replayAddr: "[::1]:7001", topic: "x", blockSize: 2, clears: true, endpoint: w.Endpoint, rank: 1, only: true}, sourceOf(w, 1))
	require.Empty(t, sourceOf(w, 2).addr)
	w.Eagle = true
	require.True(t, sourceOf(w, 0).eagle)
	w.KVEvents.ReplayPort = 0
	require.Empty(t, sourceOf(w, 0).replayAddr)
	w.KVEvents = worker.KVEvents{}
	require.Empty(t, sourceOf(w, 0).addr)
}
