package etcd

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"

	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// passwordFile returns the path of a file with the password.
func passwordFile(t *testing.T, word string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(path, []byte(word+"\n"), 0o600))
	return path
}

func TestAPasswordMayBeChangedWhileWorkersAreRegistered(t *testing.T) {
	t.Parallel()
	s := newServer(t, func(c *embed.Config) { c.BcryptCost = 4 })
	withUsers(t, s.dial())
	path := passwordFile(t, "word")
	as := func(c *ClientConfig) { c.Username, c.PasswordFile = "user", path }
	r := register(t, s.dial(as), func(c *RegistrarConfig) { c.TTL = 9 * time.Second })
	id := r.announce(workerAt(t, worker.Prefill, "10.0.0.1:30000"), 1)
	w := watchPlain(t, s.dial(as))
	w.has("10.0.0.1:30000")

	root := s.dial(func(c *ClientConfig) { c.Username, c.Password = "root", "secret" })
	_, err := root.UserChangePassword(t.Context(), "user", "new")
	require.NoError(t, err)
	eventually(t, func() bool { _, _, faults := r.heard(); return len(faults) > 0 }, "the registrar is refused")
	w.state(discovery.Stale)
	// etcd accepts no token from before the change, not even for a renewal: the file
	// must be changed within the TTL.
	require.NoError(t, os.WriteFile(path, []byte("new\n"), 0o600))
	w.state(discovery.Watching)
	eventually(t, func() bool { r.Registrar.mu.Lock(); defer r.Registrar.mu.Unlock(); return r.keeper.fails == 0 }, "it goes on")
	require.NotNil(t, w.Load().Worker(id), "by the same id")
	w.has("10.0.0.1:30000")
	r2 := register(t, s.dial(as))
	r2.announce(workerAt(t, worker.Decode, "10.0.0.1:8000"), 1)
	w.has("10.0.0.1:30000", "10.0.0.1:8000")
	_, losses, _ := r.heard()
	require.Empty(t, losses)
	_, left := w.heard()
	require.Empty(t, left)
}

func TestRenewalsAskForNoToken(t *testing.T) {
	t.Parallel()
	s := newServer(t, func(c *embed.Config) { c.BcryptCost = 4 })
	withUsers(t, s.dial())
	var tokens, looks atomic.Int64
	client, err := dial(ClientConfig{Endpoints: []string{s.gate.addr()}, Username: "user", Password: "word"},
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			switch req.(type) {
			case *pb.AuthenticateRequest:
				tokens.Add(1)
			case *pb.RangeRequest:
				looks.Add(1) // each renewal reads the key once
			}
			return invoke(ctx, method, req, reply, cc, opts...)
		}))
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	r := register(t, client, func(c *RegistrarConfig) { c.TTL = time.Hour })
	r.announce(workerAt(t, worker.Prefill, "10.0.0.1:30000"), 1)
	renewed := func(times int64) {
		t.Helper()
		eventually(t, func() bool {
			r.Registrar.mu.Lock()
			r.keeper.hasten(time.Now())
			r.Registrar.mu.Unlock()
			r.wake()
			return looks.Load() >= times
		}, "the lease is renewed")
	}
	renewed(1)
	before := tokens.Load()
	require.NotZero(t, before)
	renewed(30)
	// A connection that breaks on a busy machine causes one more token.
	require.Less(t, tokens.Load()-before, int64(10))
}

func TestAPulseGoesOnAfterItsStreamHasEnded(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	c := s.dial()
	lease, err := c.Grant(t.Context(), 3600)
	require.NoError(t, err)
	var p pulse
	t.Cleanup(p.stop)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, p.beat(ctx, c, lease.ID))
	stream := p.stream
	require.NoError(t, p.beat(ctx, c, lease.ID))
	require.Equal(t, stream, p.stream, "over the same stream")
	to := s.etcd.Clients[0].Addr().String()
	s.gate.shut()
	s.gate.open(to)
	require.NoError(t, p.beat(ctx, c, lease.ID))
	s.gate.deafen()
	short, end := context.WithTimeout(ctx, 50*time.Millisecond)
	defer end()
	require.ErrorIs(t, p.beat(short, c, lease.ID), context.DeadlineExceeded)
	s.gate.hear()
	_, err = c.Revoke(ctx, lease.ID)
	require.NoError(t, err)
	require.ErrorContains(t, p.beat(ctx, c, lease.ID), "requested lease not found", "and no late answer to the beat before")
}

func TestPasswordFilesThatHoldNoneAreRefused(t *testing.T) {
	t.Parallel()
	c := ClientConfig{Endpoints: []string{"127.0.0.1:1"}, Username: "user", PasswordFile: passwordFile(t, "")}
	_, err := Dial(c)
	require.ErrorContains(t, err, "expected a password, it is empty")
	c.PasswordFile += ".absent"
	_, err = Dial(c)
	require.ErrorContains(t, err, "etcd: password file: open")
	c.Password = "word"
	_, err = Dial(c)
	require.ErrorContains(t, err, "not both")
}
