package stack

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func dial(t *testing.T, endpoints []string) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 5 * time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestEtcd(t *testing.T) {
	bin := t.TempDir()
	require.NoError(t, Build(bin, "", false, "./test/cmd/devetcd"))

	t.Run("a member that is killed comes back with its data at its address", func(t *testing.T) {
		ctx := bounded(t)
		e, err := StartEtcd(ctx, EtcdOptions{BinDir: bin, Dir: filepath.Join(t.TempDir(), "etcd")})
		require.NoError(t, err)
		at, first := e.Endpoints, e.Process
		c := dial(t, at)
		lease, err := c.Grant(ctx, 600)
		require.NoError(t, err)
		_, err = c.Put(ctx, "k", "v", clientv3.WithLease(lease.ID))
		require.NoError(t, err)
		require.ErrorContains(t, e.Restart(ctx), "is started again while it runs")

		require.NoError(t, e.Kill())
		require.Error(t, first.Err(), "it was killed")
		require.NoError(t, e.Restart(ctx))
		require.Equal(t, at, e.Endpoints)
		require.NotEqual(t, first.PID(), e.PID())
		got, err := c.Get(ctx, "k")
		require.NoError(t, err)
		require.Len(t, got.Kvs, 1)
		require.Equal(t, int64(lease.ID), got.Kvs[0].Lease)

		require.NoError(t, e.Stop(10*time.Second))
		require.NoError(t, e.Err(), "asked to stop, it ends well")
	})

	t.Run("three members outlive the loss of their leader", func(t *testing.T) {
		ctx := bounded(t)
		members, err := StartEtcdCluster(ctx, EtcdOptions{BinDir: bin, Dir: t.TempDir()}, 3)
		require.NoError(t, err)
		t.Cleanup(func() {
			for _, m := range members {
				_ = m.Kill()
			}
		})
		var all []string
		for _, m := range members {
			all = append(all, m.Endpoints...)
		}
		c := dial(t, all)
		_, err = c.Put(ctx, "k", "v")
		require.NoError(t, err)
		var leader *Etcd
		for _, m := range members {
			s, err := c.Status(ctx, m.Endpoints[0])
			require.NoError(t, err)
			if s.Leader == s.Header.MemberId {
				leader = m
			}
		}
		require.NotNil(t, leader)
		require.NoError(t, leader.Kill())
		require.NoError(t, Await(ctx, "another leader", func() bool {
			one, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			_, err := c.Put(one, "k", "w")
			return err == nil
		}))
		require.NoError(t, leader.Restart(ctx), "and it may come back")
	})

	t.Run("an address that is taken is said", func(t *testing.T) {
		ctx := bounded(t)
		e, err := StartEtcd(ctx, EtcdOptions{BinDir: bin, Dir: t.TempDir()})
		require.NoError(t, err)
		t.Cleanup(func() { _ = e.Kill() })
		_, err = StartEtcd(ctx, EtcdOptions{BinDir: bin, Dir: t.TempDir(), Listen: e.opts.Listen})
		require.ErrorContains(t, err, "address already in use")
	})
}

func TestARegistrarIsToldWhatItSpeaksForAndWhereTo(t *testing.T) {
	bin := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(bin, "extproc"), []byte("#!/bin/sh\necho \"$@\"\n"), 0o755))
	r, err := StartRegister(bounded(t), RegisterOptions{
		BinDir: bin, EngineURL: "http://127.0.0.1:1", Etcd: []string{"http://127.0.0.1:2", "127.0.0.1:3"},
		Prefix: "p", TTL: 2 * time.Second, Args: []string{"--namespace", "n"},
	})
	require.NoError(t, err)
	<-r.Done()
	require.Equal(t, "register --engine-url http://127.0.0.1:1 --etcd-endpoints http://127.0.0.1:2,127.0.0.1:3 --log-format json "+
		"--etcd-prefix p --lease-ttl 2s --namespace n\n", r.Log())
}

func TestARegistrarSaysUnderWhichIDAndSinceWhen(t *testing.T) {
	bin := t.TempDir()
	log := `{"time":"2026-01-02T03:04:05.5Z","level":"INFO","msg":"worker registered","worker_id":"7"}
{"time":"2026-01-02T03:04:06Z","level":"WARN","msg":"registration lost","worker_id":"7"}
not JSON
{"time":"2026-01-02T03:04:07.25Z","level":"INFO","msg":"worker registered","worker_id":"18446744073709551615"}
{"time":"2026-01-02T03:04:08Z","level":"INFO","msg":"announced","worker_id":"9"}
`
	require.NoError(t, os.WriteFile(filepath.Join(bin, "log"), []byte(log), 0o600))
	register := func(script string) *Register {
		require.NoError(t, os.WriteFile(filepath.Join(bin, "extproc"), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
		r, err := StartRegister(bounded(t), RegisterOptions{BinDir: bin, EngineURL: "http://127.0.0.1:1"})
		require.NoError(t, err)
		<-r.Done()
		return r
	}
	_, _, ok := register("exit 1").Registered()
	require.False(t, ok)
	id, since, ok := register("cat " + filepath.Join(bin, "log") + " >&2").Registered()
	require.True(t, ok)
	require.Equal(t, worker.ID(math.MaxUint64), id, "the latest")
	require.Equal(t, time.Date(2026, 1, 2, 3, 4, 7, 250e6, time.UTC), since)
}

func TestThePluginIsToldWhereWorkersAre(t *testing.T) {
	for want, o := range map[string]PluginOptions{
		"discovery: {file: \"w.yaml\"}\n": {Workers: "w.yaml"},
		"discovery: {etcd: {endpoints: [\"a:1\", \"http://b:2\"]}, networks: [127.0.0.0/8]}\n":             {Etcd: []string{"a:1", "http://b:2"}},
		"discovery: {file: \"w\", etcd: {endpoints: [\"a:1\"], prefix: \"p\"}, networks: [127.0.0.0/8]}\n": {Workers: "w", Etcd: []string{"a:1"}, Prefix: "p"},
	} {
		require.Equal(t, want, o.discovery())
	}
}
