package etcd_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/seed-60ae5743/baton/pkg/discovery/etcd"
)

func TestReplicasFindEachOtherBesideTheWorkers(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	c := direct(t, s)
	workers := watchPlain(t, c)
	var all [2]*etcd.Replicas
	for i, at := range []string{"10.0.0.1:9002", "10.0.0.2:9002"} {
		var err error
		all[i], err = etcd.NewReplicas(direct(t, s), etcd.DefaultPrefix, at)
		require.NoError(t, err)
	}
	list := func(r *etcd.Replicas) []string {
		got, err := r.List(t.Context())
		require.NoError(t, err)
		return got
	}
	require.Equal(t, []string{"10.0.0.1:9002"}, list(all[0]))
	both := []string{"10.0.0.1:9002", "10.0.0.2:9002"}
	require.Equal(t, both, list(all[1]))
	require.Equal(t, both, list(all[0]))
	workers.has() // the keys are no workers'

	first, err := c.Get(t.Context(), etcd.DefaultPrefix+"/replicas/10.0.0.1:9002")
	require.NoError(t, err)
	_, err = c.Revoke(t.Context(), clientv3.LeaseID(first.Kvs[0].Lease)) // as after a long cut
	require.NoError(t, err)
	require.Equal(t, both[1:], list(all[1]))
	require.Equal(t, both, list(all[0]), "it is written again")
	_, err = c.Delete(t.Context(), etcd.DefaultPrefix, clientv3.WithPrefix()) // as by an operator who clears everything
	require.NoError(t, err)
	require.Empty(t, list(all[0]))
	require.Equal(t, both[:1], list(all[0]), "it is put again")
	require.Equal(t, both[:1], list(all[1]))
	require.Equal(t, both, list(all[1]))
	require.NoError(t, all[1].Close())
	require.Equal(t, both[:1], list(all[0]))
	got, err := c.Get(t.Context(), etcd.DefaultPrefix+"/replicas/", clientv3.WithPrefix())
	require.NoError(t, err)
	require.Len(t, got.Kvs, 1)
	require.NotZero(t, got.Kvs[0].Lease, "it ends with its process")

	s.stop()
	_, err = all[0].List(shortly(t))
	require.Error(t, err)
	require.NoError(t, all[0].Close(), "a process ends all the same")
	_, err = etcd.NewReplicas(c, "/wrong", "x")
	require.ErrorContains(t, err, "prefix")
}

// TestAReplicaThatMayNotWriteHoldsOneLease, however often it tries.
func TestAReplicaThatMayNotWriteHoldsOneLease(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	withUsers(t, s.dial())
	r, err := etcd.NewReplicas(s.dial(func(c *etcd.ClientConfig) { c.Username, c.Password = "reader", "word" }), etcd.DefaultPrefix, "10.0.0.1:9002")
	require.NoError(t, err)
	for range 3 {
		_, err := r.List(t.Context())
		require.ErrorContains(t, err, "permission denied")
	}
	held := leases(t, s.dial(func(c *etcd.ClientConfig) { c.Username, c.Password = "root", "secret" }))
	require.Len(t, held, 1)
}

// shortly is a context for a call that must not be answered.
func shortly(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}
