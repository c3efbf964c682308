package route

import (
	"cmp"
	"errors"
	"slices"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// taintSets holds the taints that the workers carry. A request may name any taint. For
// each taint that is new to the load book, the book looks through all ranks under its
// lock: so it is asked only for taints that some worker carries. Safe for concurrent use;
// the zero value is ready for use.
type taintSets struct{ ofWorld[map[string]struct{}] }

// taintsOf returns the taints of the world's workers, with those of their topology.
func taintsOf(world *activation.World) map[string]struct{} {
	has := make(map[string]struct{})
	for _, w := range world.Workers() {
		for _, taint := range w.Taints {
			has[taint] = struct{}{}
		}
		for domain, value := range w.TopologyDomains {
			if value != "" {
				has[worker.TaintOf(domain, value)] = struct{}{}
			}
		}
	}
	return has
}

// noTaint stands for the taints that no worker carries. No worker can carry noTaint: the
// taints that workers declare are printable.
const noTaint = "\x00"

// known changes c, which must have memory of its own. It drops preferences for taints that
// no worker carries, since they change nothing, and replaces required taints that no worker
// carries by noTaint. It returns the first of these, "" for none.
func (t *taintSets) known(world *activation.World, c *picker.Constraints) (missing string) {
	if c.None() {
		return ""
	}
	has := t.get(world, taintsOf)
	c.Preferred = slices.DeleteFunc(c.Preferred, func(p picker.Preference) bool {
		_, ok := has[p.Taint]
		return !ok
	})
	for i, taint := range c.Required {
		if _, ok := has[taint]; !ok {
			missing = cmp.Or(missing, taint)
			c.Required[i] = noTaint
		}
	}
	return missing
}

// nameTaint puts the name of the missing taint back in the place of noTaint.
func (q *Question) nameTaint(err error) error {
	var taint *picker.TaintError
	if errors.As(err, &taint) && taint.Taint == noTaint {
		return &picker.TaintError{Taint: q.missing}
	}
	return err
}
