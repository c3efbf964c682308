package discovery

import (
	"context"
	"slices"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Source feeds the view with one origin's workers.
type Source interface {
	// Run sends a [List] first, then [Batch] events or further listings, until
	// ctx ends or it can no longer vouch for what it sent; it returns only when
	// its goroutines are done. The view calls it again after a pause, so a
	// source may simply return its error. After an error from Send that wraps
	// [ErrResync] it must list again, by itself or by returning. It calls Send
	// from one goroutine at a time and not after it has returned.
	Run(ctx context.Context, sink Sink) error
}

// Sink takes a source's events.
type Sink interface {
	// Send applies one event; when it returns nil, readers already see the
	// effect. An error wraps [ErrResync]. The sink owns what the event points
	// to from then on.
	Send(ev Event) error
}

// Event is one of [Begin], [List], [Batch], [Batches], [Broken].
type Event interface{ isEvent() }

// Begin says that the source starts to list.
type Begin struct{}

// List is a full set, read at one revision. It replaces the set atomically and
// may repeat the present revision, but not go back, unless Epoch differs.
type List struct {
	// Epoch names the history that revisions belong to (etcd: the cluster id).
	// A store that was rebuilt starts again at a low revision under a new one.
	Epoch    string
	Revision uint64
	Entries  []Entry // keys are unique
}

// Batch is everything that happened at one revision, in order. A source that
// gets several revisions in one message sends a batch for each, and joins
// what its transport splits: a revision sent in two parts is a repeat.
//
// Without Ops it is a progress note: nothing else happened up to Revision.
type Batch struct {
	Revision uint64
	// After is the revision that this batch follows, for sources that number
	// their changes without holes; zero for those that do not (in etcd other
	// keys move the revision, too), where Version finds gaps instead.
	After uint64
	Ops   []Op
}

// Batches is what happened at several revisions that came faster than they were taken, in
// order. Readers see what came of all of them at once, which is what keeps thousands of
// registrations in a row from being merged thousands of times. A worker that goes and comes
// back among them is seen to have been away all the same. Where one is refused,
// those before it hold and those after it are not looked at.
type Batches []Batch

// Broken says that the source cannot vouch for its set any more.
type Broken struct{ Reason string }

func (Begin) isEvent()   {}
func (List) isEvent()    {}
func (Batch) isEvent()   {}
func (Batches) isEvent() {}
func (Broken) isEvent()  {}

// ChangesSet reports whether the set may be another once the event has been accepted.
func ChangesSet(ev Event) bool {
	switch ev := ev.(type) {
	case List:
		return true
	case Batch:
		return len(ev.Ops) > 0
	case Batches:
		return slices.ContainsFunc(ev, func(b Batch) bool { return len(b.Ops) > 0 })
	default:
		return false
	}
}

// Entry is one key of a source and the worker it holds.
type Entry struct {
	Key    string
	Worker *worker.Worker // nil when Fault is set and the key never held one
	// Fault says why the key's present value is not a worker. The key then
	// keeps the last good one: one broken registration must not take a worker,
	// or the fleet, with it.
	Fault string
	// Revision is that of the last write to the key (etcd: mod_revision). In a
	// Batch it is ignored: the batch's own counts.
	Revision uint64
	// Version counts the writes to the key since it was created, from 1 (etcd:
	// version); zero when the source does not count them. It shows a lost write
	// at the next one to the same key, not before, and not one that left the
	// count as it was.
	Version uint64
}

// Op is one change of a [Batch]: made by [Put] or [Delete].
type Op struct {
	Entry
	Gone bool
}

// Put says that the key now holds the entry.
func Put(e Entry) Op { return Op{Entry: e} }

// Delete says that the key is gone. Version is that of the deleted value, zero
// when unknown (etcd: prev_kv.version).
func Delete(key string, version uint64) Op {
	return Op{Entry: Entry{Key: key, Version: version}, Gone: true}
}
