package health

import (
	"sync"
	"sync/atomic"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// kept is how many changes are remembered. Who is further behind looks at every
// worker once; between two such looks lie as many changes as this.
const kept = 4096

// changes is the latest workers whose standing has changed. Safe for concurrent
// use. Its lock is a leaf.
type changes struct {
	version atomic.Uint64 // changes noted, and one; written under mu

	mu   sync.Mutex
	ring [kept]worker.ID // the change that made version v is at v % kept
}

// note is called after the change, so that who hears of it sees it.
func (c *changes) note(id worker.ID) {
	c.mu.Lock()
	v := c.version.Load() + 1
	c.ring[v%kept] = id
	c.version.Store(v)
	c.mu.Unlock()
}

// after appends who has changed after the version to dst.
func (c *changes) after(since uint64, dst []worker.ID) (now uint64, changed []worker.ID, all bool) {
	if now = c.version.Load(); now == since {
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
