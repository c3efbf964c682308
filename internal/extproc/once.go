package extproc

import (
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// collecting names a collecting leg: an attempt asks each decode worker once.
type collecting struct {
	nonce uint64
	by    worker.ID
}

// once remembers which collecting legs have come, until their tokens are no good
// any more. Attempts cannot: one that has panicked is forgotten before its leg
// ends. Safe for concurrent use; the zero value has seen none.
type once struct {
	mu      sync.Mutex
	seen    map[collecting]time.Time // guarded by mu; until when
	sweepAt time.Time                // guarded by mu
}

const (
	onceMost  = 65536
	onceSweep = 10 * time.Second
)

// first reports whether c, whose token is good until then, has not come before. Nor
// does anybody come past the most that can be remembered.
func (o *once) first(c collecting, until, now time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, again := o.seen[c]; again {
		return false
	}
	if o.seen == nil {
		o.seen = make(map[collecting]time.Time)
	}
	if len(o.seen) >= onceMost || now.After(o.sweepAt) {
		o.sweepAt = now.Add(onceSweep)
		for k, t := range o.seen {
			if !t.After(now) {
				delete(o.seen, k)
			}
		}
	}
	if len(o.seen) >= onceMost {
		return false
	}
	o.seen[c] = until
	return true
}
