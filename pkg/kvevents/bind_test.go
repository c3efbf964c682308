package kvevents

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/stretchr/testify/require"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// dialer is a publisher that dials the subscriber; the test writes its bytes.
type dialer struct{ *peer }

func dialIn(t *testing.T, addr string) *dialer {
	nc, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	d := &dialer{newPeer(nc)}
	t.Cleanup(func() { _ = nc.Close() })
	require.NoError(t, d.greet(1, "PUB"))
	_, body, err := d.read()
	require.NoError(t, err)
	require.Equal(t, "\x01", string(body), "a subscription to all topics")
	return d
}

func (d *dialer) publish(t *testing.T, topic string, seq uint64, rank int, events ...any) {
	require.NoError(t, d.send([]byte(topic), be64(seq), payload(t, rank, events...)))
}

func bindRig(t *testing.T, change ...func(*Config)) (*rig, string) {
	r := newRig(t, func(c *Config) {
		c.Bind = []string{"127.0.0.1:0"}
		for _, f := range change {
			f(c)
		}
	})
	var addr string
	r.eventually("listens", func() bool {
		c := r.sub.Channels()[0]
		addr = strings.TrimPrefix(c.Name, "bind ")
		return c.Up
	})
	return r, addr
}

func TestAnAddressAtWhichNothingListensAnyMoreIsDown(t *testing.T) {
	sub, err := NewSubscriber(Config{Index: newTree(t)})
	require.NoError(t, err)
	b := newBinder(sub, "127.0.0.1:0")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- b.listen(ctx) }()
	require.Eventually(t, func() bool { return b.snapshot().Up }, 20*time.Second, time.Millisecond)
	since := b.snapshot().Since
	cancel()
	require.ErrorContains(t, <-ended, "accept on")
	require.False(t, b.snapshot().Up)
	require.True(t, b.snapshot().Since.After(since))
}

func block(n int) event {
	return store(event{"block_hashes": []int{n}, "parent_block_hash": nil, "token_ids": []int{n, n}})
}

// If each rank is a server of its own, each is known by its own address, and all are
// known by the address of their machine.
func TestAPublisherOfARankWithAPortOfItsOwnIsKnown(t *testing.T) {
	at, err := worker.ParseEndpoint("10.0.0.1:8000")
	require.NoError(t, err)
	d := dialersOf([]*worker.Worker{{ID: 7, Endpoint: at, DPSize: 3, PortPerRank: true}})
	for name, want := range map[string]worker.ID{"10.0.0.1:8000": 7, "10.0.0.1:8002": 7, "10.0.0.1:8003": 0, "10.0.0.1": 7} {
		id, _ := d.find("kv@"+name+"@m", "")
		require.Equal(t, want, id, name)
	}
}

func TestAPublisherThatDialsIsKnownByItsTopic(t *testing.T) {
	r, addr := bindRig(t)
	r.follow(worker.KVEvents{}, worker.KVEvents{})
	two := worker.Rank{ID: 2}
	r.attached(one, two)
	a, b := dialIn(t, addr), dialIn(t, addr)
	a.publish(t, "kv@127.0.0.1:1001@m", 0, 0, block(1)) // the endpoints that bindRig gives its workers
	b.publish(t, "kv@127.0.0.1:1002@m", 0, 0, block(2))
	r.eventually("both", func() bool { return r.holds(one, map[int]bool{1: true}) && r.holds(two, map[int]bool{2: true}) })
	require.Equal(t, StateConnected, r.status(one).State)
	require.True(t, r.sub.Tells(one))
	require.Equal(t, uint64(2), r.sub.Channels()[0].Messages)
	a.publish(t, "kv@127.0.0.1:1001@m", 1, 0, block(3))
	a.publish(t, "kv@127.0.0.1:1001@m", 3, 0, block(5))
	r.eventually("a loss", func() bool {
		return r.holds(one, map[int]bool{5: true}) && r.status(one).State == StateDegraded
	})
	// The publisher restarts and dials again before its old connection is known to be
	// dead.
	again := dialIn(t, addr)
	again.publish(t, "kv@127.0.0.1:1001@m", 0, 0, block(6))
	again.publish(t, "kv@127.0.0.1:1001@m", 1, 0, block(7))
	r.eventually("the next life", func() bool {
		return r.holds(one, map[int]bool{6: true, 7: true}) && r.status(one).State == StateConnected
	})
	_ = again.nc.Close()
	r.eventually("gone", func() bool { return r.status(one).State == StateConnecting })
	require.True(t, r.holds(one, map[int]bool{6: true, 7: true}), "what was known is kept")
	r.follow(worker.KVEvents{})
	r.eventually("left", func() bool { _, ok := r.index.Slot(two); return !ok })
	_, _, err := b.read()
	require.Error(t, err, "its connection is closed")
}

func TestAPublisherThatDialsIsKnownByItsAddressOrNotAtAll(t *testing.T) {
	r, addr := bindRig(t)
	r.follow(worker.KVEvents{})
	r.attached(one)
	d := dialIn(t, addr)
	d.publish(t, "", 0, 0, block(1))
	r.eventually("the only worker there", func() bool { return r.holds(one, map[int]bool{1: true}) })
	for topic, why := range map[string]string{"kv@10.0.0.9@m": "no such worker", "kv@127.0.0.1:1001@m": "no such rank"} {
		d := dialIn(t, addr)
		d.publish(t, topic, 0, 5, block(1))
		_, _, err := d.read()
		require.Error(t, err, why)
	}
	bad := dialIn(t, addr)
	require.NoError(t, bad.send([]byte("one frame")))
	_, _, err := bad.read()
	require.Error(t, err)
	s := r.sub.Channels()[0]
	require.Equal(t, map[string]uint64{"unknown_worker": 2, "bad_frames": 1}, s.Refused.Map())
	require.NotEmpty(t, s.LastError)

	r.follow(worker.KVEvents{}, worker.KVEvents{})
	r.attached(one, worker.Rank{ID: 2})
	d = dialIn(t, addr)
	d.publish(t, "", 0, 0, block(1))
	_, _, err = d.read()
	require.Error(t, err, "it may be either")
}

func TestAnotherLibrarysPublisherDials(t *testing.T) {
	r, addr := bindRig(t)
	r.follow(worker.KVEvents{})
	r.attached(one)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	pub := zmq4.NewPub(ctx)
	defer pub.Close()
	require.NoError(t, pub.Dial("tcp://"+addr))
	seq := uint64(0)
	r.eventually("arrived", func() bool {
		_ = pub.SendMulti(zmq4.NewMsgFrom([]byte("kv@127.0.0.1@m"), be64(seq), payload(t, nil, block(4))))
		seq++
		return r.holds(one, map[int]bool{4: true})
	})
}

func TestAConnectionThatSaysNothingIsLetGoAtTheEnd(t *testing.T) {
	r, addr := bindRig(t)
	r.follow(worker.KVEvents{})
	silent, err := net.Dial("tcp", addr) // sends not even a greeting
	require.NoError(t, err)
	defer silent.Close()
	quiet := dialIn(t, addr) // greets, and sends no message
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.stop()
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("the subscriber does not end")
	}
	_, _, err = quiet.read()
	require.Error(t, err)
}

func TestTheRankOfABatch(t *testing.T) {
	require.Equal(t, worker.DPRank(3), batchRank(payload(t, 3, block(1))))
	require.Zero(t, batchRank(payload(t, nil, block(1))))
	require.Zero(t, batchRank(payload(t, -1, block(1))))
	require.Zero(t, batchRank([]byte{0x92, 1, 0x90}))
	require.Zero(t, batchRank([]byte("x")))
	require.Zero(t, batchRank(nil))
}

func TestAnAddressIsOfOneKindOnly(t *testing.T) {
	_, err := NewSubscriber(Config{Index: newRig(t, nil).index, Bind: []string{"127.0.0.1:0"}, PlaneZMQ: []string{"127.0.0.1:1"}})
	require.ErrorContains(t, err, "expected one of them")
	_, err = NewSubscriber(Config{Index: newRig(t, nil).index, Bind: []string{"tcp://127.0.0.1:0"}})
	require.ErrorContains(t, err, "expected host:port")
}

// announce returns the head of a frame of 1 MiB.
func announce(flags byte) []byte { return append([]byte{flags | flagLong}, be64(1<<20)...) }

func TestMemoryIsTakenAsBytesArriveNotAsTheyAreAnnounced(t *testing.T) {
	for sent, most := range map[int]int{0: readBuffer, 100: readBuffer, 40_000: 80_000} {
		c := newTestConn(make([]byte, sent))
		b, err := c.body(16 << 20)
		require.Error(t, err)
		require.LessOrEqual(t, cap(b), most, "%d bytes have come", sent)
	}
	whole := bytes.Repeat([]byte("0123456789"), 10_001)
	b, err := newTestConn(append(whole, "more"...)).body(len(whole))
	require.NoError(t, err)
	require.Equal(t, whole, b)
	require.Equal(t, len(whole), cap(b))
}

func TestAPeerThatAnnouncesMuchBeforeItIsKnownIsLetGo(t *testing.T) {
	r, addr := bindRig(t)
	r.follow(worker.KVEvents{})
	r.attached(one)
	for what, flags := range map[string]byte{"a READY": flagCommand, "a topic": 0} {
		nc, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		p := newPeer(nc)
		if flags == 0 {
			require.NoError(t, p.greet(1, "PUB"))
		} else { // 73 bytes
			greeting := make([]byte, 64)
			greeting[0], greeting[9], greeting[10], greeting[11] = 0xff, 0x7f, 3, 1
			copy(greeting[12:], "NULL")
			require.NoError(t, p.write(greeting))
		}
		require.NoError(t, p.write(announce(flags)))
		_ = nc.SetReadDeadline(time.Now().Add(20 * time.Second))
		_, err = io.Copy(io.Discard, nc)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, what)
		_ = nc.Close()
	}
}

func TestASilentPeerIsLetGo(t *testing.T) {
	for name, minor := range map[string]byte{"of 3.0, which cannot be asked for a sign of life": 0, "of 3.1, which gives none": 1} {
		t.Run(name, func(t *testing.T) {
			r, addr := bindRig(t, func(c *Config) { c.Heartbeat = 20 * time.Millisecond })
			nc, err := net.Dial("tcp", addr)
			require.NoError(t, err)
			defer nc.Close()
			require.NoError(t, newPeer(nc).greet(minor, "PUB"))
			_, err = io.Copy(io.Discard, nc)
			require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
			r.eventually("told", func() bool { return r.sub.Channels()[0].Refused[SilentPeer] == 1 })
			require.Zero(t, r.sub.Channels()[0].Waiting)
		})
	}
	t.Run("one that does not even greet", func(t *testing.T) {
		r, addr := bindRig(t, func(c *Config) { c.Timeout = 20 * time.Millisecond })
		nc, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		defer nc.Close()
		_, err = io.Copy(io.Discard, nc)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
		r.eventually("told", func() bool { return r.sub.Channels()[0].Refused[SilentPeer] == 1 })
	})
}

// Peers may send their first payload so slowly that they take all places. They keep the
// places for a limited time only.
func TestThePlacesForFirstPayloadsComeFreeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sub := &Subscriber{cfg: Config{}.withDefaults()}
		sub.dialers.Store(&dialers{"10.0.0.1": 1})
		b := newBinder(sub, "")
		began := time.Now()
		meet := func() (*meeting, net.Conn, error) {
			ours, theirs := net.Pipe()
			m := &meeting{binder: b, nc: ours}
			return m, theirs, m.judge(t.Context(), []byte("kv@10.0.0.1@m"))
		}
		first, theirs, err := meet()
		require.NoError(t, err)
		for range firstPayloads - 1 {
			_, _, err := meet()
			require.NoError(t, err)
		}
		require.Zero(t, time.Since(began))
		_, _, err = meet()
		require.ErrorIs(t, err, errSlow)
		require.Equal(t, sub.cfg.Timeout, time.Since(began))
		_, err = theirs.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF, "who has had a place for so long is let go")
		first.end()
		_, _, err = meet()
		require.NoError(t, err)
		require.Equal(t, sub.cfg.Timeout, time.Since(began))
	})
}

func TestBeyondTheLimitThePeerThatHasWaitedLongestIsLetGo(t *testing.T) {
	r, addr := bindRig(t)
	peers := make([]net.Conn, leastNewcomers+1)
	for i := range peers {
		nc, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		defer nc.Close()
		peers[i] = nc
		r.eventually("let in", func() bool { return r.sub.Channels()[0].Waiting == min(i+1, leastNewcomers) })
	}
	_, err := io.Copy(io.Discard, peers[0])
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	s := r.sub.Channels()[0]
	require.Equal(t, uint64(1), s.Refused[TooManyPeers])
	require.Equal(t, leastNewcomers, s.MaxWaiting)
	require.Contains(t, s.LastError, "too many peers")
}

func TestNewcomersAreLetGoInTheOrderInWhichTheyCame(t *testing.T) {
	n := newNewcomers()
	conns := make([]net.Conn, 4)
	for i := range conns {
		conns[i], _ = net.Pipe()
	}
	at := time.Unix(1000, 0)
	for _, c := range conns[:2] {
		out, _ := n.enter(c, 2, at)
		require.Nil(t, out)
	}
	out, log := n.enter(conns[2], 2, at)
	require.Same(t, conns[0], out)
	require.True(t, log)
	require.False(t, n.leave(conns[0]), "it had to go")
	require.True(t, n.leave(conns[1]))
	out, _ = n.enter(conns[3], 2, at)
	require.Nil(t, out, "one has left by itself")
	out, log = n.enter(conns[1], 2, at.Add(crowdedEvery-1))
	require.Same(t, conns[2], out)
	require.False(t, log, "it was said a moment ago")
	_, log = n.enter(conns[0], 2, at.Add(crowdedEvery))
	require.True(t, log)
	require.Equal(t, 2, n.count())
}
