package etcd_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/discovery/etcd"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

const (
	someInstance = `{"type":"Endpoint","component":"c","endpoint":"e","namespace":"n","instance_id":%d,"transport":{"tcp":"127.0.0.1:%d/x/n/c/e"}}`
	someCard     = `{"type":"Model","namespace":"n","component":"c","endpoint":"e","instance_id":%d,"card_json":{"display_name":"m%d","kv_cache_block_size":16,"worker_type":"decode"}}`
)

func TestADynamoFleetIsFollowedInEtcd(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	c := s.dial()
	src, err := etcd.NewDynamo(s.dial(), etcd.DynamoConfig{Progress: quick().Progress, Silence: quick().Silence, ListTimeout: quick().ListTimeout, PageSize: 2})
	require.NoError(t, err)
	write := func(lease clientv3.LeaseID, key, value string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err := c.Put(ctx, key, value, clientv3.WithLease(lease))
		require.NoError(t, err)
	}
	join := func(port int) clientv3.LeaseID {
		t.Helper()
		lease, err := c.Grant(t.Context(), 3600)
		require.NoError(t, err)
		write(lease.ID, fmt.Sprintf("v1/instances/n/c/e/%x", lease.ID), fmt.Sprintf(someInstance, lease.ID, port))
		write(lease.ID, fmt.Sprintf("v1/instances/n/c/worker_kv_query_source_1/%x", lease.ID), fmt.Sprintf(someInstance, lease.ID, port))
		write(lease.ID, fmt.Sprintf("v1/kv/n/c/%x", lease.ID), "between the prefixes")
		return lease.ID
	}
	first := join(8000)
	write(first, fmt.Sprintf("v1/mdc/n/c/e/%x", first), fmt.Sprintf(someCard, first, 1))
	w := watch(t, src)
	w.has("127.0.0.1:8000")
	second := join(8001)
	write(second, fmt.Sprintf("v1/mdc/n/c/e/%x", second), fmt.Sprintf(someCard, second, 2))
	w.has("127.0.0.1:8000", "127.0.0.1:8001")
	for _, x := range w.Load().Workers() {
		require.Equal(t, "n/c/e", x.Deployment)
		require.False(t, x.CanServe(worker.Decode), "Envoy cannot reach it")
	}
	s.stop()
	w.state(discovery.Stale)
	s.start()
	w.state(discovery.Watching)
	w.has("127.0.0.1:8000", "127.0.0.1:8001")
	_, err = c.Revoke(t.Context(), first)
	require.NoError(t, err)
	w.has("127.0.0.1:8001")
	_, err = c.Delete(t.Context(), fmt.Sprintf("v1/mdc/n/c/e/%x", second))
	require.NoError(t, err)
	w.has()
}
