package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/seed-60ae5743/baton/pkg/discovery"
)

// mark is what the store must hold at a revision if its history is the one that
// is known.
type mark struct {
	revision int64
	count    int64    // keys in the range
	written  int64    // revision of the last write to any of them
	newest   []string // those that it wrote
}

// sign is what a probe has found.
type sign struct {
	asked    mark
	cluster  uint64
	revision int64  // where the store was
	count    int64  // keys that it held at asked.revision
	newest   string // the one written last, or one of them
	written  int64
	err      error
}

// fits reports whether the store held what it must.
func (m mark) fits(s sign) bool {
	return s.count == m.count && s.written == m.written && (m.count == 0 || slices.Contains(m.newest, s.newest))
}

// watch sends what happens after the revision that is known. It returns when
// the watch has ended, or when nothing has vouched for the set for too long:
// clientv3 connects a lost watch again for ever and says nothing of it.
func (f *follower) watch(ctx context.Context, sink discovery.Sink) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	watcher, responses, err := f.open(ctx, f.past.revision+1)
	if err != nil {
		return err
	}
	marks, signs := make(chan mark), make(chan sign, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for m := range marks {
			signs <- f.probe(ctx, watcher, m)
		}
	}()
	defer func() {
		cancel()
		close(marks)
		_ = watcher.Close()
		<-done
	}()
	return f.heed(ctx, sink, responses, marks, signs)
}

// open makes the watch, of another member when one does not answer. It lasts as
// long as ctx.
func (f *follower) open(ctx context.Context, first int64) (watcher, clientv3.WatchChan, error) {
	for range f.pace.tries {
		w := f.store.NewWatcher()
		try, giveUp := context.WithCancel(ctx)
		// Watch returns only when the watch is made.
		late := time.AfterFunc(f.pace.silence/time.Duration(f.pace.tries), giveUp)
		responses := w.Watch(try, f.from, clientv3.WithRange(f.end), clientv3.WithRev(first),
			clientv3.WithPrevKV(), clientv3.WithProgressNotify(), clientv3.WithFragment())
		if late.Stop() {
			context.AfterFunc(ctx, giveUp)
			return w, responses, nil
		}
		_ = w.Close()
	}
	return nil, nil, fmt.Errorf("etcd: no watch from revision %d within %s", first, f.pace.silence)
}

// heed takes responses and signs as they come.
func (f *follower) heed(ctx context.Context, sink discovery.Sink, responses clientv3.WatchChan, marks chan<- mark, signs <-chan sign) error {
	heard, probed, probing := time.Now(), error(nil), false
	silence := time.NewTimer(f.pace.silence)
	defer silence.Stop()
	tick := time.NewTicker(f.pace.progress)
	defer tick.Stop()
	for {
		vouched := false
		var err error
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-silence.C:
			return errors.Join(fmt.Errorf("etcd: nothing heard for %s, since %s, at revision %d", time.Since(heard).Round(time.Millisecond),
				heard.UTC().Format(time.TimeOnly), f.past.revision), probed)
		case <-tick.C:
			if !probing {
				probing = true
				marks <- f.past.mark()
			}
			continue
		case res, ok := <-responses:
			if !ok {
				return fmt.Errorf("etcd: the watch was closed at revision %d", f.past.revision)
			}
			vouched, err = f.take(sink, res)
		case s := <-signs:
			probing, probed = false, s.err
			vouched, err = f.weigh(s)
		}
		if err != nil {
			return err
		}
		if vouched {
			heard = time.Now()
			silence.Reset(f.pace.silence)
		}
	}
}

// weigh judges a sign: whether it vouches for the set, or tells that the store
// has another history. That shows even where the revision does not: a store
// that lost its data and in which the same workers registered again may be at
// the very revision it was at before.
func (f *follower) weigh(s sign) (bool, error) {
	if s.err != nil {
		return false, nil
	}
	if reason := f.past.judge(s); reason != "" {
		f.awaiting.reason = reason
		return false, errors.New(reason)
	}
	// What had been written then has been taken: nothing was missed.
	return s.revision <= f.past.revision, nil
}

// broken says why a watch has ended, or nil.
func broken(res clientv3.WatchResponse, at int64) error {
	err := res.Err()
	switch {
	case err == nil:
		return nil
	case res.CompactRevision != 0:
		return fmt.Errorf("etcd: watch after revision %d: compacted up to revision %d: %w", at, res.CompactRevision, err)
	default:
		return fmt.Errorf("etcd: watch after revision %d was cancelled: %w", at, err)
	}
}

// take sends what a response holds, a batch for each revision. It reports
// whether the response vouches for the set: a note from a member that lags
// behind does not.
func (f *follower) take(sink discovery.Sink, res clientv3.WatchResponse) (bool, error) {
	if err := broken(res, f.past.revision); err != nil {
		return false, err
	}
	if res.IsProgressNotify() {
		if res.Header.Revision <= f.past.revision {
			return res.Header.Revision == f.past.revision, nil
		}
		err := sink.Send(discovery.Batch{Revision: uint64(res.Header.Revision)})
		if err == nil {
			f.past.advance(res.Header.Revision, nil)
		}
		return true, err
	}
	for events := res.Events; len(events) > 0; {
		revision, n := events[0].Kv.ModRevision, 1
		for n < len(events) && events[n].Kv.ModRevision == revision {
			n++
		}
		ops := f.reader.change(events[:n])
		// etcd ends leases that ran out while it stood still when it goes on,
		// before or after it lets itself be listed.
		if f.justBack() && f.missing(f.after(ops)) > 0 {
			return false, errMissing
		}
		if err := sink.Send(discovery.Batch{Revision: uint64(revision), Ops: ops}); err != nil {
			return false, err
		}
		f.past.advance(revision, events[:n])
		note(f.endpoints, ops)
		events = events[n:]
	}
	return len(res.Events) > 0, nil
}

// probe asks for progress, and looks at the store at the revision of the mark.
// The second is needed, as a watch whose first revision has not come yet
// (nothing was written since the listing) is told no progress; it also finds a
// store that lost its data, in which a watch would wait for ever.
func (f *follower) probe(ctx context.Context, w watcher, m mark) sign {
	short, cancel := context.WithTimeout(ctx, f.pace.progress)
	_ = w.RequestProgress(short) // what fails here is heard as silence
	cancel()
	short, cancel = context.WithTimeout(ctx, f.pace.silence)
	defer cancel()
	return f.look(short, m)
}

// look reads what the store held at the revision of the mark.
func (f *follower) look(ctx context.Context, m mark) sign {
	res, err := f.store.Get(ctx, f.from, clientv3.WithRange(f.end), clientv3.WithRev(m.revision), clientv3.WithLimit(1),
		clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortDescend), clientv3.WithKeysOnly())
	s := sign{asked: m, err: err}
	switch {
	case errors.Is(err, rpctypes.ErrFutureRev):
		// It is not there yet, or any more. The header says where it is, and an
		// error has none.
		if res, err = f.store.Get(ctx, f.from, clientv3.WithLimit(1), clientv3.WithKeysOnly()); err != nil {
			return s
		}
		s.err = nil
		s.cluster, s.revision = res.Header.GetClusterId(), res.Header.GetRevision()
	case err == nil:
		s.cluster, s.revision = res.Header.GetClusterId(), res.Header.GetRevision()
		s.count = res.Count
		if len(res.Kvs) > 0 {
			s.newest, s.written = string(res.Kvs[0].Key), res.Kvs[0].ModRevision
		}
	}
	return s
}
