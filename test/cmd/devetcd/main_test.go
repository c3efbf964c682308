package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"github.com/seed-60ae5743/baton/internal/syncbuf"
)

func TestMain(m *testing.M) {
	// etcd starts these once for the process and never ends them.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("go.etcd.io/etcd/pkg/v3/logutil.(*MergeLogger).outputLoop"))
}

// running is the command in this process.
type running struct {
	ready
	stop func() int // ends it and returns the exit code; may be called again
}

// begin runs the command and waits for its ready line.
func begin(t *testing.T, args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r, w := io.Pipe()
	var stderr syncbuf.Buffer
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, args, w, &stderr)
		_ = w.Close()
	}()
	m := &running{stop: sync.OnceValue(func() int {
		cancel()
		select {
		case c := <-code:
			return c
		case <-time.After(20 * time.Second):
			return -1
		}
	})}
	t.Cleanup(func() { m.stop() })
	line, err := bufio.NewReader(r).ReadBytes('\n')
	require.NoError(t, err, "no ready line: %s", stderr.String())
	require.NoError(t, json.Unmarshal(line, &m.ready))
	return m
}

func (m *running) dial(t *testing.T) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: m.Endpoints, DialTimeout: 5 * time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestAMemberStartedAgainHasItsKeysAndItsLeases(t *testing.T) {
	ctx, dir := bounded(t), t.TempDir()
	m := begin(t, "--dir", dir, "--name", "one", "--no-fsync")
	require.Equal(t, "one", m.Name)
	c := m.dial(t)
	lease, err := c.Grant(ctx, 600)
	require.NoError(t, err)
	_, err = c.Put(ctx, "k", "v", clientv3.WithLease(lease.ID))
	require.NoError(t, err)
	members, err := c.MemberList(ctx)
	require.NoError(t, err)
	require.Equal(t, m.Endpoints, members.Members[0].ClientURLs, "it tells its real address, not port 0")
	require.NoError(t, c.Close())
	require.Zero(t, m.stop())

	again := begin(t, "--dir", dir, "--name", "one", "--listen", strings.TrimPrefix(m.Endpoints[0], "http://"), "--peer", m.Peer)
	require.Equal(t, m.Endpoints, again.Endpoints)
	c = again.dial(t)
	got, err := c.Get(ctx, "k")
	require.NoError(t, err)
	require.Len(t, got.Kvs, 1)
	require.Equal(t, "v", string(got.Kvs[0].Value))
	left, err := c.TimeToLive(ctx, lease.ID, clientv3.WithAttachedKeys())
	require.NoError(t, err)
	require.Positive(t, left.TTL)
	require.Equal(t, [][]byte{[]byte("k")}, left.Keys)
	require.NoError(t, c.Close())
	require.Zero(t, again.stop())
}

// A watch and a keep-alive are what every plugin and worker holds open. The
// bound is far above what it takes and below etcd's own wait for streams.
func TestItStopsWhileClientsWatchAndTheyFindItAgain(t *testing.T) {
	ctx, dir := bounded(t), t.TempDir()
	m := begin(t, "--dir", dir, "--no-fsync")
	c := m.dial(t)
	lease, err := c.Grant(ctx, 600)
	require.NoError(t, err)
	alive, err := c.KeepAlive(ctx, lease.ID)
	require.NoError(t, err)
	require.NotNil(t, <-alive)
	watch := c.Watch(clientv3.WithRequireLeader(ctx), "k", clientv3.WithCreatedNotify())
	require.True(t, (<-watch).Created)

	stopped := make(chan int, 1)
	go func() { stopped <- m.stop() }()
	select {
	case code := <-stopped:
		require.Zero(t, code)
	case <-time.After(5 * time.Second):
		require.Fail(t, "it waits for its clients' streams")
	}

	again := begin(t, "--dir", dir, "--listen", strings.TrimPrefix(m.Endpoints[0], "http://"), "--peer", m.Peer)
	_, err = again.dial(t).Put(ctx, "k", "after")
	require.NoError(t, err)
	resp := <-watch
	require.NoError(t, resp.Err(), "the watch was ended instead of resumed")
	require.Len(t, resp.Events, 1)
	require.Equal(t, "after", string(resp.Events[0].Kv.Value))
	require.NoError(t, c.Close())
}

func TestAMemberThatCannotStartSaysWhy(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	var out, stderr syncbuf.Buffer
	require.Equal(t, 1, run(bounded(t), []string{"--dir", t.TempDir(), "--listen", l.Addr().String()}, &out, &stderr))
	require.Contains(t, stderr.String(), "address already in use")
	require.Empty(t, out.String())
}

func TestAMemberThatIsAloneOfThreeStopsWhenAsked(t *testing.T) {
	ctx, cancel := context.WithCancel(bounded(t))
	cancel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	peer := l.Addr().String()
	require.NoError(t, l.Close())
	var out, stderr syncbuf.Buffer
	require.Zero(t, run(ctx, []string{
		"--dir", t.TempDir(), "--name", "a", "--peer", peer, "--no-fsync",
		"--initial-cluster", "a=http://" + peer + ",b=http://127.0.0.1:1,c=http://127.0.0.1:2",
	}, &out, &stderr), stderr.String())
	require.Empty(t, out.String(), "it never served")
}

func TestAnOpenAddressIsAllowedWithAWarning(t *testing.T) {
	ctx, cancel := context.WithCancel(bounded(t))
	cancel()
	var out, stderr syncbuf.Buffer
	require.Zero(t, run(ctx, []string{"--dir", t.TempDir(), "--no-fsync", "--peer", "0.0.0.0:0"}, &out, &stderr), stderr.String())
	require.Contains(t, stderr.String(), "0.0.0.0:0 is not a loopback address")
	require.NotContains(t, stderr.String(), "127.0.0.1:0 is not")
}

func TestFlagsAreRefusedByName(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "--dir: expected the data folder"},
		{[]string{"--dir", "d", "x"}, `argument "x": expected flags only`},
		{[]string{"--dir", "d", "--listen", "localhost"}, `invalid value "localhost" for flag -listen`},
		{[]string{"--dir", "d", "--name", ""}, "--name: expected a name"},
		{[]string{"--dir", "d", "--initial-cluster-state", "old"}, `--initial-cluster-state "old": expected new or existing`},
		{[]string{"--dir", "d", "--initial-cluster", "a=http://127.0.0.1:1"}, "--peer 127.0.0.1:0: expected a port"},
		{[]string{"--dir", "d", "--election-timeout", "1ms"}, "--election-timeout 1ms: expected 50ms to 50s"},
		{[]string{"--dir", "d", "--quota", "0"}, "--quota 0: expected bytes above 0"},
	} {
		var out, stderr syncbuf.Buffer
		require.Equal(t, 2, run(t.Context(), c.args, &out, &stderr), c.args)
		require.Contains(t, stderr.String(), c.want)
		require.Empty(t, out.String())
	}
}

func TestHelpSaysWhatItIsFor(t *testing.T) {
	var out, stderr syncbuf.Buffer
	require.Zero(t, run(t.Context(), []string{"--help"}, &out, &stderr))
	require.Contains(t, stderr.String(), "for development and tests")
	require.Contains(t, stderr.String(), "Production uses a cluster of etcd itself")
	require.Contains(t, stderr.String(), "-no-fsync")
}
