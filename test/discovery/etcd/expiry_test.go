package etcd_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/discovery/etcd"
	"github.com/seed-60ae5743/baton/pkg/discovery/record"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// fleet answer for the workers of a test.
type fleet struct {
	*watched
	expiry *discovery.Expiry

	mu   sync.Mutex
	dead map[string]bool // by endpoint: nothing listens there
	told []string
}

// watchEngines is watchPlain for workers that are asked when their records expire.
func watchEngines(t *testing.T, c *clientv3.Client) *fleet {
	t.Helper()
	src, err := etcd.New(c, quick())
	require.NoError(t, err)
	e := &fleet{dead: map[string]bool{}}
	e.expiry = &discovery.Expiry{
		Inner: src,
		Ask: func(_ context.Context, w *worker.Worker) discovery.Answer {
			e.mu.Lock()
			defer e.mu.Unlock()
			if e.dead[w.Endpoint.String()] {
				return discovery.Answer{Kind: discovery.Refused, Why: "connection refused"}
			}
			return discovery.Answer{Kind: discovery.Heard, Models: w.Models}
		},
		Told: func(news []discovery.Expired) {
			e.mu.Lock()
			defer e.mu.Unlock()
			for _, n := range news {
				e.told = append(e.told, fmt.Sprintf("%s stale=%t back=%t over=%s", n.Worker.Endpoint, n.Stale, n.Back, n.Over))
			}
		},
	}
	e.watched = watch(t, e.expiry)
	return e
}

func (e *fleet) kill(addrs ...string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, a := range addrs {
		e.dead[a] = true
	}
}

func (e *fleet) news() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.told)
}

// stale waits until so many workers are stale.
func (e *fleet) stale(n int) {
	e.t.Helper()
	eventually(e.t, func() bool {
		x := e.expiry.Expired()
		return len(x) == n && !slices.ContainsFunc(x, func(x discovery.Expired) bool { return !x.Stale })
	}, "%d workers are stale", n)
}

// registers announces workers through the server's gate, with the shortest leases that it
// grants.
func registers(t *testing.T, s *server, addrs ...string) []*registration {
	t.Helper()
	out := make([]*registration, len(addrs))
	for i, a := range addrs {
		out[i] = register(t, s.dial(), func(c *etcd.RegistrarConfig) { c.TTL = time.Second })
		out[i].announce(workerAt(t, worker.Decode, a), 1)
	}
	return out
}

// direct dials the server past its gate.
func direct(t *testing.T, s *server) *clientv3.Client {
	t.Helper()
	c, err := etcd.Dial(etcd.ClientConfig{Endpoints: []string{s.etcd.Clients[0].Addr().String()}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestRegistersThatAreCutOffLoseNoWorker: all leases end at once, and every engine answers.
// Each worker stays, marked stale, and is fresh again as soon as it is registered.
func TestRegistersThatAreCutOffLoseNoWorker(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	c := direct(t, s)
	e := watchEngines(t, c)
	addrs := []string{"10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000", "10.0.0.4:8000"}
	rs := registers(t, s, addrs...)
	e.has(addrs...)
	before := e.Load().Workers()

	s.gate.shut()
	eventually(t, func() bool { return len(keys(t, c, folder)) == 0 }, "the leases end")
	e.stale(4)
	<-time.After(2 * time.Second) // two leases more: what expires alone would be dropped
	e.stale(4)
	now := e.Load().Workers()
	require.Len(t, now, 4)
	for i, w := range now {
		require.Equal(t, before[i].ID, w.ID)
		require.False(t, w.Draining, "it is picked")
	}
	require.False(t, e.Load().Stale(), "etcd itself is there")

	s.gate.open(s.etcd.Clients[0].Addr().String())
	e.stale(0)
	e.has(addrs...)
	for i, r := range rs {
		eventually(t, func() bool { return e.Load().WorkerAt(addrs[i]).ID == r.ID() }, "it is known by its new id")
	}
	_, left := e.heard()
	require.Empty(t, left, "no moment without one of them")
	for _, a := range addrs {
		require.Contains(t, e.news(), a+" stale=true back=true over=a worker is registered at its address again")
	}
}

// TestWhoIsWithdrawnLeavesAtOnceAndIsNotAsked, also the last of its role, and one whose key
// had no lease that could have run out.
func TestWhoIsWithdrawnLeavesAtOnceAndIsNotAsked(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	c := direct(t, s)
	e := watchEngines(t, c)
	rs := registers(t, s, "10.0.0.1:8000", "10.0.0.2:8000")
	put(t, c, 7, "10.0.0.7:8000")
	e.has("10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.7:8000")
	rs[0].Withdraw()
	e.has("10.0.0.2:8000", "10.0.0.7:8000")
	_, err := c.Delete(t.Context(), workerKey(7))
	require.NoError(t, err)
	e.has("10.0.0.2:8000")
	require.NoError(t, rs[1].end())
	e.has()
	require.Empty(t, e.news())
}

// TestHalfOfARoleThatIsKilledWithItsEnginesIsGone, and one whose register alone has died
// leaves as it always did.
func TestHalfOfARoleThatIsKilledWithItsEnginesIsGone(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	c := direct(t, s)
	e := watchEngines(t, c)
	put := func(addr string) clientv3.LeaseID {
		lease, err := c.Grant(t.Context(), 3600)
		require.NoError(t, err)
		rec := workerAt(t, worker.Decode, addr)
		rec.ID = worker.ID(lease.ID)
		line, err := record.Marshal(&rec)
		require.NoError(t, err)
		_, err = c.Put(t.Context(), workerKey(lease.ID), strings.TrimSuffix(string(line), "}")+`,"lease_seconds":1}`, clientv3.WithLease(lease.ID))
		require.NoError(t, err)
		return lease.ID
	}
	var leases []clientv3.LeaseID
	for i := range 6 {
		leases = append(leases, put(fmt.Sprintf("10.0.0.%d:8000", i+1)))
	}
	e.has("10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000", "10.0.0.4:8000", "10.0.0.5:8000", "10.0.0.6:8000")
	e.kill("10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000")
	for _, l := range leases[:3] {
		_, err := c.Revoke(t.Context(), l) // as if it had run out: nothing was said before
		require.NoError(t, err)
	}
	e.has("10.0.0.4:8000", "10.0.0.5:8000", "10.0.0.6:8000")

	_, err := c.Revoke(t.Context(), leases[3])
	require.NoError(t, err)
	eventually(t, func() bool { w := e.Load().WorkerAt("10.0.0.4:8000"); return w != nil && w.Draining }, "it gets no new requests")
	e.has("10.0.0.5:8000", "10.0.0.6:8000")
	require.Contains(t, e.news(), "10.0.0.4:8000 stale=false back=false over=most of its role have kept their records")
}
