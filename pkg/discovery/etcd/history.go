package etcd

import (
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// history knows to which past of the store the revisions belong. A store that has lost
// its data has the same cluster id again if its members are configured as before, so
// the id alone is not enough. It is pure. The zero value has seen nothing.
type history struct {
	generation uint64 // counts the histories that were seen
	cluster    uint64
	revision   int64            // the set is exactly what the store had at this revision
	keys       map[string]int64 // the keys of the set, with the revision of their last write
}

// listing is the store as it was at one revision.
type listing struct {
	cluster  uint64
	revision int64
	kvs      []*mvccpb.KeyValue
}

// differs says why a listing that was read after everything in h must be of another
// history, or returns "".
func (h *history) differs(l listing) string {
	if h.generation == 0 {
		return ""
	}
	if reason := h.departs(l.cluster, l.revision, h.revision); reason != "" {
		return reason
	}
	for _, kv := range l.kvs {
		// The key was written before the known revision, but is not known. So the store
		// was rebuilt, and has already passed the known revision.
		if held, ok := h.keys[string(kv.Key)]; kv.ModRevision <= h.revision && (!ok || held != kv.ModRevision) {
			return fmt.Sprintf("etcd has lost its data, at revision %d it did not hold %q", h.revision, kv.Key)
		}
	}
	return ""
}

// departs says why a store that is at revision, although least was reached before, must
// have another history than h, or returns "".
func (h *history) departs(cluster uint64, revision, least int64) string {
	switch {
	case cluster != h.cluster:
		return fmt.Sprintf("etcd is another cluster, %x and not %x", cluster, h.cluster)
	case revision < least:
		return fmt.Sprintf("etcd has lost its data, it is at revision %d after %d", revision, least)
	default:
		return ""
	}
}

// judge says why a store that shows the sign must have another history than h, or
// returns "".
func (h *history) judge(s sign) string {
	reason := h.departs(s.cluster, s.revision, s.asked.revision)
	if reason == "" && !s.asked.fits(s) {
		reason = fmt.Sprintf("etcd has lost its data, its %d keys at revision %d are not the %d that it held", s.count, s.asked.revision, s.asked.count)
	}
	return reason
}

// adopt makes the listing what is known. another says that the listing is of another
// history.
func (h *history) adopt(l listing, another bool) {
	if another || h.generation == 0 {
		h.generation++
	}
	h.cluster, h.revision = l.cluster, l.revision
	h.keys = make(map[string]int64, len(l.kvs))
	for _, kv := range l.kvs {
		h.keys[string(kv.Key)] = kv.ModRevision
	}
}

// advance adds what happened at a later revision.
func (h *history) advance(revision int64, events []*clientv3.Event) {
	h.revision = revision
	for _, ev := range events {
		if ev.Type == clientv3.EventTypeDelete {
			delete(h.keys, string(ev.Kv.Key))
		} else {
			h.keys[string(ev.Kv.Key)] = ev.Kv.ModRevision
		}
	}
}

// mark returns what identifies this history: a store that is read at the history's revision
// has the same number of keys and the same newest ones, unless it is another store.
func (h *history) mark() mark {
	m := mark{revision: h.revision, count: int64(len(h.keys))}
	for key, written := range h.keys {
		if written > m.written {
			m.newest, m.written = nil, written
		}
		if written == m.written {
			m.newest = append(m.newest, key)
		}
	}
	return m
}

// epoch returns the name of the history for the reducer.
func (h *history) epoch() string { return fmt.Sprintf("%x/%d", h.cluster, h.generation) }
