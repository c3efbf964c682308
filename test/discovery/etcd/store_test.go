package etcd_test

import (
	"context"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/seed-60ae5743/baton/pkg/discovery/etcd"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// folder is what the keys of all workers begin with.
const folder = etcd.DefaultPrefix + "/workers/"

func workerKey(id clientv3.LeaseID) string { return folder + worker.ID(id).String() }

// patience is how long a test waits for something that must come, also on a busy
// machine.
const patience = 90 * time.Second

// eventually fails the test if ok does not become true within patience.
func eventually(t *testing.T, ok func() bool, format string, a ...any) {
	t.Helper()
	require.Eventually(t, ok, patience, 5*time.Millisecond, append([]any{format}, a...)...)
}

// server is a real etcd of one member behind a gate. It can be stopped, started and
// wiped.
type server struct {
	t      *testing.T
	gate   *gate
	dir    string
	adjust func(*embed.Config)
	etcd   *embed.Etcd // nil while stopped
}

func newServer(t *testing.T, adjust ...func(*embed.Config)) *server {
	t.Helper()
	s := &server{t: t, dir: t.TempDir(), gate: newGate(t), adjust: func(*embed.Config) {}}
	for _, f := range adjust {
		s.adjust = f
	}
	s.start()
	t.Cleanup(s.stop)
	return s
}

func quickConfig(t *testing.T, name, dir string) *embed.Config {
	t.Helper()
	c := embed.NewConfig()
	c.Name, c.Dir = name, dir
	c.TickMs, c.ElectionMs = 10, 100
	c.UnsafeNoFsync = true
	c.LogLevel, c.LogOutputs = "fatal", []string{"/dev/null"}
	free := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	c.ListenClientUrls, c.AdvertiseClientUrls = free, free
	c.ListenPeerUrls, c.AdvertisePeerUrls = free, free
	c.InitialCluster = c.InitialClusterFromName(name)
	return c
}

func (s *server) start() {
	s.t.Helper()
	c := quickConfig(s.t, "one", s.dir)
	s.adjust(c)
	s.etcd = startMember(s.t, c)
	<-s.etcd.Server.ReadyNotify()
	s.gate.open(s.etcd.Clients[0].Addr().String())
}

func startMember(t *testing.T, c *embed.Config) *embed.Etcd {
	t.Helper()
	e, err := embed.StartEtcd(c)
	require.NoError(t, err)
	return e
}

func (s *server) stop() {
	s.gate.shut()
	if s.etcd != nil {
		s.etcd.Close()
		s.etcd = nil
	}
}

// wipe stops etcd and deletes its data.
func (s *server) wipe() {
	s.stop()
	s.dir = s.t.TempDir()
}

func (s *server) dial(adjust ...func(*etcd.ClientConfig)) *clientv3.Client {
	s.t.Helper()
	c := etcd.ClientConfig{Endpoints: []string{s.gate.addr()}}
	for _, f := range adjust {
		f(&c)
	}
	client, err := etcd.Dial(c)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = client.Close() })
	return client
}

// keys returns the values that are stored under the prefix, by key.
func keys(t *testing.T, c *clientv3.Client, prefix string) map[string]string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	res, err := c.Get(ctx, prefix, clientv3.WithPrefix())
	require.NoError(t, err)
	m := map[string]string{}
	for _, kv := range res.Kvs {
		m[string(kv.Key)] = string(kv.Value)
	}
	return m
}

// gate passes connections on to an address while it is open. When it is shut, it cuts
// them and accepts no others. When it is deaf, it accepts all and passes nothing on.
type gate struct {
	ln   net.Listener
	wait sync.WaitGroup

	mu    sync.Mutex
	to    string // "": shut
	deaf  chan struct{}
	waits int // writes that waited because it was deaf
	conns map[net.Conn]bool
}

func newGate(t *testing.T) *gate {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	g := &gate{ln: ln, conns: map[net.Conn]bool{}}
	g.wait.Go(g.serve)
	t.Cleanup(func() {
		_ = ln.Close()
		g.shut()
		g.wait.Wait()
	})
	return g
}

func (g *gate) addr() string { return g.ln.Addr().String() }

func (g *gate) open(to string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.to = to
	if g.deaf != nil {
		close(g.deaf)
		g.deaf = nil
	}
}

func (g *gate) shut() {
	g.open("")
	g.mu.Lock()
	defer g.mu.Unlock()
	for c := range g.conns {
		_ = c.Close()
	}
}

func (g *gate) deafen() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.deaf == nil {
		g.deaf = make(chan struct{})
	}
}

func (g *gate) hear() {
	g.mu.Lock()
	to := g.to
	g.mu.Unlock()
	g.open(to)
}

// held returns how much has come while the gate was deaf.
func (g *gate) held() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.waits
}

func (g *gate) serve() {
	for {
		c, err := g.ln.Accept()
		if err != nil {
			return
		}
		g.mu.Lock()
		to := g.to
		g.mu.Unlock()
		if to == "" {
			_ = c.Close()
			continue
		}
		o, err := net.Dial("tcp", to)
		if err != nil {
			_ = c.Close()
			continue
		}
		g.mu.Lock()
		g.conns[c], g.conns[o] = true, true
		if g.to == "" {
			_, _ = c.Close(), o.Close()
		}
		g.mu.Unlock()
		g.wait.Go(func() { g.carry(c, o) })
		g.wait.Go(func() { g.carry(o, c) })
	}
}

func (g *gate) carry(from, to net.Conn) {
	_, _ = io.Copy(listener{to, g}, from)
	_, _ = from.Close(), to.Close()
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.conns, from)
}

type listener struct {
	net.Conn
	g *gate
}

func (l listener) Write(b []byte) (int, error) {
	l.g.mu.Lock()
	deaf := l.g.deaf
	if deaf != nil {
		l.g.waits++
	}
	l.g.mu.Unlock()
	if deaf != nil {
		<-deaf
	}
	return l.Conn.Write(b)
}
