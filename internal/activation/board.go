package activation

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/prefill"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

const (
	// rememberFor is how long a key without workers is refused as unavailable, and not as
	// unknown, and one without a worker that serves alone likewise: longer than a fleet takes to load its weights.
	rememberFor = 30 * time.Minute
	maxDeparted = 1000
)

// Standing is the state of one key. It is comparable.
type Standing struct {
	State     prefill.State
	Ready     int  // cached prefill endpoints
	Sides     int  // decode sides
	Activated bool // a decode side is active: with enforced disaggregation the key may serve
}

// CanServe reports whether the key may serve (docs/behaviour.md#can-serve).
func (s Standing) CanServe(enforced bool) bool { return !enforced || s.Activated }

// World is one worker set with the standing of each of its keys. Immutable; safe for
// concurrent use.
type World struct {
	*worker.Snapshot
	followed bool          // false before the first set
	replaced chan struct{} // closed when there is a newer world
	keys     map[worker.Key]Standing
	since    map[worker.Key]time.Time
	departed map[worker.Key]time.Time
	alone    map[worker.Key]time.Time
	paired   map[worker.Key]time.Time
}

// Ready reports whether a worker set has been published. Once it has, every later world
// is ready.
func (w *World) Ready() bool { return w.followed }

// Standing returns the state of the key; Absent for one without workers.
func (w *World) Standing(k worker.Key) Standing { return w.keys[k] }

// Since returns when the key's workers came to the board; zero for a key without workers.
func (w *World) Since(k worker.Key) time.Time { return w.since[k] }

// Departed reports whether the key has no worker now, and had one not long ago.
func (w *World) Departed(k worker.Key, now time.Time) bool {
	at, known := w.departed[k]
	return known && now.Sub(at) < rememberFor
}

// ServedAlone reports whether a worker of the key that can serve alone is known, though it
// may take no requests now, or was known not long ago. For worker.NoModel it is one of any
// key of the namespace.
func (w *World) ServedAlone(k worker.Key, now time.Time) bool {
	for of, left := range w.alone {
		if of.Namespace == k.Namespace && (of == k || k.Model == worker.NoModel) && (left.IsZero() || now.Sub(left) < rememberFor) {
			return true
		}
	}
	return false
}

// ServedApart reports whether a prefill and a decode worker of the key are a pair, or were
// not long ago: if not, no wait will help.
func (w *World) ServedApart(k worker.Key, now time.Time) bool {
	left, known := w.paired[k]
	return known && (left.IsZero() || now.Sub(left) < rememberFor)
}

// Replaced returns a channel that is closed when the board has a newer world.
func (w *World) Replaced() <-chan struct{} { return w.replaced }

// DepartedKeys returns the keys for which Departed is true, sorted.
func (w *World) DepartedKeys(now time.Time) []worker.Key {
	var keys []worker.Key
	for k := range w.departed {
		if w.Departed(k, now) {
			keys = append(keys, k)
		}
	}
	sortKeys(keys)
	return keys
}

// AllKeys returns the keys that have workers, and after them the departed ones.
func (w *World) AllKeys(now time.Time) []worker.Key {
	return slices.Concat(w.Keys(), w.DepartedKeys(now))
}

// Change is a transition of one key.
type Change struct {
	Key worker.Key
	prefill.Transition
}

// Board keeps the activations of all keys. Any goroutine may call Load at any time. Only
// one at a time may call Follow: the one of the discovery view.
type Board struct {
	world atomic.Pointer[World] // never nil
	ready chan struct{}         // closed by the first Follow

	mu       sync.Mutex // held by Follow; guards what is below
	keys     map[worker.Key]*prefill.Activation
	since    map[worker.Key]time.Time // of keys
	departed map[worker.Key]time.Time
	// alone has the keys with a worker that can serve alone, and when the last such worker
	// left; zero: one is there.
	alone map[worker.Key]time.Time
	// paired has the keys with a pair, and when the last one was broken up; zero: one is there.
	paired map[worker.Key]time.Time
}

// New returns a board whose world is empty.
func New() *Board {
	b := &Board{ready: make(chan struct{}), keys: map[worker.Key]*prefill.Activation{}, since: map[worker.Key]time.Time{}, departed: map[worker.Key]time.Time{}, alone: map[worker.Key]time.Time{}, paired: map[worker.Key]time.Time{}}
	b.world.Store(&World{Snapshot: &worker.Snapshot{}, replaced: make(chan struct{})})
	return b
}

// Ready returns a channel that is closed by the first Follow.
func (b *Board) Ready() <-chan struct{} { return b.ready }

// Load returns the present world, never nil. It is one atomic load.
func (b *Board) Load() *World { return b.world.Load() }

// Follow takes the view's new worker set and its changes since the last one. It returns
// the transitions that they have caused, in order. Requests see the new world before it
// returns.
func (b *Board) Follow(snap *worker.Snapshot, c discovery.Change, now time.Time) []Change {
	b.mu.Lock()
	defer b.mu.Unlock()
	var changes []Change
	present := byKey(snap)
	for _, k := range b.known(present) {
		a := b.keys[k]
		if a == nil {
			a = &prefill.Activation{}
			b.keys[k], b.since[k] = a, now
		}
		for _, ev := range a.Follow(present[k], grade, c.Left) {
			if t, changed := a.Apply(ev); changed {
				changes = append(changes, Change{Key: k, Transition: t})
			}
		}
		note(b.alone, k, slices.ContainsFunc(present[k], mayServeAlone), now)
		p := snap.Pool(k)
		note(b.paired, k, p != nil && len(p.Paired) > 0, now)
		if len(present[k]) > 0 {
			delete(b.departed, k)
			continue
		}
		delete(b.keys, k)
		delete(b.since, k)
		if !unloaded(b.Load().Snapshot, snap, k) {
			b.departed[k] = now
		}
	}
	b.forget(now)
	w := &World{Snapshot: snap, followed: true, replaced: make(chan struct{}), keys: make(map[worker.Key]Standing, len(b.keys)), departed: maps.Clone(b.departed), alone: maps.Clone(b.alone), paired: maps.Clone(b.paired), since: maps.Clone(b.since)}
	for k, a := range b.keys {
		w.keys[k] = Standing{State: a.State(), Ready: a.Ready(), Sides: a.Sides(), Activated: a.CanServe(true)}
	}
	before := b.Load()
	b.world.Store(w)
	close(before.replaced)
	if !before.followed {
		close(b.ready)
	}
	return changes
}

// note notes when something of a key has ceased; zero: it is there.
func note(ceased map[worker.Key]time.Time, k worker.Key, there bool, now time.Time) {
	at, was := ceased[k]
	switch {
	case there:
		ceased[k] = time.Time{}
	case was && at.IsZero():
		ceased[k] = now
	}
}

// mayServeAlone reports whether a worker can serve alone, as far as is known.
func mayServeAlone(w *worker.Worker) bool {
	return !w.Fronted && (w.Role == worker.Aggregated || w.Role == worker.Decode && (w.AcceptsAggregated || w.FactsUnknown))
}

// grade says what a worker counts as (docs/behaviour.md#facts-first). Only a worker that
// can be picked for its role is an endpoint. A worker that never can be does not count as
// pending either: its key would then wait forever.
func grade(w *worker.Worker) prefill.Grade {
	switch {
	case discovery.Unfit(w) != "":
		return prefill.Unfit
	case discovery.Ineligible(w) != "":
		return prefill.Pending
	default:
		return prefill.Ready
	}
}

// byKey returns the workers of each key, whether they may be picked or not.
func byKey(snap *worker.Snapshot) map[worker.Key][]*worker.Worker {
	out := make(map[worker.Key][]*worker.Worker)
	for _, w := range snap.Workers() {
		for i, m := range w.Models {
			if slices.Contains(w.Models[:i], m) {
				continue
			}
			k := worker.Key{Model: m, Namespace: w.Namespace}
			out[k] = append(out[k], w)
		}
	}
	return out
}

// unloaded reports whether a worker that served the key is still there and no longer
// serves it. Then the model itself is gone, and the key is not remembered as departed.
func unloaded(before, now *worker.Snapshot, k worker.Key) bool {
	return slices.ContainsFunc(before.Workers(), func(w *worker.Worker) bool {
		return w.Namespace == k.Namespace && slices.Contains(w.Models, k.Model) && now.Worker(w.ID) != nil
	})
}

// known returns the keys in present and those of the board, sorted.
func (b *Board) known(present map[worker.Key][]*worker.Worker) []worker.Key {
	keys := slices.Collect(maps.Keys(present))
	for k := range b.keys {
		if _, here := present[k]; !here {
			keys = append(keys, k)
		}
	}
	sortKeys(keys)
	return keys
}

func sortKeys(keys []worker.Key) {
	slices.SortFunc(keys, func(x, y worker.Key) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Model, y.Model))
	})
}

// forget drops what left long ago. If there are more than maxDeparted such keys, it drops
// all of them: then the model names are made up.
func (b *Board) forget(now time.Time) {
	for _, left := range [...]map[worker.Key]time.Time{b.departed, b.alone, b.paired} {
		n := 0
		maps.DeleteFunc(left, func(_ worker.Key, at time.Time) bool {
			if !at.IsZero() {
				n++
			}
			return !at.IsZero() && now.Sub(at) >= rememberFor
		})
		if n > maxDeparted {
			maps.DeleteFunc(left, func(_ worker.Key, at time.Time) bool { return !at.IsZero() })
		}
	}
}
