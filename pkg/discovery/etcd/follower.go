package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/seed-60ae5743/baton/pkg/discovery"
)

// relist is the pause between listings while workers are awaited.
const relist = 250 * time.Millisecond

// store is what a follower asks of etcd.
type store interface {
	Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error)
	// NewWatcher returns a watcher with a stream of its own: progress is asked
	// for by stream, and is told only when all its watches are up to date.
	NewWatcher() watcher
}

type watcher interface {
	Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan
	RequestProgress(ctx context.Context) error
	Close() error
}

// clientStore is a client as a store.
type clientStore struct{ *clientv3.Client }

func (c clientStore) NewWatcher() watcher { return clientv3.NewWatcher(c.Client) }

// reader turns keys and values into entries. One that makes an entry of several
// keys keeps what it needs from call to call.
type reader interface {
	// list takes a full listing, which replaces whatever was before.
	list(kvs []*mvccpb.KeyValue) []discovery.Entry
	// change takes what happened at one revision.
	change(events []*clientv3.Event) []discovery.Op
}

// pace is how a follower spends its time.
type pace struct {
	progress, silence, listTimeout, grace time.Duration
	pageSize                              int64
}

// follower lists a range of keys and follows it. It is what the sources of this
// package share. Its fields outlive Run, which must not be called again before
// it has returned.
type follower struct {
	// Set at construction, read-only.
	store     store
	from, end string // the keys from <= key < end
	pace      pace
	logger    *slog.Logger

	// Owned by the goroutine of Run.
	reader    reader
	past      history
	endpoints map[string]string // of the workers in the set, by entry
	awaiting  wait
}

// wait is the time after data was lost, in which workers register again.
type wait struct {
	reason string // why the history is another; "": nothing is awaited
	since  time.Time
	last   int64 // revision of the last listing
	told   string
}

// Run sends a listing and what happens after it, until ctx ends (it then returns
// nil) or until it cannot vouch for the set any more.
func (f *follower) Run(ctx context.Context, sink discovery.Sink) error {
	err := f.follow(ctx, sink)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (f *follower) follow(ctx context.Context, sink discovery.Sink) error {
	f.awaiting.told = "" // this sink has been told nothing
	l, entries, err := f.settle(ctx, sink)
	if err != nil {
		return err
	}
	err = sink.Send(discovery.List{Epoch: f.past.epoch(), Revision: uint64(l.revision), Entries: entries})
	if err != nil {
		return err
	}
	f.logger.LogAttrs(ctx, slog.LevelDebug, "etcd listed", slog.Int64("revision", l.revision), slog.Int("entries", len(entries)))
	return f.watch(ctx, sink)
}

// settle lists until there is a listing to be believed: one of the history that
// is known, or one of another in which the workers are back or have had their
// time.
func (f *follower) settle(ctx context.Context, sink discovery.Sink) (listing, []discovery.Entry, error) {
	for {
		l, err := f.list(ctx)
		if err != nil {
			f.awaiting.since = time.Time{} // nobody can register while etcd is away
			return l, nil, err
		}
		entries := f.reader.list(l.kvs)
		another := f.awaiting.reason // once it is another it stays so, even when it overtakes
		if another == "" {
			another = f.past.differs(l)
		}
		missing := 0
		if another != "" {
			if missing = f.await(another, l, entries); missing > 0 {
				if err := f.tell(sink, missing); err != nil {
					return l, nil, err
				}
				select {
				case <-ctx.Done():
					return l, nil, ctx.Err()
				case <-time.After(relist):
				}
				continue
			}
			f.logger.LogAttrs(ctx, slog.LevelWarn, "etcd's history begins anew", slog.String("reason", f.awaiting.reason))
		}
		f.awaiting = wait{}
		f.past.adopt(l, another != "")
		f.endpoints = make(map[string]string, len(entries))
		for _, e := range entries {
			f.noteEndpoint(e)
		}
		return l, entries, nil
	}
}

// await returns how many endpoints of the last good set are missing from a
// listing of another history; zero when nobody is awaited any longer.
func (f *follower) await(reason string, l listing, entries []discovery.Entry) int {
	w := &f.awaiting
	if w.reason == "" || w.since.IsZero() || l.revision < w.last {
		w.reason, w.since = reason, time.Now()
	}
	w.last = l.revision
	if time.Since(w.since) >= f.pace.grace {
		return 0
	}
	back := make(map[string]bool, len(entries))
	for _, e := range entries {
		if e.Worker != nil {
			back[e.Worker.Endpoint.String()] = true
		}
	}
	missing := make(map[string]bool)
	for _, addr := range f.endpoints {
		if !back[addr] {
			missing[addr] = true
		}
	}
	return len(missing)
}

// tell says what is awaited, when that is news.
func (f *follower) tell(sink discovery.Sink, missing int) error {
	text := fmt.Sprintf("%s: waiting up to %s for %d of %d workers to register again", f.awaiting.reason, f.pace.grace, missing, f.distinct())
	if text == f.awaiting.told {
		return nil
	}
	f.awaiting.told = text
	return sink.Send(discovery.Broken{Reason: text})
}

func (f *follower) distinct() int {
	addrs := make(map[string]bool, len(f.endpoints))
	for _, addr := range f.endpoints {
		addrs[addr] = true
	}
	return len(addrs)
}

// noteEndpoint keeps where the entry's worker is. A fault changes nothing, as
// the reducer goes on with the worker from before.
func (f *follower) noteEndpoint(e discovery.Entry) {
	if e.Worker != nil {
		f.endpoints[e.Key] = e.Worker.Endpoint.String()
	}
}

// list reads the whole range at one revision, page by page.
func (f *follower) list(ctx context.Context) (listing, error) {
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), f.pace.listTimeout)
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
				return l, fmt.Errorf("etcd: no listing of %s within %s: %w", f.from, f.pace.listTimeout, err)
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
