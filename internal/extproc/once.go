package extproc

import (
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/internal/recent"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// collecting names a collecting leg. An attempt sends each decode worker one at most.
type collecting struct {
	nonce uint64
	by    worker.ID
}

// once holds which collecting legs have come, for longer than their tokens are good. An attempt
// cannot hold this itself: after a panic it is removed before its leg ends. Safe for concurrent use.
type once struct {
	mu   sync.Mutex
	seen recent.Map[collecting, struct{}] // guarded by mu
}

const onceMost = 65536

func newOnce() once {
	return once{seen: recent.Map[collecting, struct{}]{Keep: 2 * collectTimeout, Most: onceMost}}
}

// first returns true if the leg c comes for the first time, and holds c. It returns false if c has
// come before, or if there is no room to hold c.
func (o *once) first(c collecting, now time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, again := o.seen.Get(c, now)
	return !again && o.seen.Put(c, struct{}{}, now)
}
