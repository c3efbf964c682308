package route

import (
	"iter"
	"time"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Keys ranges over what is served of a namespace.
func Keys(world *activation.World, namespace string) iter.Seq[worker.Key] {
	return func(yield func(worker.Key) bool) {
		for _, k := range world.Keys() {
			if k.Namespace == namespace && !yield(k) {
				return
			}
		}
	}
}

// onlyModel is the one model that there is, adapters aside; none where there are several.
func (rt *Router) onlyModel(world *activation.World, now time.Time) worker.Key {
	only := worker.Key{}
	for _, k := range world.DepartedKeys(now) { // away, but not unknown
		if k.Namespace == rt.cfg.Policy.Namespace {
			if only.Model != "" {
				return worker.Key{}
			}
			only = k
		}
	}
	for k := range Keys(world, rt.cfg.Policy.Namespace) {
		if adapterAlone(world.Pool(k)) {
			continue // its base model is here, too
		}
		if only.Model != "" {
			return worker.Key{}
		}
		only = k
	}
	return only
}
