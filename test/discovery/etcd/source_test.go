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

// quick returns a source's config for tests in real time.
func quick() etcd.Config {
	return etcd.Config{Progress: 50 * time.Millisecond, Silence: time.Second, ListTimeout: 2 * time.Second, Grace: 10 * time.Second, PageSize: 2}
}

// watched is a view over a source, and a record of its calls.
type watched struct {
	*discovery.View
	t *testing.T

	mu     sync.Mutex
	causes []string
	left   []string // endpoints that were in a set and not in the next
}

func watch(t *testing.T, src discovery.Source) *watched {
	t.Helper()
	w := &watched{t: t}
	var err error
	w.View, err = discovery.New(discovery.Config{
		Sources:    []discovery.Named{{Name: "etcd", Source: src}},
		MinBackoff: 10 * time.Millisecond, MaxBackoff: 50 * time.Millisecond,
		Hooks: discovery.Hooks{Transition: func(tr discovery.Transition) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.causes = append(w.causes, tr.Cause)
		}},
	})
	require.NoError(t, err)
	w.Subscribe(func(old, now *worker.Snapshot, _ discovery.Change) {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, o := range old.Workers() {
			if now.WorkerAt(o.Endpoint.String()) == nil {
				w.left = append(w.left, o.Endpoint.String())
			}
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-done) })
	return w
}

func watchPlain(t *testing.T, c *clientv3.Client, adjust ...func(*etcd.Config)) *watched {
	t.Helper()
	cfg := quick()
	for _, f := range adjust {
		f(&cfg)
	}
	src, err := etcd.New(c, cfg)
	require.NoError(t, err)
	return watch(t, src)
}

func (w *watched) has(addrs ...string) {
	w.t.Helper()
	eventually(w.t, func() bool {
		var have []string
		for _, x := range w.Load().Workers() {
			have = append(have, x.Endpoint.String())
		}
		slices.Sort(have)
		return slices.Equal(have, addrs)
	}, "the view holds %v", addrs)
}

func (w *watched) state(s discovery.State) {
	w.t.Helper()
	eventually(w.t, func() bool { return w.Status().Sources[0].State == s }, "the source is %s", s)
}

func (w *watched) heard() (causes, left []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.causes), slices.Clone(w.left)
}

func put(t *testing.T, c *clientv3.Client, id worker.ID, addr string) {
	t.Helper()
	rec := workerAt(t, worker.Decode, addr)
	rec.ID = id
	line, err := record.Marshal(&rec)
	require.NoError(t, err)
	_, err = c.Put(t.Context(), workerKey(clientv3.LeaseID(id)), string(line))
	require.NoError(t, err)
}

func TestTheViewFollowsEtcd(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	c := s.dial()
	for i := range 5 {
		put(t, c, worker.ID(i+1), fmt.Sprintf("10.0.0.1:800%d", i))
	}
	w := watchPlain(t, s.dial())
	w.has("10.0.0.1:8000", "10.0.0.1:8001", "10.0.0.1:8002", "10.0.0.1:8003", "10.0.0.1:8004")

	r := register(t, c, func(c *etcd.RegistrarConfig) { c.TTL = time.Hour })
	id := r.announce(workerAt(t, worker.Prefill, "10.0.0.2:30000"), 1)
	eventually(t, func() bool { return w.Load().Worker(id) != nil }, "a registration is seen")
	id = r.announce(workerAt(t, worker.Prefill, "10.0.0.2:30000"), 2)
	eventually(t, func() bool { return w.Load().Worker(id) != nil }, "a new life is seen")
	require.NoError(t, r.end())
	_, err := c.Delete(t.Context(), folder+"1", clientv3.WithRange(folder+"5"))
	require.NoError(t, err)
	w.has("10.0.0.1:8004")

	_, err = c.Put(t.Context(), folder+"5", "{")
	require.NoError(t, err)
	eventually(t, func() bool { return len(w.Status().Problems) == 1 }, "the fault is shown")
	w.has("10.0.0.1:8004")
	_, left := w.heard()
	require.NotContains(t, left, "10.0.0.1:8004")
}

// TestThousandsRegisterAndAreKnown: every worker becomes known, none seems to leave,
// and the set is complete when it is shown as fresh. With the build tag long they come
// over a minute, and are known two seconds after the last one.
func TestThousandsRegisterAndAreKnown(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	c := s.dial()
	w := watchPlain(t, s.dial(), func(c *etcd.Config) { c.PageSize = 500 })
	w.state(discovery.Watching)
	began, next := time.Now(), make(chan int)
	var writers sync.WaitGroup
	for range 16 {
		writers.Go(func() {
			for i := range next {
				put(t, c, worker.ID(i+1), fmt.Sprintf("10.1.%d.%d:8000", i/250, 1+i%250))
			}
		})
	}
	for i := range manyWorkers {
		if due := time.Until(began.Add(manyWithin * time.Duration(i) / manyWorkers)); due > 0 {
			<-time.After(due)
		}
		next <- i
	}
	close(next)
	writers.Wait()
	last := time.Now()
	eventually(t, func() bool { return len(w.Load().Workers()) == manyWorkers }, "all are known")
	took := time.Since(last)
	if manyWithin > 0 {
		require.Less(t, took, 2*time.Second)
	}
	w.state(discovery.Watching)
	require.Len(t, w.Load().Workers(), manyWorkers)
	causes, left := w.heard()
	require.Empty(t, left)
	t.Logf("%d registrations in %s, known %s after the last, in %d steps, stale by %q", manyWorkers, last.Sub(began).Round(time.Millisecond),
		took.Round(time.Millisecond), w.Load().Revision(), causes)
}

func TestAQuietEtcdIsNoLoss(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	put(t, s.dial(), 1, "10.0.0.1:8000")
	w := watchPlain(t, s.dial(), func(c *etcd.Config) { c.Silence = 3 * time.Second }) // sixty probes, for slow machines
	w.has("10.0.0.1:8000")
	rested(t, 6500*time.Millisecond)
	require.Zero(t, w.Status().Sources[0].Losses)
	put(t, s.dial(), 2, "10.0.0.1:8001")
	w.has("10.0.0.1:8000", "10.0.0.1:8001")
}

func TestAKeyWithdrawnByItsLeaseIsGone(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	c := s.dial()
	w := watchPlain(t, s.dial())
	lease, err := c.Grant(t.Context(), 3600)
	require.NoError(t, err)
	// What the documentation of the package says, done by hand.
	value := fmt.Sprintf(`{"id":%d,"role":"prefill","engine":"sglang","models":["qwen"],"endpoint":"10.0.0.7:30000",`+
		`"dp_size":1,"block_size":64,"bootstrap":{"host":"10.0.0.7","port":8998},"colour":"of a newer writer"}`, lease.ID)
	_, err = c.Put(t.Context(), fmt.Sprintf("baton/v1/workers/%d", lease.ID), value, clientv3.WithLease(lease.ID))
	require.NoError(t, err)
	w.has("10.0.0.7:30000")
	require.True(t, w.Load().Workers()[0].CanServe(worker.Prefill))
	_, err = c.Revoke(t.Context(), lease.ID)
	require.NoError(t, err)
	w.has()
}

func TestWhatWasCompactedWhileTheSourceWasAwayIsListed(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	to := s.etcd.Clients[0].Addr().String()
	direct, err := etcd.Dial(etcd.ClientConfig{Endpoints: []string{to}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = direct.Close() })
	put(t, direct, 1, "10.0.0.1:8000")
	put(t, direct, 2, "10.0.0.1:8001")
	w := watchPlain(t, s.dial(), func(c *etcd.Config) { c.Grace = 500 * time.Millisecond }) // a missing worker may mean lost data
	w.has("10.0.0.1:8000", "10.0.0.1:8001")
	s.gate.shut()
	w.state(discovery.Stale)
	for range 5 {
		put(t, direct, 3, "10.0.0.1:8002")
	}
	res, err := direct.Delete(t.Context(), workerKey(1))
	require.NoError(t, err)
	_, err = direct.Compact(t.Context(), res.Header.Revision)
	require.NoError(t, err)
	w.has("10.0.0.1:8000", "10.0.0.1:8001")
	s.gate.open(to)
	w.has("10.0.0.1:8001", "10.0.0.1:8002")
	w.state(discovery.Watching)
}

func TestARestartedEtcdLosesNoWorker(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	c := s.dial()
	r := register(t, c)
	id := r.announce(workerAt(t, worker.Prefill, "10.0.0.1:30000"), 1)
	w := watchPlain(t, s.dial())
	w.has("10.0.0.1:30000")
	s.stop()
	w.state(discovery.Stale)
	require.True(t, w.Load().Stale())
	s.start()
	w.state(discovery.Watching)
	w.has("10.0.0.1:30000")
	require.Equal(t, id, w.Load().Workers()[0].ID)
	put(t, c, 1, "10.0.0.1:8000")
	w.has("10.0.0.1:30000", "10.0.0.1:8000")
	_, left := w.heard()
	require.Empty(t, left)
}

func TestSilenceMakesTheViewStale(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	put(t, s.dial(), 1, "10.0.0.1:8000")
	w := watchPlain(t, s.dial())
	w.has("10.0.0.1:8000")
	put(t, s.dial(), 2, "10.0.0.1:8001") // it is seen through the watch, so there is a watch
	w.has("10.0.0.1:8000", "10.0.0.1:8001")
	s.gate.deafen()
	w.state(discovery.Stale)
	eventually(t, func() bool {
		causes, _ := w.heard()
		return strings.Contains(causes[len(causes)-1], "etcd: no") // nothing heard, no watch, no listing
	}, "the reason is shown")
	s.gate.hear()
	w.state(discovery.Watching)
	w.has("10.0.0.1:8000", "10.0.0.1:8001")
}

func TestAWipedEtcdLosesNoWorkerThatRegistersAgain(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	r1 := register(t, s.dial())
	r2 := register(t, s.dial())
	old := r1.announce(workerAt(t, worker.Prefill, "10.0.0.1:30000"), 1)
	r2.announce(workerAt(t, worker.Decode, "10.0.0.1:8000"), 1)
	w := watchPlain(t, s.dial())
	w.has("10.0.0.1:30000", "10.0.0.1:8000")
	s.wipe()
	s.start()
	eventually(t, func() bool {
		ids := w.Load()
		return ids.Worker(old) == nil && ids.WorkerAt("10.0.0.1:30000") != nil && !ids.Stale()
	}, "known by new ids")
	w.has("10.0.0.1:30000", "10.0.0.1:8000")
	_, left := w.heard()
	require.Empty(t, left)
}

func TestAWipedEtcdDropsWhoDoesNotComeBackAfterTheGrace(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	put(t, s.dial(), 1, "10.0.0.1:8000")
	put(t, s.dial(), 2, "10.0.0.1:8001")
	w := watchPlain(t, s.dial(), func(c *etcd.Config) { c.Grace = 700 * time.Millisecond })
	w.has("10.0.0.1:8000", "10.0.0.1:8001")
	s.wipe()
	s.start()
	put(t, s.dial(), 3, "10.0.0.1:8001")
	w.has("10.0.0.1:8001")
	causes, _ := w.heard()
	require.True(t, slices.ContainsFunc(causes, func(c string) bool {
		return strings.Contains(c, "etcd has lost its data") && strings.Contains(c, "waiting up to 700ms for 1 of 2 workers to register again")
	}), "%q", causes)
}

func TestAWipedEtcdThatHasOvertakenTheRevisionIsNotBelieved(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	put(t, s.dial(), 1, "10.0.0.1:8000")
	put(t, s.dial(), 2, "10.0.0.1:8001")
	w := watchPlain(t, s.dial())
	w.has("10.0.0.1:8000", "10.0.0.1:8001")
	gate := s.gate
	gate.shut()
	w.state(discovery.Stale)
	s.wipe()
	s.gate = newGate(t) // the source sees nothing of what follows
	s.start()
	other := s.dial()
	for range 50 {
		_, err := other.Put(t.Context(), "another's", "x")
		require.NoError(t, err)
	}
	gate.open(s.etcd.Clients[0].Addr().String())
	eventually(t, func() bool {
		causes, _ := w.heard()
		return slices.ContainsFunc(causes, func(c string) bool {
			return strings.Contains(c, "etcd has lost its data") && strings.Contains(c, "for 2 of 2 workers to register again")
		})
	}, "the loss is seen")
	put(t, other, 3, "10.0.0.1:8000")
	put(t, other, 4, "10.0.0.1:8001")
	w.state(discovery.Watching)
	w.has("10.0.0.1:8000", "10.0.0.1:8001")
	require.NotNil(t, w.Load().Worker(3))
	_, left := w.heard()
	require.Empty(t, left)
}

func TestWorkersWhoseLeasesEndedInAnOutageHaveAWhileToComeBack(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	to := s.etcd.Clients[0].Addr().String()
	direct, err := etcd.Dial(etcd.ClientConfig{Endpoints: []string{to}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = direct.Close() })
	lease, err := direct.Grant(t.Context(), 3600)
	require.NoError(t, err)
	for i := range 2 {
		rec := workerAt(t, worker.Decode, fmt.Sprintf("10.0.0.1:800%d", i))
		rec.ID = worker.ID(i + 1)
		line, err := record.Marshal(&rec)
		require.NoError(t, err)
		_, err = direct.Put(t.Context(), workerKey(clientv3.LeaseID(i+1)), string(line), clientv3.WithLease(lease.ID))
		require.NoError(t, err)
	}
	w := watchPlain(t, s.dial(), func(c *etcd.Config) { c.Return = 10 * time.Second })
	w.has("10.0.0.1:8000", "10.0.0.1:8001")
	s.gate.shut()
	w.state(discovery.Stale)
	_, err = direct.Revoke(t.Context(), lease.ID)
	require.NoError(t, err)
	s.gate.open(to)
	eventually(t, func() bool {
		causes, _ := w.heard()
		return slices.Contains(causes, "2 of 2 workers are missing after an outage: waiting up to 10s for them")
	}, "they are awaited")
	put(t, direct, 3, "10.0.0.1:8000")
	put(t, direct, 4, "10.0.0.1:8001")
	w.state(discovery.Watching)
	w.has("10.0.0.1:8000", "10.0.0.1:8001")
	require.NotNil(t, w.Load().Worker(3))
	_, left := w.heard()
	require.Empty(t, left)
}
