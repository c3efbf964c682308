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

// mark is what the store must have at a revision if its history is the known one.
type mark struct {
	revision int64
	count    int64    // number of keys in the range
	written  int64    // the highest revision at which any of them was written
	newest   []string // the keys that were written at that revision
}

// sign is what probe has found.
type sign struct {
	asked    mark
	cluster  uint64
	revision int64  // the present revision of the store
	count    int64  // number of keys that it had at asked.revision
	newest   string // a key that was written last
	written  int64
	err      error
}

// fits reports whether the store had what the mark says.
func (m mark) fits(s sign) bool {
	return s.count == m.count && s.written == m.written && (m.count == 0 || slices.Contains(m.newest, s.newest))
}

// watch sends what happens after the known revision. It returns when the watch has
// ended, or when nothing has confirmed the set for too long: clientv3 reconnects a lost
// watch for ever without reporting it.
func (f *follower) watch(ctx context.Context, sink discovery.Sink) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	watcher, responses, err := f.open(ctx, f.past.revision+1)
	if err != nil {
		return err
	}
	f.owed = 0
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

// open makes the watch, with another member if one does not answer. The watch lasts as
// long as ctx.
func (f *follower) open(ctx context.Context, first int64) (watcher, clientv3.WatchChan, error) {
	for range f.pace.tries {
		w := f.store.NewWatcher()
		try, giveUp := context.WithCancel(ctx)
		// Watch returns only when the watch exists.
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

// heed handles responses and signs as they come.
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
			return errors.Join(f.silent(heard), probed)
		case <-tick.C:
			if !probing {
				probing = true
				marks <- f.past.mark()
			}
			continue
		case res, ok := <-responses:
			if !ok {
				return f.closed()
			}
			vouched, err = f.take(sink, res, responses)
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

// weigh judges a sign. True means that it confirms the set. An error means that the
// store has another history. The sign shows that even if the revision does not: a store
// that lost its data, and in which the same workers registered again, may be at the
// same revision as before.
func (f *follower) weigh(s sign) (bool, error) {
	if s.err != nil {
		return false, nil
	}
	if reason := f.past.judge(s); reason != "" {
		f.awaiting.reason = reason
		return false, errors.New(reason)
	}
	// Everything that was written up to then is in the set: nothing was missed.
	if s.revision <= f.past.revision {
		return true, nil
	}
	if f.owed == 0 {
		f.owed = s.revision
	}
	return false, nil
}

// reached reports whether the set has reached the revision at which etcd was seen.
// Before that, events do not confirm the set, since they may be old.
func (f *follower) reached() bool {
	if f.past.revision >= f.owed {
		f.owed = 0
	}
	return f.owed == 0
}

// silent returns the error that nothing has confirmed the set since the given time.
func (f *follower) silent(since time.Time) error {
	what := "nothing heard"
	if f.owed > 0 {
		what = fmt.Sprintf("behind revision %d, which etcd is at or past,", f.owed)
	}
	return fmt.Errorf("etcd: %s for %s, since %s, at revision %d", what, time.Since(since).Round(time.Millisecond),
		since.UTC().Format(time.TimeOnly), f.past.revision)
}

func (f *follower) closed() error {
	return fmt.Errorf("etcd: the watch was closed at revision %d", f.past.revision)
}

// broken returns why a watch has ended, or nil if it has not.
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

// mostTaken is how many responses are sent as one event at most.
const mostTaken = 1000

// haul is what was read from responses and not sent to the sink yet: a batch for each
// revision, and etcd's events for each batch.
type haul struct {
	batches discovery.Batches
	events  [][]*clientv3.Event
}

func (h *haul) add(revision int64, ops []discovery.Op, events []*clientv3.Event) {
	h.batches = append(h.batches, discovery.Batch{Revision: uint64(revision), Ops: ops})
	h.events = append(h.events, events)
}

// take reads a response and those that wait behind it, and sends them as one event. It
// reports whether they confirm the set.
func (f *follower) take(sink discovery.Sink, res clientv3.WatchResponse, more clientv3.WatchChan) (vouched bool, err error) {
	var h haul
	for n, waits := 1, true; waits; n++ {
		var tells bool
		tells, err = f.read(sink, res, &h)
		vouched = vouched || tells
		if err != nil || n == mostTaken {
			break
		}
		select {
		case next, open := <-more:
			res = next
			if !open {
				waits, err = false, f.closed()
			}
		default:
			waits = false
		}
	}
	if sent := f.send(sink, &h); sent != nil {
		return false, sent
	}
	return vouched && f.reached(), err // with an error, what was read before it is still sent
}

// send sends the haul. When the sink has accepted it, it counts as known.
func (f *follower) send(sink discovery.Sink, h *haul) error {
	if len(h.batches) == 0 {
		return nil
	}
	if err := sink.Send(h.batches); err != nil {
		return err
	}
	for i, b := range h.batches {
		f.past.advance(int64(b.Revision), h.events[i])
		note(f.endpoints, b.Ops)
	}
	*h = haul{}
	return nil
}

// read adds a response to the haul. It reports whether the response is recent: a
// progress note from a member that lags behind is not.
func (f *follower) read(sink discovery.Sink, res clientv3.WatchResponse, h *haul) (bool, error) {
	at := f.past.revision
	if n := len(h.batches); n > 0 {
		at = int64(h.batches[n-1].Revision)
	}
	if err := broken(res, at); err != nil {
		return false, err
	}
	if res.IsProgressNotify() {
		if res.Header.Revision > at {
			h.add(res.Header.Revision, nil, nil)
		}
		return res.Header.Revision >= at, nil
	}
	for events := res.Events; len(events) > 0; {
		revision, n := events[0].Kv.ModRevision, 1
		for n < len(events) && events[n].Kv.ModRevision == revision {
			n++
		}
		ops := f.reader.change(events[:n])
		// An etcd that hung ends, when it continues, the leases that expired meanwhile:
		// before it answers a listing or after.
		if f.justBack() {
			if err := f.send(sink, h); err != nil {
				return false, err
			}
			if f.missing(f.after(ops)) > 0 {
				return false, errMissing
			}
		}
		h.add(revision, ops, events[:n])
		events = events[n:]
	}
	return len(res.Events) > 0, nil
}

// probe requests progress, and looks at the store at the mark's revision. The look is
// needed because etcd sends no progress to a watch whose first revision has not come
// yet (nothing was written since the listing). It also finds a store that lost its
// data, in which a watch would wait for ever.
func (f *follower) probe(ctx context.Context, w watcher, m mark) sign {
	short, cancel := context.WithTimeout(ctx, f.pace.progress)
	_ = w.RequestProgress(short) // a failure shows as silence
	cancel()
	short, cancel = context.WithTimeout(ctx, f.pace.silence)
	defer cancel()
	return f.look(short, m)
}

// look reads what the store had at the mark's revision.
func (f *follower) look(ctx context.Context, m mark) sign {
	res, err := f.store.Get(ctx, f.from, clientv3.WithRange(f.end), clientv3.WithRev(m.revision), clientv3.WithLimit(1),
		clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortDescend), clientv3.WithKeysOnly())
	s := sign{asked: m, err: err}
	switch {
	case errors.Is(err, rpctypes.ErrFutureRev):
		// The store is not at the revision yet, or not any more. The error does not say
		// where it is, but the header of another answer does.
		res, err = f.store.Get(ctx, f.from, clientv3.WithLimit(1), clientv3.WithKeysOnly())
		if err != nil {
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
