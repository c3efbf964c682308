package etcd_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"

	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/discovery/etcd"
	"github.com/seed-60ae5743/baton/pkg/discovery/record"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

func workerAt(t *testing.T, role worker.Role, addr string) worker.Worker {
	t.Helper()
	e, err := worker.ParseEndpoint(addr)
	require.NoError(t, err)
	return worker.Worker{
		Role: role, Engine: worker.SGLang, Endpoint: e, Models: []string{"m"}, DPSize: 1, BlockSize: 16,
		Bootstrap: worker.Bootstrap{Host: "10.0.0.1", Port: 8998},
	}
}

// registration is a registrar that runs, and the calls of its hooks.
type registration struct {
	*etcd.Registrar
	t   *testing.T
	end func() error // ends Run and returns its error

	mu     sync.Mutex
	ids    []worker.ID
	losses []string
	faults []error
}

func register(t *testing.T, client *clientv3.Client, adjust ...func(*etcd.RegistrarConfig)) *registration {
	t.Helper()
	r := &registration{t: t}
	// A request gets a third of the TTL: a second is enough on a busy machine.
	cfg := etcd.RegistrarConfig{TTL: 3 * time.Second, RetryMax: 200 * time.Millisecond, Hooks: etcd.RegistrarHooks{
		Registered: func(id worker.ID) { r.mu.Lock(); defer r.mu.Unlock(); r.ids = append(r.ids, id) },
		Lost:       func(cause string) { r.mu.Lock(); defer r.mu.Unlock(); r.losses = append(r.losses, cause) },
		Failed:     func(err error) { r.mu.Lock(); defer r.mu.Unlock(); r.faults = append(r.faults, err) },
	}}
	for _, f := range adjust {
		f(&cfg)
	}
	var err error
	r.Registrar, err = etcd.NewRegistrar(client, cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	r.end = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { _ = r.end() })
	return r
}

func (r *registration) sync() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	require.NoError(r.t, r.Sync(ctx))
}

// announce registers a worker, and returns its id.
func (r *registration) announce(rec worker.Worker, life uint64) worker.ID {
	r.t.Helper()
	r.Announce(rec, life)
	r.sync()
	id := r.ID()
	eventually(r.t, func() bool { ids, _, _ := r.heard(); return len(ids) > 0 && ids[len(ids)-1] == id }, "the id is told")
	return id
}

func (r *registration) heard() (ids []worker.ID, losses []string, faults []error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]worker.ID(nil), r.ids...), append([]string(nil), r.losses...), append([]error(nil), r.faults...)
}

// only returns the one worker that etcd has.
func only(t *testing.T, c *clientv3.Client) worker.Worker {
	t.Helper()
	all := keys(t, c, folder)
	require.Len(t, all, 1)
	for k, v := range all {
		w, err := record.ParseKnown(k, []byte(v))
		require.NoError(t, err)
		require.Equal(t, folder+w.ID.String(), k)
		return *w
	}
	panic("unreachable")
}

// leases returns the leases that etcd has, as the ids of workers. It includes leases
// whose grant was answered too late, which no registrar knows: they stay until they
// expire.
func leases(t *testing.T, c *clientv3.Client) []worker.ID {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ls, err := c.Leases(ctx)
	require.NoError(t, err)
	ids := []worker.ID{}
	for _, l := range ls.Leases {
		ids = append(ids, worker.ID(l.ID))
	}
	return ids
}

// intercepted is what a registrar writes through: commit ends each transaction.
type intercepted struct {
	clientv3.KV
	commit func(*txn) (*clientv3.TxnResponse, error)
}

// Txn implements clientv3.KV.
func (k *intercepted) Txn(ctx context.Context) clientv3.Txn { return &txn{Txn: k.KV.Txn(ctx), by: k} }

// txn is a transaction, and what it does.
type txn struct {
	clientv3.Txn
	by   *intercepted
	then []clientv3.Op
}

func (x *txn) If(cs ...clientv3.Cmp) clientv3.Txn { x.Txn = x.Txn.If(cs...); return x }

func (x *txn) Then(ops ...clientv3.Op) clientv3.Txn {
	x.Txn, x.then = x.Txn.Then(ops...), ops
	return x
}

func (x *txn) Else(ops ...clientv3.Op) clientv3.Txn { x.Txn = x.Txn.Else(ops...); return x }

func (x *txn) Commit() (*clientv3.TxnResponse, error) { return x.by.commit(x) }

// lease is that whose key is written.
func (x *txn) lease(t *testing.T) clientv3.LeaseID {
	id, err := worker.ParseID(strings.TrimPrefix(string(x.then[len(x.then)-1].KeyBytes()), folder))
	if err != nil {
		t.Error(err) // this is not the test's goroutine
	}
	return clientv3.LeaseID(id)
}

func TestAWorkerIsRegisteredUnderItsLeaseAndChangesUnderTheSameId(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	c := s.dial()
	r := register(t, c)
	rec := workerAt(t, worker.Prefill, "10.0.0.1:30000")
	id := r.announce(rec, 1)

	w := only(t, c)
	require.Equal(t, id, w.ID)
	rec.ID = id
	require.Equal(t, rec, w)
	ttl, err := c.TimeToLive(t.Context(), clientv3.LeaseID(id), clientv3.WithAttachedKeys())
	require.NoError(t, err)
	require.Equal(t, int64(3), ttl.GrantedTTL)
	require.Len(t, ttl.Keys, 1)

	rec.Draining = true
	require.Equal(t, id, r.announce(rec, 1))
	require.True(t, only(t, c).Draining)

	before, err := c.Get(t.Context(), "x")
	require.NoError(t, err)
	r.announce(rec, 1)
	after, err := c.Get(t.Context(), "x")
	require.NoError(t, err)
	require.Equal(t, before.Header.Revision, after.Header.Revision, "what is there already is not written again")
	ids, losses, faults := r.heard()
	require.Equal(t, []worker.ID{id}, ids)
	require.Empty(t, losses)
	require.Empty(t, faults)
}

func TestARestartedEngineGetsANewIdWithNoMomentWithoutAWorker(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	c := s.dial()
	r := register(t, c)
	rec := workerAt(t, worker.Decode, "10.0.0.2:30000")
	old := r.announce(rec, 1)
	head, err := c.Get(t.Context(), "x")
	require.NoError(t, err)

	id := r.announce(rec, 2)
	require.NotEqual(t, old, id)
	require.Equal(t, id, only(t, c).ID)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	res := <-c.Watch(ctx, folder, clientv3.WithPrefix(), clientv3.WithRev(head.Header.Revision+1))
	require.Len(t, res.Events, 2, "both at once")
	require.Equal(t, res.Events[0].Kv.ModRevision, res.Events[1].Kv.ModRevision, "in one transaction")
	eventually(t, func() bool { return !slices.Contains(leases(t, c), old) }, "the old lease is revoked")
}

func TestAnEngineThatRestartsAgainAndAgainLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	c := s.dial()
	r := register(t, c, func(c *etcd.RegistrarConfig) { c.TTL = time.Hour })
	rec := workerAt(t, worker.Decode, "10.0.0.2:30000")
	for life := range uint64(150) { // more than one transaction can drop
		r.announce(rec, life)
	}
	require.Equal(t, r.ID(), only(t, c).ID)
	ids, losses, faults := r.heard()
	require.Len(t, ids, 150)
	eventually(t, func() bool {
		held := leases(t, c)
		return !slices.ContainsFunc(ids[:149], func(id worker.ID) bool { return slices.Contains(held, id) })
	}, "the old leases are revoked")
	require.Empty(t, losses)
	require.Empty(t, faults)
}

func TestATransactionOfTheMostOperationsIsTaken(t *testing.T) {
	t.Parallel()
	const most = 32 // keys that one transaction deletes
	s := newServer(t)
	c := s.dial()
	seen := make(chan clientv3.LeaseID, 1)
	var refuse atomic.Bool
	refuse.Store(true)
	var ops []clientv3.Op
	c.KV = &intercepted{KV: c.KV, commit: func(x *txn) (*clientv3.TxnResponse, error) {
		if refuse.Load() {
			select {
			case seen <- x.lease(t):
			default:
			}
			return nil, errors.New("refused by the test")
		}
		if ops == nil {
			ops = x.then
		}
		return x.Txn.Commit()
	}}
	r := register(t, c, func(c *etcd.RegistrarConfig) { c.TTL = time.Hour })
	held := map[clientv3.LeaseID]bool{}
	for life := range uint64(2 * most) { // each has a lease, whose key is not written
		r.Announce(workerAt(t, worker.Decode, "10.0.0.1:30000"), life)
		for len(held) <= int(life) {
			select {
			case lease := <-seen:
				held[lease] = true
			case <-time.After(patience):
				require.FailNow(t, "no lease is granted")
			}
		}
	}
	refuse.Store(false)
	r.sync()
	require.Len(t, ops, most+1)
	for _, op := range ops[:most] {
		require.True(t, op.IsDelete())
	}
	require.Equal(t, r.ID(), only(t, c).ID)
}

func TestAWithdrawnWorkerIsGoneAtOnceAndMayComeBack(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	c := s.dial()
	r := register(t, c, func(c *etcd.RegistrarConfig) { c.TTL = time.Hour })
	rec := workerAt(t, worker.Decode, "10.0.0.2:30000")
	old := r.announce(rec, 1)
	r.Withdraw()
	r.sync()
	require.Empty(t, keys(t, c, ""))
	require.Zero(t, r.ID())
	ls, err := c.Leases(t.Context())
	require.NoError(t, err)
	require.Empty(t, ls.Leases)
	require.NotEqual(t, old, r.announce(rec, 1))
	_, losses, _ := r.heard()
	require.Empty(t, losses, "what was asked for is no loss")
}

// TestWhoLeavesSaysSoBeforeItsKeyGoes: nothing else tells a withdrawal from a lease that
// has run out. A version from before reads the key as that of a worker that drains.
func TestWhoLeavesSaysSoBeforeItsKeyGoes(t *testing.T) {
	t.Parallel()
	leave := map[string]func(r *registration){
		"withdrawn": func(r *registration) { r.Withdraw(); r.sync() },
		"stopped":   func(r *registration) { require.NoError(r.t, r.end()) },
	}
	for name, leave := range leave {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			c := s.dial()
			r := register(t, c, func(c *etcd.RegistrarConfig) { c.TTL = time.Hour })
			id := r.announce(workerAt(t, worker.Decode, "10.0.0.2:30000"), 1)
			first, err := c.Get(t.Context(), workerKey(clientv3.LeaseID(id)))
			require.NoError(t, err)
			src, err := etcd.New(c, quick())
			require.NoError(t, err)
			heard, end := runs(t, src)
			list, ok := heard().(discovery.List)
			require.True(t, ok)
			require.Equal(t, time.Hour, list.Entries[0].Lease, "the record says how long its lease is")
			require.NoError(t, end())
			leave(r)
			require.Empty(t, keys(t, c, ""))
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			var said []string
			events := c.Watch(ctx, workerKey(clientv3.LeaseID(id)), clientv3.WithRev(first.Header.Revision+1))
			for len(said) == 0 || said[len(said)-1] != "gone" {
				for _, ev := range (<-events).Events {
					if ev.Type == clientv3.EventTypeDelete {
						said = append(said, "gone")
						continue
					}
					w, err := record.ParseKnown("value", ev.Kv.Value)
					require.NoError(t, err)
					require.True(t, w.Draining)
					said = append(said, "draining")
				}
			}
			require.Equal(t, []string{"draining", "gone"}, said)
		})
	}
}

func TestTheEndOfTheContextRevokesTheLease(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	c := s.dial()
	r := register(t, c, func(c *etcd.RegistrarConfig) { c.TTL = time.Hour })
	r.announce(workerAt(t, worker.Decode, "10.0.0.2:30000"), 1)
	require.NoError(t, r.end())
	require.Empty(t, keys(t, c, ""))
	ls, err := c.Leases(t.Context())
	require.NoError(t, err)
	require.Empty(t, ls.Leases)
	r.Announce(workerAt(t, worker.Decode, "10.0.0.3:30000"), 1)
	require.ErrorIs(t, r.Sync(t.Context()), etcd.ErrStopped)
	require.ErrorContains(t, r.Run(t.Context()), "twice")
}

func TestWithEtcdAwayTheEndIsBounded(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	r := register(t, s.dial())
	r.announce(workerAt(t, worker.Decode, "10.0.0.2:30000"), 1)
	s.stop()
	require.ErrorContains(t, r.end(), "could not be revoked within 2s")
}

func TestALostRegistrationIsMadeAnewAtOnce(t *testing.T) {
	t.Parallel()
	lose := map[string]func(t *testing.T, c *clientv3.Client, id worker.ID){
		"the lease is revoked by hand": func(t *testing.T, c *clientv3.Client, id worker.ID) {
			_, err := c.Revoke(t.Context(), clientv3.LeaseID(id))
			require.NoError(t, err)
		},
		"the key is deleted by hand": func(t *testing.T, c *clientv3.Client, id worker.ID) {
			_, err := c.Delete(t.Context(), workerKey(clientv3.LeaseID(id)))
			require.NoError(t, err)
		},
		"the key is written without the lease": func(t *testing.T, c *clientv3.Client, id worker.ID) {
			_, err := c.Put(t.Context(), workerKey(clientv3.LeaseID(id)), "mine")
			require.NoError(t, err)
		},
	}
	for name, by := range lose {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			c := s.dial()
			// With a TTL of an hour no keep-alive can find the loss.
			r := register(t, c, func(c *etcd.RegistrarConfig) { c.TTL = time.Hour })
			old := r.announce(workerAt(t, worker.Prefill, "10.0.0.1:30000"), 1)
			by(t, c, old)
			eventually(t, func() bool { ids, _, _ := r.heard(); return len(ids) == 2 }, "registered again")
			r.sync()
			w := only(t, c)
			require.NotEqual(t, old, w.ID)
			require.Equal(t, r.ID(), w.ID)
			_, losses, _ := r.heard()
			require.Len(t, losses, 1)
			eventually(t, func() bool { return !slices.Contains(leases(t, c), old) }, "no lease is left behind")
		})
	}
}

func TestAKeepAliveFindsALossThatNobodyTold(t *testing.T) {
	t.Parallel()
	s := newServer(t, func(c *embed.Config) {
		c.GRPCAdditionalServerOptions = []grpc.ServerOption{grpc.ChainStreamInterceptor(
			func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, serve grpc.StreamHandler) error {
				if info.FullMethod == pb.Watch_Watch_FullMethodName { // none is ever made
					<-ss.Context().Done()
					return ss.Context().Err()
				}
				return serve(srv, ss)
			})}
	})
	c := s.dial()
	r := register(t, c)
	id := r.announce(workerAt(t, worker.Prefill, "10.0.0.1:30000"), 1)
	_, err := c.Delete(t.Context(), workerKey(clientv3.LeaseID(id)))
	require.NoError(t, err)
	eventually(t, func() bool { ids, _, _ := r.heard(); return len(ids) == 2 }, "registered again")
}

func TestOutagesOfEtcd(t *testing.T) {
	t.Parallel()
	t.Run("shorter than the lease: nothing changes", func(t *testing.T) {
		t.Parallel()
		s := newServer(t)
		c := s.dial()
		r := register(t, c, func(c *etcd.RegistrarConfig) { c.TTL = 30 * time.Second })
		id := r.announce(workerAt(t, worker.Decode, "10.0.0.1:30000"), 1)
		s.stop()
		// With the next renewal, after a third of the lease.
		eventually(t, func() bool { _, _, faults := r.heard(); return len(faults) > 0 }, "the outage is seen")
		s.start()
		eventually(t, func() bool { err, _ := r.LastError(); return err == nil }, "it goes on")
		ids, losses, _ := r.heard()
		require.Empty(t, losses)
		require.Len(t, ids, 1)
		require.Equal(t, id, only(t, c).ID)
	})
	t.Run("restarted with its data, a new leader gives the lease its time again", func(t *testing.T) {
		t.Parallel()
		s := newServer(t)
		c := s.dial()
		r := register(t, c)
		id := r.announce(workerAt(t, worker.Decode, "10.0.0.1:30000"), 1)
		s.stop()
		eventually(t, func() bool { _, _, faults := r.heard(); return len(faults) > 0 }, "the outage is seen")
		rested(t, 3500*time.Millisecond) // longer than the TTL
		s.start()
		eventually(t, func() bool { err, _ := r.LastError(); return err == nil }, "it goes on")
		require.Equal(t, id, only(t, c).ID, "the same id")
	})
	t.Run("unreachable for longer than the lease, which ends meanwhile: a new id", func(t *testing.T) {
		t.Parallel()
		s := newServer(t)
		c := s.dial()
		direct, err := etcd.Dial(etcd.ClientConfig{Endpoints: []string{s.etcd.Clients[0].Addr().String()}})
		require.NoError(t, err)
		t.Cleanup(func() { _ = direct.Close() })
		r := register(t, c)
		id := r.announce(workerAt(t, worker.Decode, "10.0.0.1:30000"), 1)
		to := s.etcd.Clients[0].Addr().String()
		s.gate.shut()
		eventually(t, func() bool { return len(keys(t, direct, folder)) == 0 }, "the lease ends")
		s.gate.open(to)
		eventually(t, func() bool { ids, _, _ := r.heard(); return len(ids) == 2 }, "registered again")
		require.NotEqual(t, id, only(t, direct).ID)
	})
	t.Run("wiped: registered anew", func(t *testing.T) {
		t.Parallel()
		s := newServer(t)
		c := s.dial()
		r := register(t, c, func(c *etcd.RegistrarConfig) { c.TTL = time.Hour })
		r.announce(workerAt(t, worker.Decode, "10.0.0.1:30000"), 1)
		s.wipe()
		s.start()
		eventually(t, func() bool { ids, _, _ := r.heard(); return len(ids) == 2 }, "registered again")
		r.sync()
		require.Equal(t, r.ID(), only(t, c).ID)
	})
	t.Run("deaf: what hangs is given up and tried again", func(t *testing.T) {
		t.Parallel()
		s := newServer(t)
		c := s.dial()
		r := register(t, c)
		r.announce(workerAt(t, worker.Decode, "10.0.0.1:30000"), 1)
		s.gate.deafen()
		eventually(t, func() bool { _, _, faults := r.heard(); return len(faults) > 0 }, "the silence is seen")
		s.gate.hear()
		eventually(t, func() bool { err, _ := r.LastError(); return err == nil }, "it goes on")
		r.sync()
		require.Equal(t, r.ID(), only(t, c).ID)
	})
}

func TestALeaseWithdrawnInALongOutageIsRevokedAfterIt(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	c := s.dial()
	r := register(t, c)
	id := r.announce(workerAt(t, worker.Decode, "10.0.0.1:30000"), 1)
	s.stop()
	r.Withdraw()
	rested(t, 6500*time.Millisecond) // more than twice the TTL
	short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	require.ErrorIs(t, r.Sync(short), context.DeadlineExceeded, "it has not ended")
	s.start()
	r.sync()
	require.NotContains(t, leases(t, c), id, "although it had its whole time again")
}

// rested lets real time pass, in tests of what happens when time passes.
func rested(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}

func TestAnnouncedBeforeEtcdIsThereItIsRegisteredOnceItIs(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.stop()
	begun := time.Now()
	c := s.dial()
	r := register(t, c)
	r.Announce(workerAt(t, worker.Decode, "10.0.0.1:30000"), 1)
	eventually(t, func() bool { _, _, faults := r.heard(); return len(faults) > 0 }, "it is tried")
	short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	require.ErrorIs(t, r.Sync(short), context.DeadlineExceeded)
	err, since := r.LastError()
	require.ErrorContains(t, err, "etcd: grant: ")
	require.WithinRange(t, since, begun, time.Now())
	s.start()
	r.sync()
	err, _ = r.LastError()
	require.NoError(t, err)
	require.Equal(t, r.ID(), only(t, c).ID)
}

func TestARecordThatIsNoWorkerChangesNothingAndSyncSaysSo(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	c := s.dial()
	r := register(t, c)
	id := r.announce(workerAt(t, worker.Decode, "10.0.0.1:30000"), 1)
	bad := workerAt(t, worker.Decode, "10.0.0.1:30000")
	bad.Models = nil
	r.Announce(bad, 2)
	require.ErrorContains(t, r.Sync(t.Context()), "models: expected at least one name")
	require.Equal(t, id, only(t, c).ID)
	require.Equal(t, id, r.announce(workerAt(t, worker.Decode, "10.0.0.1:30000"), 1))
}

func TestAnotherLeasesKeyIsNotOverwritten(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	c, other := s.dial(), s.dial()
	var taken, left string
	c.KV = &intercepted{KV: c.KV, commit: func(x *txn) (*clientv3.TxnResponse, error) {
		if taken != "" {
			return x.Txn.Commit()
		}
		taken = workerKey(x.lease(t))
		_, err := other.Put(t.Context(), taken, "another's")
		if err != nil {
			return nil, err
		}
		res, err := x.Txn.Commit()
		now, told := other.Get(t.Context(), taken)
		if told == nil && len(now.Kvs) == 1 { // the next transaction deletes it: the id was the worker's
			left = string(now.Kvs[0].Value)
		}
		return res, err
	}}
	r := register(t, c, func(c *etcd.RegistrarConfig) { c.TTL = time.Hour })
	id := r.announce(workerAt(t, worker.Decode, "10.0.0.1:30000"), 1)
	require.NotEqual(t, taken, workerKey(clientv3.LeaseID(id)), "its lease is not held any more")
	ids, losses, faults := r.heard()
	require.Equal(t, []worker.ID{id}, ids)
	require.Empty(t, losses, "it had not been registered")
	require.Empty(t, faults)
	require.Equal(t, "another's", left)
}

func TestAWriteWhoseAnswerWasLostIsRepeated(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	c := s.dial()
	var written []clientv3.LeaseID
	c.KV = &intercepted{KV: c.KV, commit: func(x *txn) (*clientv3.TxnResponse, error) {
		written = append(written, x.lease(t))
		res, err := x.Txn.Commit()
		if len(written) == 1 && err == nil {
			return nil, errors.New("the answer was lost")
		}
		return res, err
	}}
	r := register(t, c, func(c *etcd.RegistrarConfig) { c.TTL = time.Hour })
	id := r.announce(workerAt(t, worker.Decode, "10.0.0.1:30000"), 1)
	require.Equal(t, []clientv3.LeaseID{clientv3.LeaseID(id), clientv3.LeaseID(id)}, written)
	require.Equal(t, id, only(t, c).ID)
	ids, losses, _ := r.heard()
	require.Equal(t, []worker.ID{id}, ids)
	require.Empty(t, losses)
}
