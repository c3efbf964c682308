package extproc

import (
	"net/netip"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/internal/recent"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// leavers holds the ids and the addresses of workers that have left. So a request that names
// such a worker gets another error than a request that names an unknown one. Safe for
// concurrent use.
type leavers struct {
	mu   sync.Mutex
	ids  recent.Map[worker.ID, struct{}]      // guarded by mu
	from recent.Map[netip.AddrPort, struct{}] // guarded by mu
}

const (
	leaversKept = 30 * time.Minute // at least; a model whose workers have left is kept as long
	leaversMost = 65536            // ids, and as many addresses
)

func newLeavers() leavers {
	return leavers{
		ids:  recent.Map[worker.ID, struct{}]{Keep: leaversKept, Most: leaversMost},
		from: recent.Map[netip.AddrPort, struct{}]{Keep: leaversKept, Most: leaversMost},
	}
}

// add notes that workers have left. Their addresses come from old, the snapshot that still
// has these workers.
func (l *leavers) add(ids []worker.ID, old *worker.Snapshot, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.from.Expire(now)
	for _, id := range ids {
		l.ids.Put(id, struct{}{}, now)
		if w := old.Worker(id); w != nil && !w.Fronted {
			for at := range w.Addresses() {
				l.from.Put(at, struct{}{}, now)
			}
		}
	}
}

// has reports whether a worker with that id has left.
func (l *leavers) has(id worker.ID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.ids.Get(id, time.Time{})
	return ok
}

// hasAt reports whether a worker that listened at the endpoint has left, also if another
// worker listens there now.
func (l *leavers) hasAt(at worker.Endpoint) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.from.Get(at.AddrPort(), time.Time{})
	return ok
}
