package health

import (
	"sync"
	"sync/atomic"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// kept is how many changes are remembered. A reader that is further behind looks at every
// worker once, and then has at least this many changes until it may have to again.
const kept = 4096

// changes remembers which workers' standing has changed lately. Safe for concurrent use.
// No other lock is taken while its lock is held.
type changes struct {
	version atomic.Uint64 // one more than the changes that were noted; written under mu

	mu   sync.Mutex      // guards ring
	ring [kept]worker.ID // the change that made version v is at v % kept
}

// note must be called after the change: a reader of the version then sees the change.
func (c *changes) note(id worker.ID) {
	c.mu.Lock()
	v := c.version.Load() + 1
	c.ring[v%kept] = id
	c.version.Store(v)
	c.mu.Unlock()
}

// after appends to dst the workers that have changed since the version. If all is true,
// any worker may have changed.
func (c *changes) after(since uint64, dst []worker.ID) (now uint64, changed []worker.ID, all bool) {
	now = c.version.Load()
	if now == since {
		return now, dst, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now = c.version.Load()
	if since == 0 || since > now || now-since > kept {
		return now, dst, true
	}
	for v := since + 1; v <= now; v++ {
		dst = append(dst, c.ring[v%kept])
	}
	return now, dst, false
}
