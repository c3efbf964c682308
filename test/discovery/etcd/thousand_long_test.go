//go:build long

package etcd_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/seed-60ae5743/baton/pkg/discovery/etcd"
	"github.com/seed-60ae5743/baton/pkg/worker"
	"github.com/seed-60ae5743/baton/test/stack"
)

// A thousand registrars with users, each with a client of its own, in one process: all are registered
// within ten minutes. etcd is killed then, and started on its data, which ends all their tokens: none
// of them is lost while it computes their passwords again, and no plugin sees one leave.
func TestAThousandWithPasswordsOutliveARestartOfEtcd(t *testing.T) {
	const crowd = 1000
	bin := t.TempDir()
	require.NoError(t, stack.Build(bin, "", false, "./test/cmd/devetcd"))
	server, err := stack.StartEtcd(t.Context(), stack.EtcdOptions{BinDir: bin, Dir: t.TempDir(), Args: []string{"--election-timeout", "1s"}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = server.Kill() })
	dialled := func(user, word string) *clientv3.Client {
		c, err := etcd.Dial(etcd.ClientConfig{Endpoints: server.Endpoints, Username: user, Password: word})
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	admin, err := clientv3.New(clientv3.Config{Endpoints: server.Endpoints})
	require.NoError(t, err)
	withUsers(t, admin)
	require.NoError(t, admin.Close())
	w := watchPlain(t, dialled("reader", "word"))

	var in, lost atomic.Int64
	begun := time.Now()
	clients := make([]*clientv3.Client, crowd)
	all := make([]*registration, crowd)
	defer func() { // side by side: each deletes its key before it ends
		var ending sync.WaitGroup
		for _, r := range all {
			if r != nil {
				ending.Go(func() { _ = r.end() })
			}
		}
		ending.Wait()
	}()
	for i := range clients {
		clients[i] = dialled("user", "word")
		r := register(t, clients[i], func(c *etcd.RegistrarConfig) {
			c.TTL, c.RetryMax = 0, 0 // as shipped
			c.Hooks = etcd.RegistrarHooks{Registered: func(worker.ID) { in.Add(1) }, Lost: func(string) { lost.Add(1) }}
		})
		all[i] = r
		r.Announce(workerAt(t, worker.Decode, fmt.Sprintf("10.0.%d.%d:8000", i/250, 1+i%250)), 1)
	}
	await := func(most time.Duration, what string, is func() bool) {
		t.Helper()
		for end := time.Now().Add(most); !is(); <-time.After(time.Second) {
			require.True(t, time.Now().Before(end), "%s: %d in, %d lost", what, in.Load(), lost.Load())
		}
	}
	await(10*time.Minute, "all to be registered", func() bool { return in.Load() >= crowd && len(w.Load().Workers()) == crowd })
	t.Logf("%d in after %s, %d lost", in.Load(), time.Since(begun).Round(time.Second), lost.Load())
	require.Zero(t, lost.Load())

	begun = time.Now()
	require.NoError(t, server.Kill())
	require.NoError(t, server.Restart(t.Context()))
	fresh := func(c *clientv3.Client) bool { // etcd answers only who has a token of this life
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.Get(ctx, folder, clientv3.WithPrefix(), clientv3.WithCountOnly())
		return err == nil
	}
	have := 0
	await(10*time.Minute, "all to have a token of the new etcd", func() bool {
		for have < crowd && fresh(clients[have]) {
			have++
		}
		return have == crowd
	})
	t.Logf("all have a token again %s after etcd was killed, %d lost", time.Since(begun).Round(time.Second), lost.Load())
	rested(t, 30*time.Second)
	_, left := w.heard()
	t.Logf("%d lost, %d left the view", lost.Load(), len(left))
	require.Zero(t, lost.Load())
	require.Empty(t, left)
	require.Len(t, w.Load().Workers(), crowd)
}
