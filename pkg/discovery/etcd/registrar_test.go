package etcd

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

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
	*Registrar
	t   *testing.T
	end func() error // ends Run and returns its error

	mu     sync.Mutex
	ids    []worker.ID
	losses []string
	faults []error
}

func register(t *testing.T, client *clientv3.Client, adjust ...func(*RegistrarConfig)) *registration {
	t.Helper()
	r := &registration{t: t}
	// A request gets a third of the TTL: a second is enough on a busy machine.
	cfg := RegistrarConfig{TTL: 3 * time.Second, RetryMax: 200 * time.Millisecond, Hooks: RegistrarHooks{
		Registered: func(id worker.ID) { r.mu.Lock(); defer r.mu.Unlock(); r.ids = append(r.ids, id) },
		Lost:       func(cause string) { r.mu.Lock(); defer r.mu.Unlock(); r.losses = append(r.losses, cause) },
		Failed:     func(err error) { r.mu.Lock(); defer r.mu.Unlock(); r.faults = append(r.faults, err) },
	}}
	for _, f := range adjust {
		f(&cfg)
	}
	var err error
	r.Registrar, err = NewRegistrar(client, cfg)
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
	all := keys(t, c, folder(DefaultPrefix))
	require.Len(t, all, 1)
	for k, v := range all {
		w, err := record.ParseKnown(k, []byte(v))
		require.NoError(t, err)
		require.Equal(t, folder(DefaultPrefix)+w.ID.String(), k)
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
	res := <-c.Watch(ctx, folder(DefaultPrefix), clientv3.WithPrefix(), clientv3.WithRev(head.Header.Revision+1))
	require.Len(t, res.Events, 2, "both at once")
	require.Equal(t, res.Events[0].Kv.ModRevision, res.Events[1].Kv.ModRevision, "in one transaction")
	eventually(t, func() bool { return !slices.Contains(leases(t, c), old) }, "the old lease is revoked")
}

func TestAnEngineThatRestartsAgainAndAgainLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	c := s.dial()
	r := register(t, c, func(c *RegistrarConfig) { c.TTL = time.Hour })
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
	s := newServer(t)
	c := s.dial()
	r, err := NewRegistrar(c, RegistrarConfig{})
	require.NoError(t, err)
	r.Announce(workerAt(t, worker.Decode, "10.0.0.1:30000"), 1)
	for range 2 * maxDrop {
		require.NoError(t, r.grant(t.Context()))
	}
	a := r.keeper.next(time.Now())
	require.Len(t, a.drop, maxDrop)
	require.NoError(t, r.write(t.Context(), a))
	r.sentry.stop()
	require.Equal(t, worker.ID(a.lease), only(t, c).ID)
}

func TestAWithdrawnWorkerIsGoneAtOnceAndMayComeBack(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	c := s.dial()
	r := register(t, c, func(c *RegistrarConfig) { c.TTL = time.Hour })
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
			r := register(t, c, func(c *RegistrarConfig) { c.TTL = time.Hour })
			id := r.announce(workerAt(t, worker.Decode, "10.0.0.2:30000"), 1)
			first, err := c.Get(t.Context(), workerKey(DefaultPrefix, clientv3.LeaseID(id)))
			require.NoError(t, err)
			require.Equal(t, time.Hour, leaseOf(first.Kvs[0]), "the record says how long its lease is")
			leave(r)
			require.Empty(t, keys(t, c, ""))
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			var said []string
			events := c.Watch(ctx, workerKey(DefaultPrefix, clientv3.LeaseID(id)), clientv3.WithRev(first.Header.Revision+1))
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
	r := register(t, c, func(c *RegistrarConfig) { c.TTL = time.Hour })
	r.announce(workerAt(t, worker.Decode, "10.0.0.2:30000"), 1)
	require.NoError(t, r.end())
	require.Empty(t, keys(t, c, ""))
	ls, err := c.Leases(t.Context())
	require.NoError(t, err)
	require.Empty(t, ls.Leases)
	r.Announce(workerAt(t, worker.Decode, "10.0.0.3:30000"), 1)
	require.ErrorIs(t, r.Sync(t.Context()), ErrStopped)
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
			_, err := c.Delete(t.Context(), workerKey(DefaultPrefix, clientv3.LeaseID(id)))
			require.NoError(t, err)
		},
		"the key is written without the lease": func(t *testing.T, c *clientv3.Client, id worker.ID) {
			_, err := c.Put(t.Context(), workerKey(DefaultPrefix, clientv3.LeaseID(id)), "mine")
			require.NoError(t, err)
		},
	}
	for name, by := range lose {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			c := s.dial()
			// With a TTL of an hour no keep-alive can find the loss.
			r := register(t, c, func(c *RegistrarConfig) { c.TTL = time.Hour })
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
	s := newServer(t)
	c := s.dial()
	r := register(t, c)
	id := r.announce(workerAt(t, worker.Prefill, "10.0.0.1:30000"), 1)
	r.sentry.stop()
	_, err := c.Delete(t.Context(), workerKey(DefaultPrefix, clientv3.LeaseID(id)))
	require.NoError(t, err)
	eventually(t, func() bool { ids, _, _ := r.heard(); return len(ids) == 2 }, "registered again")
}

func TestOutagesOfEtcd(t *testing.T) {
	t.Parallel()
	t.Run("shorter than the lease: nothing changes", func(t *testing.T) {
		t.Parallel()
		s := newServer(t)
		c := s.dial()
		r := register(t, c, func(c *RegistrarConfig) { c.TTL = 30 * time.Second })
		id := r.announce(workerAt(t, worker.Decode, "10.0.0.1:30000"), 1)
		s.stop()
		eventually(t, func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.keeper.hasten(time.Now())
			r.wake()
			return len(r.faults) > 0
		}, "the outage is seen")
		s.start()
		eventually(t, func() bool { r.Registrar.mu.Lock(); defer r.Registrar.mu.Unlock(); return r.keeper.fails == 0 }, "it goes on")
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
		eventually(t, func() bool { r.Registrar.mu.Lock(); defer r.Registrar.mu.Unlock(); return r.keeper.fails == 0 }, "it goes on")
		require.Equal(t, id, only(t, c).ID, "the same id")
	})
	t.Run("unreachable for longer than the lease, which ends meanwhile: a new id", func(t *testing.T) {
		t.Parallel()
		s := newServer(t)
		c := s.dial()
		direct, err := Dial(ClientConfig{Endpoints: []string{s.etcd.Clients[0].Addr().String()}})
		require.NoError(t, err)
		t.Cleanup(func() { _ = direct.Close() })
		r := register(t, c)
		id := r.announce(workerAt(t, worker.Decode, "10.0.0.1:30000"), 1)
		to := s.etcd.Clients[0].Addr().String()
		s.gate.shut()
		eventually(t, func() bool { return len(keys(t, direct, folder(DefaultPrefix))) == 0 }, "the lease ends")
		s.gate.open(to)
		eventually(t, func() bool { ids, _, _ := r.heard(); return len(ids) == 2 }, "registered again")
		require.NotEqual(t, id, only(t, direct).ID)
	})
	t.Run("wiped: registered anew", func(t *testing.T) {
		t.Parallel()
		s := newServer(t)
		c := s.dial()
		r := register(t, c, func(c *RegistrarConfig) { c.TTL = time.Hour })
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
		eventually(t, func() bool { r.Registrar.mu.Lock(); defer r.Registrar.mu.Unlock(); return r.keeper.fails == 0 }, "it goes on")
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
	c := s.dial()
	r, err := NewRegistrar(c, RegistrarConfig{})
	require.NoError(t, err)
	var lost []string
	r.cfg.Hooks.Lost = func(cause string) { lost = append(lost, cause) }
	r.Announce(workerAt(t, worker.Decode, "10.0.0.1:30000"), 1)
	require.NoError(t, r.grant(t.Context()))
	a := r.keeper.next(time.Now())
	key := workerKey(DefaultPrefix, a.lease)
	_, err = c.Put(t.Context(), key, "another's")
	require.NoError(t, err)
	require.NoError(t, r.write(t.Context(), a))
	require.Equal(t, "another's", keys(t, c, key)[key])
	require.Zero(t, r.keeper.held.lease)
	require.Empty(t, lost, "it had not been registered")
}

func TestAWriteWhoseAnswerWasLostIsRepeated(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	c := s.dial()
	r, err := NewRegistrar(c, RegistrarConfig{})
	require.NoError(t, err)
	r.Announce(workerAt(t, worker.Decode, "10.0.0.1:30000"), 1)
	require.NoError(t, r.grant(t.Context()))
	a := r.keeper.next(time.Now())
	require.NoError(t, r.write(t.Context(), a))
	r.sentry.stop()
	r.keeper.held.written = 0 // as if the answer had been lost
	require.Equal(t, a, r.keeper.next(time.Now()))
	require.NoError(t, r.write(t.Context(), a))
	r.sentry.stop()
	require.Equal(t, worker.ID(a.lease), only(t, c).ID)
}

func TestRegistrarConfigsAreRefusedWithEveryFaultNamed(t *testing.T) {
	_, err := NewRegistrar(&clientv3.Client{}, RegistrarConfig{Prefix: "/a/", TTL: 1500 * time.Millisecond, RetryMin: -1})
	for _, text := range []string{`prefix "/a/"`, "ttl 1.5s", "retry: -1ns"} {
		require.ErrorContains(t, err, text)
	}
	require.Len(t, strings.Split(errors.Unwrap(err).Error(), "\n"), 3, strconv.Quote(err.Error()))
	require.ErrorContains(t, RegistrarConfig{TTL: time.Hour + time.Second}.Validate(), "ttl 1h0m1s: expected whole seconds, from 1 s to 1h0m0s")
	require.NoError(t, RegistrarConfig{TTL: time.Hour}.Validate())
	_, err = NewRegistrar(nil, RegistrarConfig{})
	require.ErrorContains(t, err, "expected a client")
}
