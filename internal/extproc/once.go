package extproc

import (
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// collecting names a collecting leg. An attempt sends each decode worker one at most.
type collecting struct {
	nonce uint64
	by    worker.ID
}

// once holds which collecting legs have come, until their tokens expire. An attempt cannot
// hold this itself: after a panic it is removed before its leg ends. The zero value is
// ready. Safe for concurrent use.
type once struct {
	mu      sync.Mutex
	seen    map[collecting]time.Time // guarded by mu: when the token expires
	sweepAt time.Time                // guarded by mu
}

const (
	onceMost  = 65536
	onceSweep = 10 * time.Second
)

// first returns true if the leg c comes for the first time, and holds c until its token
// expires. It returns false if c has come before, or if there is no room to hold c.
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
