package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/connectivity"

	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
	"github.com/seed-60ae5743/baton/pkg/discovery/record"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// do makes the request for one action, and tells the keeper the result.
func (r *Registrar) do(whole context.Context, a action) {
	ctx, cancel := context.WithTimeout(whole, min(2*time.Second, max(r.cfg.TTL/3, 500*time.Millisecond)))
	defer cancel()
	var err error
	switch a.deed {
	case grant:
		err = r.grant(ctx)
	case write:
		err = r.write(ctx, a)
	case renew:
		err = r.renew(ctx, a.lease)
	case resign:
		err = r.resign(ctx, a.lease)
	case revoke:
		err = r.revoke(ctx, a.lease)
	default:
	}
	r.mu.Lock()
	if err == nil || errors.Is(err, rpctypes.ErrLeaseNotFound) {
		r.trouble = trouble{}
	}
	r.mu.Unlock()
	switch {
	case err == nil, whole.Err() != nil:
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		r.lose(a.lease, "its lease has ended")
	default:
		r.fail(fmt.Errorf("etcd: %s: %w", a.deed, explained(whole, r.client, err)))
	}
}

func (r *Registrar) grant(ctx context.Context) error {
	res, err := r.client.Grant(ctx, int64(r.cfg.TTL/time.Second))
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keeper.granted(res.ID)
	return nil
}

// write writes the record to the key of the lease, unless another lease holds the key.
func (r *Registrar) write(ctx context.Context, a action) error {
	r.mu.Lock()
	rec := r.record
	r.mu.Unlock()
	rec.ID = worker.ID(a.lease)
	line, err := r.value(&rec)
	if err != nil {
		return err
	}
	key := workerKey(r.cfg.Prefix, a.lease)
	ops := make([]clientv3.Op, 0, 1+len(a.drop))
	for _, old := range a.drop {
		ops = append(ops, clientv3.OpDelete(workerKey(r.cfg.Prefix, old)))
	}
	ops = append(ops, clientv3.OpPut(key, line, clientv3.WithLease(a.lease)))
	res, err := r.client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).Then(ops...).
		Else(clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(clientv3.LeaseValue(key), "=", a.lease)}, ops, nil)).
		Commit()
	if err != nil {
		return err
	}
	if !res.Succeeded && !res.Responses[0].GetResponseTxn().Succeeded {
		r.lose(a.lease, "its key is held by another lease")
		return nil
	}
	r.mu.Lock()
	first := r.keeper.wrote(time.Now(), a)
	r.tellLocked()
	r.mu.Unlock()
	if first {
		r.sentry.start(r.client, key, a.lease, res.Header.Revision+1)
		r.cfg.Logger.LogAttrs(ctx, slog.LevelInfo, "worker registered", slog.String(logkey.WorkerID, rec.ID.String()), slog.String(logkey.Key, key))
		r.cfg.Hooks.Registered(rec.ID)
	}
	return nil
}

// value returns what a key holds.
func (r *Registrar) value(rec *worker.Worker) (string, error) {
	line, err := record.Marshal(rec)
	return withLease(line, r.cfg.TTL), err
}

// resign writes to the key of a lease that is to be revoked that the worker drains. Plugins
// then know that the key goes on purpose, and do not ask the engine.
func (r *Registrar) resign(ctx context.Context, lease clientv3.LeaseID) error {
	r.mu.Lock()
	rec := r.record
	r.mu.Unlock()
	rec.ID, rec.Draining = worker.ID(lease), true
	line, err := r.value(&rec)
	if err != nil {
		return err
	}
	key := workerKey(r.cfg.Prefix, lease)
	_, err = r.client.Txn(ctx).If(clientv3.Compare(clientv3.LeaseValue(key), "=", lease)).
		Then(clientv3.OpPut(key, line, clientv3.WithLease(lease))).Commit()
	if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) { // a lease that has ended has no key
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keeper.resigned(lease)
	return nil
}

// renew keeps the lease alive, and checks that the key is still there.
func (r *Registrar) renew(ctx context.Context, lease clientv3.LeaseID) error {
	if err := r.pulse.beat(ctx, r.client, lease); err != nil {
		return err
	}
	key := workerKey(r.cfg.Prefix, lease)
	// NB: since etcd 3.7 an answer WithKeysOnly does not have the lease.
	res, err := r.client.Get(ctx, key)
	if err != nil {
		return err
	}
	if len(res.Kvs) == 0 {
		r.lose(lease, "its key was deleted")
		return nil
	}
	if res.Kvs[0].Lease != int64(lease) {
		r.lose(lease, "its key was written by another without its lease")
		return nil
	}
	r.mu.Lock()
	r.keeper.renewed(time.Now())
	r.mu.Unlock()
	r.sentry.start(r.client, key, lease, res.Header.Revision+1)
	return nil
}

func (r *Registrar) revoke(ctx context.Context, lease clientv3.LeaseID) error {
	_, err := r.client.Revoke(ctx, lease)
	if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keeper.revoked(lease)
	r.tellLocked()
	return nil
}

// lose records that the registration under the lease is gone. It calls the hook if the
// worker was registered.
func (r *Registrar) lose(lease clientv3.LeaseID, cause string) {
	r.mu.Lock()
	known := r.keeper.held.written != 0
	held := r.keeper.lost(time.Now(), lease)
	r.tellLocked()
	r.mu.Unlock()
	if held && known {
		r.cfg.Logger.LogAttrs(context.Background(), slog.LevelWarn, "worker's registration lost; it is registered anew",
			slog.String(logkey.WorkerID, worker.ID(lease).String()), slog.String(logkey.Cause, cause))
		r.cfg.Hooks.Lost(cause)
	}
}

func (r *Registrar) fail(err error) {
	r.mu.Lock()
	now := time.Now()
	r.keeper.failed(now)
	news := r.trouble.failed(now, err)
	since := r.trouble.since
	r.mu.Unlock()
	if news {
		r.cfg.Logger.LogAttrs(context.Background(), slog.LevelWarn, "registration cannot be looked after for now",
			slog.Any(logkey.Err, err), slog.Time(logkey.Since, since))
		r.cfg.Hooks.Failed(err)
	}
}

// hear handles what the sentry has seen.
func (r *Registrar) hear(s sighting) {
	if s.gone != "" {
		r.lose(s.lease, s.gone)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keeper.doubt(time.Now())
}

// follow wakes Run when the connection is back, so that nothing waits for the end of a
// pause or for a keep-alive that is due later.
func (r *Registrar) follow(ctx context.Context) {
	conn := r.client.ActiveConnection()
	for s := conn.GetState(); conn.WaitForStateChange(ctx, s); {
		s = conn.GetState()
		switch s {
		case connectivity.Ready:
			r.mu.Lock()
			r.keeper.reconnected(time.Now())
			r.mu.Unlock()
			r.wake()
		case connectivity.Idle:
			conn.Connect()
		case connectivity.Shutdown:
			return
		default:
		}
	}
}

// followTokens wakes Run when a token has come, which may be long after the request that
// wanted it was given up.
func (r *Registrar) followTokens(ctx context.Context) {
	t := tokensOf(r.client)
	if t == nil {
		return
	}
	for {
		select {
		case <-t.news():
			r.mu.Lock()
			r.keeper.reconnected(time.Now())
			r.keeper.worked() // what has failed has failed for want of it
			r.mu.Unlock()
			r.wake()
		case <-ctx.Done():
			return
		}
	}
}
