package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/seed-60ae5743/baton/pkg/discovery"
)

// relist is the pause between listings while workers are awaited.
const relist = 250 * time.Millisecond

// errMissing ends a watch that tells, just after an outage, that workers are
// gone. They are listed again before that is believed.
var errMissing = errors.New("etcd: workers are missing after an outage")

// wait is the time after data was lost, in which workers register again.
type wait struct {
	reason string // why the history is another; "": it is the same
	since  time.Time
	last   int64 // revision of the last listing
	told   string
}

// settle lists until there is a listing to be believed: one in which all workers
// are that were known, or one after which those that are not have had their
// time.
func (f *follower) settle(ctx context.Context, sink discovery.Sink) (listing, []discovery.Entry, error) {
	for {
		l, entries, another, err := f.relist(ctx)
		if err != nil {
			// Nobody can register while etcd is away.
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
			f.logger.LogAttrs(ctx, slog.LevelWarn, "etcd's history begins anew", slog.String("reason", another))
		}
		f.awaiting = wait{}
		f.past.adopt(l, another != "")
		f.endpoints = endpointsOf(entries)
		return l, entries, nil
	}
}

// relist lists, and says why the listing is of another history, if it is.
func (f *follower) relist(ctx context.Context) (l listing, entries []discovery.Entry, another string, err error) {
	if l, err = f.list(ctx); err != nil {
		return l, nil, "", err
	}
	entries = f.reader.list(l.kvs)
	if f.past.generation == 0 {
		return l, entries, "", nil
	}
	if f.back.IsZero() {
		f.back = time.Now()
	}
	another = f.awaiting.reason // once it is another it stays so, even when it overtakes
	if another == "" {
		another = f.past.differs(l)
	}
	if another == "" {
		another, err = f.lookBack(ctx, f.missing(endpointsOf(entries)))
	}
	return l, entries, another, err
}

// lookBack compares what etcd held at the revision that is known. A rebuilt
// store that has overtaken it, and in which nobody is registered yet, shows no
// key that would tell.
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

// doubt says why a listing in which workers are missing is not believed yet, or
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

// justBack reports whether an outage has ended so lately that workers whose
// leases ended in it may still be about to register again.
func (f *follower) justBack() bool {
	return !f.back.IsZero() && time.Since(f.back) < f.pace.comeback
}

// tell says what is awaited, when that is news.
func (f *follower) tell(sink discovery.Sink, text string) error {
	if text == f.awaiting.told {
		return nil
	}
	f.awaiting.told = text
	return sink.Send(discovery.Broken{Reason: text})
}

// missing counts the endpoints of the set that are not among the others.
func (f *follower) missing(others map[string]string) int {
	back, n := distinct(others), 0
	for addr := range distinct(f.endpoints) {
		if !back[addr] {
			n++
		}
	}
	return n
}

// after returns where workers are once the ops are done.
func (f *follower) after(ops []discovery.Op) map[string]string {
	next := maps.Clone(f.endpoints)
	note(next, ops)
	return next
}

// note does the ops to where workers are, by key. A fault changes nothing, as
// the reducer goes on with the worker from before.
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
