package route

import (
	"iter"
	"time"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Keys ranges over the keys of a namespace that have workers in the world.
func Keys(world *activation.World, namespace string) iter.Seq[worker.Key] {
	return func(yield func(worker.Key) bool) {
		for _, k := range world.Keys() {
			if k.Namespace == namespace && !yield(k) {
				return
			}
		}
	}
}

// onlyModel returns the only model of the namespace, adapters aside. It returns the zero
// Key if there are several or none.
func (rt *Router) onlyModel(world *activation.World, now time.Time) worker.Key {
	only := worker.Key{}
	for _, k := range world.DepartedKeys(now) { // a model whose workers have all left counts: it may come back
		if k.Namespace == rt.cfg.Policy.Namespace {
			if only.Model != "" {
				return worker.Key{}
			}
			only = k
		}
	}
	for k := range Keys(world, rt.cfg.Policy.Namespace) {
		if adapterAlone(world.Pool(k)) {
			continue // the pool of its base model counts instead
		}
		if only.Model != "" {
			return worker.Key{}
		}
		only = k
	}
	return only
}
