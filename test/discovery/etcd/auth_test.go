package etcd_test

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
	"github.com/seed-60ae5743/baton/pkg/discovery/etcd"
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
	as := func(c *etcd.ClientConfig) { c.Username, c.PasswordFile = "user", path }
	r := register(t, s.dial(as), func(c *etcd.RegistrarConfig) { c.TTL = 9 * time.Second })
	id := r.announce(workerAt(t, worker.Prefill, "10.0.0.1:30000"), 1)
	w := watchPlain(t, s.dial(as))
	w.has("10.0.0.1:30000")

	root := s.dial(func(c *etcd.ClientConfig) { c.Username, c.Password = "root", "secret" })
	_, err := root.UserChangePassword(t.Context(), "user", "new")
	require.NoError(t, err)
	eventually(t, func() bool { _, _, faults := r.heard(); return len(faults) > 0 }, "the registrar is refused")
	w.state(discovery.Stale)
	// etcd accepts no token from before the change, not even for a renewal: the file
	// must be changed within the TTL.
	require.NoError(t, os.WriteFile(path, []byte("new\n"), 0o600))
	w.state(discovery.Watching)
	eventually(t, func() bool { err, _ := r.LastError(); return err == nil }, "it goes on")
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
	var tokens, looks atomic.Int64
	s := newServer(t, func(c *embed.Config) {
		c.BcryptCost = 4
		c.GRPCAdditionalServerOptions = []grpc.ServerOption{grpc.ChainUnaryInterceptor(
			func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, answer grpc.UnaryHandler) (any, error) {
				switch req.(type) {
				case *pb.AuthenticateRequest:
					tokens.Add(1)
				case *pb.RangeRequest:
					looks.Add(1) // each renewal reads the key once
				}
				return answer(ctx, req)
			})}
	})
	withUsers(t, s.dial())
	client := s.dial(func(c *etcd.ClientConfig) { c.Username, c.Password = "user", "word" })
	// The shortest lease, which is renewed three times a second.
	r := register(t, client, func(c *etcd.RegistrarConfig) { c.TTL = time.Second })
	r.announce(workerAt(t, worker.Prefill, "10.0.0.1:30000"), 1)
	renewed := func(times int64) {
		t.Helper()
		eventually(t, func() bool { return looks.Load() >= times }, "the lease is renewed")
	}
	renewed(1)
	before := tokens.Load()
	require.NotZero(t, before)
	renewed(30)
	// A connection that breaks on a busy machine causes one more token.
	require.Less(t, tokens.Load()-before, int64(10))
}
