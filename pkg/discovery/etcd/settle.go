package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
	"github.com/seed-60ae5743/baton/pkg/discovery"
)

// relist is the pause between listings while missing workers may still come.
const relist = 250 * time.Millisecond

// errMissing ends a watch that reports, just after an outage, that workers are gone. A
// new listing must then confirm it.
var errMissing = errors.New("etcd: workers are missing after an outage")

// wait is the waiting for workers that have to register again after etcd lost its data.
type wait struct {
	reason string // why the history is another; "": it is the same
	since  time.Time
	last   int64 // the revision of the last listing
	told   string
}

// settle lists until a listing can be accepted: one that has all known workers, or one
// after which the missing workers have had their time to come back.
func (f *follower) settle(ctx context.Context, sink discovery.Sink) (listing, []discovery.Entry, error) {
	for {
		l, entries, another, err := f.relist(ctx)
		if err != nil {
			// While etcd is away no worker can register, so the waiting begins again.
			f.awaiting.since, f.back = time.Time{}, time.Time{}
			return l, nil, err
		}
		if text := f.doubt(another, l, f.missing(endpointsOf(entries))); text != "" {
			if err := f.tell(sink, text); err != nil {
				return l, nil, err
			}
			select {
			case <-ctx.Done():
				return l, nil, ctx.Err()
			case <-time.After(relist):
			}
			continue
		}
		if another != "" {
			f.logger.LogAttrs(ctx, slog.LevelWarn, "etcd's history begins anew", slog.String(logkey.Reason, another))
		}
		f.awaiting = wait{}
		f.past.adopt(l, another != "")
		f.endpoints = endpointsOf(entries)
		return l, entries, nil
	}
}

// relist lists. If the listing is of another history, another says why.
func (f *follower) relist(ctx context.Context) (l listing, entries []discovery.Entry, another string, err error) {
	l, err = f.list(ctx)
	if err != nil {
		return l, nil, "", err
	}
	entries = f.reader.list(l.kvs)
	if f.past.generation == 0 {
		return l, entries, "", nil
	}
	if f.back.IsZero() {
		f.back = time.Now()
	}
	another = f.awaiting.reason // once the history is another it stays so, even when the new one reaches the old revision
	if another == "" {
		another = f.past.differs(l)
	}
	if another == "" {
		another, err = f.lookBack(ctx, f.missing(endpointsOf(entries)))
	}
	return l, entries, another, err
}

// lookBack compares what etcd had at the known revision. This is needed if a store was
// rebuilt, has passed the known revision, and has no registered worker yet: then no key
// in the listing shows it.
func (f *follower) lookBack(ctx context.Context, missing int) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, f.pace.listTimeout)
	defer cancel()
	s := f.look(ctx, f.past.mark())
	switch {
	case s.err == nil:
		return f.past.judge(s), nil
	case !errors.Is(s.err, rpctypes.ErrCompacted):
		return "", fmt.Errorf("etcd: look back to revision %d: %w", s.asked.revision, s.err)
	case missing == 0:
		return "", nil
	default:
		return fmt.Sprintf("etcd cannot show revision %d any more, and may have lost its data", s.asked.revision), nil
	}
}

// doubt says why a listing in which workers are missing is not accepted yet, or returns
// "".
func (f *follower) doubt(another string, l listing, missing int) string {
	w := &f.awaiting
	if another != "" {
		if w.reason == "" || w.since.IsZero() || l.revision < w.last {
			w.reason, w.since = another, time.Now()
		}
		w.last = l.revision
	}
	all := len(distinct(f.endpoints))
	switch {
	case missing == 0:
		return ""
	case another == "" && f.justBack():
		return fmt.Sprintf("%d of %d workers are missing after an outage: waiting up to %s for them", missing, all, f.pace.comeback)
	case another != "" && time.Since(w.since) < f.pace.grace:
		return fmt.Sprintf("%s: waiting up to %s for %d of %d workers to register again", another, f.pace.grace, missing, all)
	default:
		return ""
	}
}

// justBack reports whether an outage has ended so recently that workers whose leases
// have ended in it may still be about to register again.
func (f *follower) justBack() bool {
	return !f.back.IsZero() && time.Since(f.back) < f.pace.comeback
}

// tell sends what the source waits for, unless it was the last text that was sent.
func (f *follower) tell(sink discovery.Sink, text string) error {
	if text == f.awaiting.told {
		return nil
	}
	f.awaiting.told = text
	return sink.Send(discovery.Broken{Reason: text})
}

// missing counts the endpoints of the set that the given endpoints do not include.
func (f *follower) missing(others map[string]string) int {
	back, n := distinct(others), 0
	for addr := range distinct(f.endpoints) {
		if !back[addr] {
			n++
		}
	}
	return n
}

// after returns the endpoints of the set as they are after the ops, by entry.
func (f *follower) after(ops []discovery.Op) map[string]string {
	next := maps.Clone(f.endpoints)
	note(next, ops)
	return next
}

// note applies the ops to endpoints by entry. A fault changes nothing, since the
// reducer keeps the worker from before.
func note(endpoints map[string]string, ops []discovery.Op) {
	for _, op := range ops {
		if op.Gone {
			delete(endpoints, op.Key)
		} else if op.Worker != nil {
			endpoints[op.Key] = op.Worker.Endpoint.String()
		}
	}
}

func endpointsOf(entries []discovery.Entry) map[string]string {
	m := make(map[string]string, len(entries))
	for _, e := range entries {
		if e.Worker != nil {
			m[e.Key] = e.Worker.Endpoint.String()
		}
	}
	return m
}

func distinct(endpoints map[string]string) map[string]bool {
	m := make(map[string]bool, len(endpoints))
	for _, addr := range endpoints {
		m[addr] = true
	}
	return m
}
