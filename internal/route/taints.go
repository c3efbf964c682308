package route

import (
	"cmp"
	"errors"
	"slices"
	"sync/atomic"

	"github.com/seed-60ae5743/baton/internal/activation"
	"github.com/seed-60ae5743/baton/pkg/picker"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// taintSets knows which taints the fleet has. A request may ask for any; the
// load book looks through all ranks, under its lock, for each that it has not
// met, so that it is asked only for those that some worker carries. Safe for
// concurrent use; the zero value knows nothing yet.
type taintSets struct{ last atomic.Pointer[taintSet] }

type taintSet struct {
	world *activation.World
	has   map[string]struct{}
}

// of returns the taints of the world's workers, those of their topology included.
// They are looked through once a world.
func (t *taintSets) of(world *activation.World) map[string]struct{} {
	if s := t.last.Load(); s != nil && s.world == world {
		return s.has
	}
	s := &taintSet{world, make(map[string]struct{})}
	for _, w := range world.Workers() {
		for _, taint := range w.Taints {
			s.has[taint] = struct{}{}
		}
		for domain, value := range w.TopologyDomains {
			if value != "" {
				s.has[worker.TaintOf(domain, value)] = struct{}{}
			}
		}
	}
	t.last.Store(s)
	return s.has
}

// noTaint stands for the taints that no worker carries. None can: what workers
// declare is printable.
const noTaint = "\x00"

// known takes out of c, whose memory is its own, the preferences that no worker
// meets, for they change nothing, and puts noTaint in the place of the required
// taints that none carries. It returns the first of those, "" for none.
func (t *taintSets) known(world *activation.World, c *picker.Constraints) (missing string) {
	if c.None() {
		return ""
	}
	has := t.of(world)
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

// nameTaint gives the taint that no worker carries its name again.
func (q *Question) nameTaint(err error) error {
	var taint *picker.TaintError
	if errors.As(err, &taint) && taint.Taint == noTaint {
		return &picker.TaintError{Taint: q.missing}
	}
	return err
}
