package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
	"github.com/seed-60ae5743/baton/pkg/discovery"
)

// store is the part of an etcd client that a follower uses.
type store interface {
	Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error)
	// NewWatcher returns a watcher with a stream of its own. Progress is requested for
	// a whole stream, and etcd sends it only when all watches of the stream are up to
	// date.
	NewWatcher() watcher
	// Explain adds to err why there is no connection, if err does not say so.
	Explain(ctx context.Context, err error) error
}

type watcher interface {
	Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan
	RequestProgress(ctx context.Context) error
	Close() error
}

// clientStore makes a client a store.
type clientStore struct {
	*clientv3.Client
	try time.Duration // the time for one read before another member is asked; 0: there is no other
}

// Get repeats a read that is not answered in time; the client then asks another member.
// A connection to a machine that hangs seems to be good for 13 s.
func (c clientStore) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	for c.try > 0 {
		short, cancel := context.WithTimeout(ctx, c.try)
		res, err := c.Client.Get(short, key, opts...)
		late := short.Err() != nil
		cancel()
		if err == nil || !late || ctx.Err() != nil {
			return res, err
		}
	}
	return c.Client.Get(ctx, key, opts...)
}

func (c clientStore) NewWatcher() watcher { return clientv3.NewWatcher(c.Client) }

func (c clientStore) Explain(ctx context.Context, err error) error {
	return explained(ctx, c.Client, err)
}

// reader turns keys and values into entries. A reader that makes an entry from several
// keys keeps what it needs between calls.
type reader interface {
	// list reads a full listing, which replaces everything from before.
	list(kvs []*mvccpb.KeyValue) []discovery.Entry
	// change reads what happened at one revision.
	change(events []*clientv3.Event) []discovery.Op
}

// pace has the times and sizes by which a follower works.
type pace struct {
	progress, silence, listTimeout, grace, comeback time.Duration
	pageSize                                        int64
	tries                                           int // how many members are asked in turn within silence
}

// follower lists a range of keys and follows its changes. All sources of this package
// use it. Its fields are kept between Runs. Run must not be called again before it has
// returned.
type follower struct {
	// Set at construction, read-only.
	store     store
	from, end string // the range: from <= key < end
	pace      pace
	logger    *slog.Logger

	// Owned by the goroutine of Run.
	reader    reader
	past      history
	endpoints map[string]string // of the workers in the set, by the key of the entry
	awaiting  wait
	owed      int64     // the first revision at which etcd was seen and which the set has not reached; 0: none
	back      time.Time // when etcd was first listed again after an outage; zero: there was none, or it lasts
}

// Run sends a listing and then what happens, until ctx ends or the set may be wrong. If
// ctx has ended it returns nil.
func (f *follower) Run(ctx context.Context, sink discovery.Sink) error {
	err := f.follow(ctx, sink)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (f *follower) follow(ctx context.Context, sink discovery.Sink) error {
	f.awaiting.told = "" // nothing was sent to this sink yet
	f.back = time.Time{}
	for {
		l, entries, err := f.settle(ctx, sink)
		if err != nil {
			return err
		}
		err = sink.Send(discovery.List{Epoch: f.past.epoch(), Revision: uint64(l.revision), Entries: entries})
		if err != nil {
			return err
		}
		f.logger.LogAttrs(ctx, slog.LevelDebug, "etcd listed", slog.Int64(logkey.Revision, l.revision), slog.Int(logkey.Entries, len(entries)))
		err = f.watch(ctx, sink)
		if !errors.Is(err, errMissing) {
			return err
		}
	}
}

// list reads the whole range at one revision, page by page.
func (f *follower) list(whole context.Context) (listing, error) {
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(whole), f.pace.listTimeout)
	defer cancel()
	var l listing
	from := f.from
	for {
		opts := []clientv3.OpOption{clientv3.WithRange(f.end), clientv3.WithLimit(f.pace.pageSize)}
		if l.revision != 0 {
			opts = append(opts, clientv3.WithRev(l.revision))
		}
		res, err := f.store.Get(ctx, from, opts...)
		if err != nil {
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return l, fmt.Errorf("etcd: no listing of %s within %s: %w", f.from, f.pace.listTimeout, f.store.Explain(whole, err))
			}
			return l, fmt.Errorf("etcd: list %s: %w", f.from, err)
		}
		if l.revision == 0 {
			l.revision, l.cluster = res.Header.GetRevision(), res.Header.GetClusterId()
		}
		l.kvs = append(l.kvs, res.Kvs...)
		if !res.More || len(res.Kvs) == 0 {
			return l, nil
		}
		from = string(res.Kvs[len(res.Kvs)-1].Key) + "\x00"
	}
}
