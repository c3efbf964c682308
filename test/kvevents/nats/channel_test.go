package nats_test

import (
	"context"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"
	"go.uber.org/goleak"

	"github.com/seed-60ae5743/baton/pkg/kvevents"
	"github.com/seed-60ae5743/baton/pkg/kvevents/nats"
	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// broker runs a NATS server inside the test. Port 0 means any port.
func broker(t *testing.T, port int) *server.Server {
	t.Helper()
	return lockedBroker(t, port, "", "")
}

// lockedBroker runs a NATS server that wants this user and password.
func lockedBroker(t *testing.T, port int, user, password string) *server.Server {
	t.Helper()
	if port == 0 {
		port = server.RANDOM_PORT
	}
	var s *server.Server
	// After a server has stopped, its port may become free a moment later.
	require.Eventually(t, func() bool {
		var err error
		s, err = server.NewServer(&server.Options{Host: "127.0.0.1", Port: port, Username: user, Password: password, NoSigs: true, NoLog: true})
		require.NoError(t, err)
		go s.Start()
		if s.ReadyForConnections(time.Second) {
			return true
		}
		s.Shutdown()
		s.WaitForShutdown()
		return false
	}, 20*time.Second, 10*time.Millisecond)
	t.Cleanup(func() { stop(s) })
	return s
}

func stop(s *server.Server) {
	s.Shutdown()
	s.WaitForShutdown()
}

func portOf(s *server.Server) int { return s.Addr().(*net.TCPAddr).Port }

// rig is a subscriber whose events come through NATS.
type rig struct {
	t     *testing.T
	index *kvindex.Tree
	sub   *kvevents.Subscriber
}

func newRig(t *testing.T, cfg nats.Config) *rig {
	cfg.ReconnectWait = 10 * time.Millisecond
	c, err := nats.New(cfg)
	require.NoError(t, err)
	tree, err := kvindex.NewTree(kvindex.TreeConfig{MaxBytes: 1 << 20, NoHugePages: true}, kvindex.NewSlots())
	require.NoError(t, err)
	r := &rig{t: t, index: tree}
	r.sub, err = kvevents.NewSubscriber(kvevents.Config{Index: r.index, Channels: []kvevents.Channel{c}})
	require.NoError(t, err)
	ep, err := worker.ParseEndpoint(netip.MustParseAddrPort("127.0.0.1:1").String())
	require.NoError(t, err)
	snap, err := worker.NewSnapshot(1, []*worker.Worker{{
		ID: 1, Role: worker.Prefill, Engine: worker.VLLM, Endpoint: ep, Models: []string{"m"}, DPSize: 1, BlockSize: 16,
	}})
	require.NoError(t, err)
	r.sub.Update(snap)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { require.NoError(t, r.sub.Run(ctx)) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	r.eventually(func() bool { return len(r.sub.Status()) == 1 })
	return r
}

var one = worker.Rank{ID: 1}

func (r *rig) eventually(cond func() bool) {
	r.t.Helper()
	deadline := time.Now().Add(15 * time.Second)
	require.Eventually(r.t, cond, time.Until(deadline), time.Millisecond, "%+v %+v", r.sub.Status(), r.sub.Channels())
}

func (r *rig) up() bool { return r.sub.Channels()[0].Up }

func (r *rig) status() kvevents.RankStatus { return r.sub.Status()[0] }

// holds reports whether the index has a chain of so many blocks.
func (r *rig) holds(n int) bool {
	st, _ := r.index.Stats(one)
	slot, _ := r.index.Slot(one)
	var chain []kvindex.LocalHash
	for i := range n {
		chain = append(chain, kvindex.LocalHash(1000+i))
	}
	var dst kvindex.Overlap
	r.index.Overlap(chain, &dst)
	return st.Blocks == n && int(dst.At(slot)) == n
}

// publisher publishes a chain of blocks, with one block in each message.
type publisher struct {
	t    *testing.T
	nc   *natsgo.Conn
	id   uint64
	next uint64
}

func (p *publisher) publish(lost bool) {
	var parent any
	if p.next > 0 {
		parent = p.next - 1
	}
	type m = map[string]any
	payload, err := msgpack.Marshal([]any{m{
		"worker_id": 1, "storage_tier": "device", "event": m{"event_id": p.next, "dp_rank": 0, "data": m{"stored": m{
			"parent_hash": parent, "blocks": []any{m{"block_hash": p.next, "tokens_hash": 1000 + p.next}},
		}}},
	}})
	require.NoError(p.t, err)
	envelope, err := msgpack.Marshal(m{"publisher_id": p.id, "sequence": p.next, "published_at": 1, "topic": "kv-events", "payload": payload})
	require.NoError(p.t, err)
	p.next++
	if lost {
		return
	}
	require.NoError(p.t, p.nc.Publish("namespace.dynamo.component.backend.endpoint.generate.kv-events", envelope))
	require.NoError(p.t, p.nc.Flush())
}

func connect(t *testing.T, s *server.Server) *natsgo.Conn {
	nc, err := natsgo.Connect(s.ClientURL())
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	return nc
}

func TestEventsComeByNATS(t *testing.T) {
	s := broker(t, 0)
	r := newRig(t, nats.Config{URL: "nats://" + s.Addr().String(), Username: "u", Password: "secret"})
	r.eventually(r.up)
	require.NotContains(t, r.sub.Channels()[0].Name, "secret")
	p := &publisher{t: t, nc: connect(t, s), id: 7}
	for range 200 {
		p.publish(false)
	}
	require.NoError(t, p.nc.Publish("namespace.dynamo.component.backend.endpoint.generate.kv_metrics", []byte("x")))
	r.eventually(func() bool { return r.holds(200) })
	require.Equal(t, kvevents.StateConnected, r.status().State)
	require.Empty(t, r.sub.Channels()[0].Refused.Map(), "other subjects do not arrive")
	// The ids show the loss. Blocks that continue from the lost block cannot be used.
	p.publish(true)
	p.publish(false)
	r.eventually(func() bool { return r.status().State == kvevents.StateDegraded && r.holds(0) })
	require.Equal(t, uint64(1), r.status().Missing[kvevents.UnknownParent])
}

func TestTheServerGoesAndComesBack(t *testing.T) {
	s := broker(t, 0)
	port := portOf(s)
	r := newRig(t, nats.Config{URL: s.ClientURL()})
	r.eventually(r.up)
	p := &publisher{t: t, nc: connect(t, s), id: 7}
	for range 10 {
		p.publish(false)
	}
	r.eventually(func() bool { return r.holds(10) })
	stop(s)
	r.eventually(func() bool { return !r.up() && r.status().State == kvevents.StateConnecting })
	require.True(t, r.holds(10), "what was known is kept")
	s = broker(t, port)
	r.eventually(r.up)
	require.Equal(t, kvevents.StateConnected, r.status().State)
	p.nc = connect(t, s)
	p.publish(false)
	r.eventually(func() bool { return r.holds(11) })
	require.Zero(t, r.status().Resets, "nothing was missed")
	require.NotEmpty(t, r.sub.Channels()[0].LastError)
}

// TestThePasswordIsReadAgainForEachConnection: it changes while the channel is in use.
func TestThePasswordIsReadAgainForEachConnection(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	_, err := nats.New(nats.Config{URL: "nats://h:1", Username: "u", PasswordFile: file})
	require.ErrorContains(t, err, file)
	write := func(word string) { require.NoError(t, os.WriteFile(file, []byte(word+"\r\n"), 0o600)) }
	write("old")
	s := lockedBroker(t, 0, "u", "old")
	port := portOf(s)
	r := newRig(t, nats.Config{URL: "nats://" + s.Addr().String(), Username: "u", PasswordFile: file})
	r.eventually(r.up)
	stop(s)
	r.eventually(func() bool { return !r.up() })
	require.NoError(t, os.Remove(file))
	lockedBroker(t, port, "u", "new")
	r.eventually(func() bool { return strings.Contains(r.sub.Channels()[0].LastError, "password file") })
	write("new")
	r.eventually(r.up)
}

func TestAServerThatIsNotThereYetIsWaitedFor(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	require.NoError(t, l.Close())
	r := newRig(t, nats.Config{URL: "nats://127.0.0.1:" + strconv.Itoa(port), Subject: "namespace.>"})
	r.eventually(func() bool { return r.sub.Channels()[0].LastError != "" })
	require.False(t, r.up())
	broker(t, port)
	r.eventually(r.up)
}

// sink is slow if the test asks for it.
type sink struct {
	mu     sync.Mutex
	faults []error
	got    int
	up     chan struct{}
	hold   chan struct{}
}

func (s *sink) Up()                            { close(s.up) }
func (s *sink) Down(error)                     {}
func (s *sink) Refuse(kvevents.Reason, uint64) {}
func (s *sink) Envelope([]byte) {
	<-s.hold
	s.mu.Lock()
	s.got++
	s.mu.Unlock()
}

func (s *sink) Fault(err error) {
	s.mu.Lock()
	s.faults = append(s.faults, err)
	s.mu.Unlock()
}

func (s *sink) seen() (faults, got int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.faults), s.got
}

func TestASlowSubscriberKeepsNoMoreThanItsLimitAndSaysSo(t *testing.T) {
	srv := broker(t, 0)
	c, err := nats.New(nats.Config{URL: srv.ClientURL(), Subject: "s", MaxBufferedBytes: 64 << 10})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	s := &sink{up: make(chan struct{}), hold: make(chan struct{})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Run(ctx, s)
	}()
	nc := connect(t, srv)
	<-s.up
	for range 1000 {
		require.NoError(t, nc.Publish("s", make([]byte, 1<<10)))
	}
	require.NoError(t, nc.Flush())
	require.Eventually(t, func() bool { n, _ := s.seen(); return n > 0 }, 20*time.Second, time.Millisecond)
	close(s.hold)
	// The channel goes on with later messages.
	require.Eventually(t, func() bool {
		_, before := s.seen()
		require.NoError(t, nc.Publish("s", []byte("x")))
		require.NoError(t, nc.Flush())
		_, got := s.seen()
		return before > 0 && got > before
	}, 20*time.Second, time.Millisecond)
	_, got := s.seen()
	require.Less(t, got, 1000, "not all of them are kept while nobody takes them")
	cancel()
	<-done
}
