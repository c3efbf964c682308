package route

import (
	"iter"
	"slices"
	"sync/atomic"
	"time"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Keys ranges over the keys of a namespace that have workers in the world, without the key
// of the workers whose models are not known.
func Keys(world *activation.World, namespace string) iter.Seq[worker.Key] {
	return func(yield func(worker.Key) bool) {
		for _, k := range world.Keys() {
			if k.Namespace == namespace && k.Model != worker.NoModel && !yield(k) {
				return
			}
		}
	}
}

// models finds the pool that a request is for, by the model that it names. Safe for concurrent use.
type models struct {
	namespace   string // read-only, as the next
	passUnknown bool   // see Config.PassUnknown
	everyone    atomic.Pointer[everyone]
	only        atomic.Pointer[only]
}

// untold returns the pool of the workers whose models are not known, nil if there are none.
func (m *models) untold(world *activation.World) *worker.Pool {
	return world.Pool(worker.Key{Model: worker.NoModel, Namespace: m.namespace})
}

// noneTold reports whether no model of the namespace is known.
func (m *models) noneTold(world *activation.World) bool {
	for range Keys(world, m.namespace) {
		return false
	}
	return true
}

// onlyModel returns the only model of the namespace, adapters aside: several names of the
// same workers are one model, whose first name it returns. It returns the zero Key if there
// are several models or none.
func (m *models) onlyModel(world *activation.World, now time.Time) worker.Key {
	there, several := m.onlyThere(world)
	for _, k := range world.DepartedKeys(now) { // a model whose workers have all left counts: it may come back
		if k.Namespace == m.namespace {
			several = several || there.Model != ""
			there = k
		}
	}
	if several {
		return worker.Key{}
	}
	return there
}

// only is the model of a world's workers that is the only one of its namespace.
type only struct {
	world   *activation.World
	key     worker.Key // zero: there is none
	several bool
}

// onlyThere is onlyModel without models whose workers have all left. Of a world it is found when it
// is first asked for: with many adapters that takes long, and clients decide how often it is asked.
func (m *models) onlyThere(world *activation.World) (key worker.Key, several bool) {
	if o := m.only.Load(); o != nil && o.world == world {
		return o.key, o.several
	}
	o := &only{world: world}
	for k := range Keys(world, m.namespace) {
		p := world.Pool(k)
		switch {
		case o.key.Model != "" && sameWorkers(world.Pool(o.key), p):
		case adapterAlone(p): // the pool of its base model counts instead
		case o.key.Model != "":
			o.several = true
		default:
			o.key = k
		}
		if o.several {
			break
		}
	}
	o.key = m.firstName(world, o.key)
	m.only.Store(o)
	return o.key, o.several
}

// firstName returns the name that the first worker of the key's pool has first, of the names,
// adapters aside, of the same workers.
func (m *models) firstName(world *activation.World, k worker.Key) worker.Key {
	p := world.Pool(k)
	if p == nil {
		return k
	}
	for _, ws := range [...][]*worker.Worker{p.Prefill, p.Decode, p.Aggregated} {
		if len(ws) == 0 {
			continue
		}
		for _, name := range ws[0].Models {
			named := worker.Key{Model: name, Namespace: k.Namespace}
			if !slices.Contains(ws[0].Adapters, name) && sameWorkers(world.Pool(named), p) {
				return named
			}
		}
	}
	return k
}

// sameWorkers reports whether two pools have the same workers in the same roles.
func sameWorkers(a, b *worker.Pool) bool {
	return a != nil && b != nil && slices.Equal(a.Prefill, b.Prefill) && slices.Equal(a.Decode, b.Decode) && slices.Equal(a.Aggregated, b.Aggregated)
}

// everyone is the workers of a namespace as one pool, whatever their models are. The pool of
// a world is made when it is first asked for.
type everyone struct {
	world *activation.World
	pool  *worker.Pool // nil: there are no workers
}

// everybody returns the pool of all workers of the namespace that serve alone or decode; nil
// if it has no worker.
func (m *models) everybody(world *activation.World) *worker.Pool {
	if e := m.everyone.Load(); e != nil && e.world == world {
		return e.pool
	}
	e := &everyone{world: world}
	p := &worker.Pool{Key: worker.Key{Model: worker.NoModel, Namespace: m.namespace}}
	for _, w := range world.Workers() {
		if w.Namespace != m.namespace {
			continue
		}
		e.pool = p
		if w.CanServe(worker.Aggregated) {
			p.Aggregated, p.AggregatedRanks = append(p.Aggregated, w), appendRanks(p.AggregatedRanks, w)
		}
		if w.CanServe(worker.Decode) {
			p.Decode, p.DecodeRanks = append(p.Decode, w), appendRanks(p.DecodeRanks, w)
		}
	}
	m.everyone.Store(e)
	return e.pool
}
