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
	everyone    ofWorld[*worker.Pool]
	only        ofWorld[only]
}

// ofWorld has a value that is made of a world when it is first asked for. Safe for concurrent use.
type ofWorld[T any] struct{ last atomic.Pointer[madeOf[T]] }

type madeOf[T any] struct {
	world *activation.World
	value T
}

func (o *ofWorld[T]) get(world *activation.World, make func(*activation.World) T) T {
	if m := o.last.Load(); m != nil && m.world == world {
		return m.value
	}
	m := &madeOf[T]{world, make(world)}
	o.last.Store(m)
	return m.value
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
	o := m.only.get(world, m.onlyThere)
	for _, k := range world.DepartedKeys(now) { // a model whose workers have all left counts: it may come back
		if k.Namespace == m.namespace {
			o.several = o.several || o.key.Model != ""
			o.key = k
		}
	}
	if o.several {
		return worker.Key{}
	}
	return o.key
}

// only is the model of a world's workers that is the only one of its namespace.
type only struct {
	key     worker.Key // zero: there is none
	several bool
}

// onlyThere is onlyModel without models whose workers have all left. With many adapters it takes
// long, and clients decide how often it is asked for: so it is found once for each world.
func (m *models) onlyThere(world *activation.World) (o only) {
	for k := range Keys(world, m.namespace) {
		p := world.Pool(k)
		switch {
		case o.key.Model != "" && sameWorkers(world.Pool(o.key), p):
		case adapterAlone(p): // the pool of its base model counts instead
		case o.key.Model != "":
			return only{several: true}
		default:
			o.key = k
		}
	}
	o.key = m.firstName(world, o.key)
	return o
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

// everybody returns the workers of the namespace as one pool, whatever their models are: those that
// serve alone or decode. It is nil if the namespace has no worker.
func (m *models) everybody(world *activation.World) (p *worker.Pool) {
	for _, w := range world.Workers() {
		if w.Namespace != m.namespace {
			continue
		}
		if p == nil {
			p = &worker.Pool{Key: worker.Key{Model: worker.NoModel, Namespace: m.namespace}}
		}
		if w.CanServe(worker.Aggregated) {
			p.Aggregated, p.AggregatedRanks = append(p.Aggregated, w), appendRanks(p.AggregatedRanks, w)
		}
		if w.CanServe(worker.Decode) {
			p.Decode, p.DecodeRanks = append(p.Decode, w), appendRanks(p.DecodeRanks, w)
		}
	}
	return p
}
