package discovery

import (
	"context"
	"slices"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Source sends the workers of one origin to the view.
type Source interface {
	// Run sends a [List] first, then [Batch] events or further listings, until ctx ends
	// or the set that it has sent may be wrong. It returns when all of its goroutines
	// have ended. The view calls Run again after a pause, so that a source may simply
	// return its error. After an error of Send that wraps [ErrResync] the source must
	// send a listing again, by itself or after returning. Run calls Send from one
	// goroutine at a time, and not after it has returned.
	Run(ctx context.Context, sink Sink) error
}

// Sink receives a source's events.
type Sink interface {
	// Send applies one event. When it returns nil, readers already see the effect.
	// Every error wraps [ErrResync]. The sink owns what the event points to after the
	// call.
	Send(ev Event) error
}

// Event is one of [Begin], [List], [Batch], [Batches], [Broken].
type Event interface{ isEvent() }

// Begin says that the source begins to list.
type Begin struct{}

// List is a full set, read at one revision. It replaces the set at once. Within one
// Epoch its revision may be that of the present set or higher, but not lower.
type List struct {
	// Stale says why the set may be wrong already, as Broken does; "": it is what the
	// store holds.
	Stale string
	// Epoch names the history that the revisions belong to (etcd: the cluster id). A
	// store that was rebuilt begins again at a low revision, with another Epoch.
	Epoch    string
	Revision uint64
	Entries  []Entry // keys are unique
}

// Batch is everything that happened at one revision, in order. If one message of the
// store has several revisions, the source sends a batch for each. If the store splits a
// revision into several messages, the source joins them: a second batch of a revision
// is refused as a repeat.
//
// A Batch without Ops is a progress note: nothing else has happened up to Revision.
type Batch struct {
	Revision uint64
	// After is the revision that this batch follows, for sources that number their
	// changes without gaps. It is zero for other sources, such as etcd, where other
	// keys raise the revision as well. For those Version shows a gap.
	After uint64
	Ops   []Op
}

// Batches is what happened at several revisions, in order, when they came faster than
// the source handled them. Readers see the result of all of them at once. Otherwise
// thousands of registrations in a row would each cause a merge. A worker that goes and
// comes back within them is still seen to have been away. If one batch is refused,
// those before it stay applied, and those after it are ignored.
type Batches []Batch

// Broken says that the source's set may be wrong from now on.
type Broken struct{ Reason string }

func (Begin) isEvent()   {}
func (List) isEvent()    {}
func (Batch) isEvent()   {}
func (Batches) isEvent() {}
func (Broken) isEvent()  {}

// ChangesSet reports whether accepting the event may change the set.
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

// Entry is one key of a source and the worker that it holds.
type Entry struct {
	Key    string
	Worker *worker.Worker // nil if Fault is set and the key never held a worker
	// Fault says why the present value of the key is not a worker. The entry then keeps
	// the last good worker, so that one broken registration takes away no worker.
	Fault string
	// Note is something about the worker that an operator should see. The worker counts
	// all the same.
	Note string
	// Revision is the revision of the last write to the key (etcd: mod_revision). In a
	// Batch it is ignored, since the batch has a revision.
	Revision uint64
	// Version counts the writes to the key since it was created, from 1 (etcd:
	// version); zero if the source does not count them. It shows that a write was lost
	// when the next write of the same key comes, unless the lost writes left the count
	// as it was.
	Version uint64
	// Lease is how long the key outlives whoever keeps it; 0: it stays until somebody
	// deletes it. See [Expiry].
	Lease time.Duration
}

// Op is one change of a [Batch], made by [Put] or [Delete].
type Op struct {
	Entry
	Gone bool
}

// Put says that the key now holds the entry.
func Put(e Entry) Op { return Op{Entry: e} }

// Delete says that the key is gone. version is the Version of the deleted value, or
// zero if unknown (etcd: prev_kv.version).
func Delete(key string, version uint64) Op {
	return Op{Entry: Entry{Key: key, Version: version}, Gone: true}
}
