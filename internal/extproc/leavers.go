package extproc

import (
	"net/netip"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// leavers holds the ids and the addresses of workers that have left. So a request that names
// such a worker gets another error than a request that names an unknown one. Safe for
// concurrent use.
type leavers struct {
	mu   sync.Mutex
	ids  map[worker.ID]time.Time      // guarded by mu
	from map[netip.AddrPort]time.Time // guarded by mu
}

const (
	leaversKept = 30 * time.Minute // a model whose workers have left is kept as long
	leaversMost = 65536            // ids, and as many addresses
)

func newLeavers() leavers {
	return leavers{ids: make(map[worker.ID]time.Time), from: make(map[netip.AddrPort]time.Time)}
}

// add notes that workers have left. Their addresses come from old, the snapshot that still
// has these workers.
func (l *leavers) add(ids []worker.ID, old *worker.Snapshot, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	forget(l.ids, now)
	forget(l.from, now)
	for _, id := range ids {
		remember(l.ids, id, now)
		if w := old.Worker(id); w != nil && !w.Fronted {
			for at := range w.Addresses() {
				remember(l.from, at, now)
			}
		}
	}
}

func forget[K comparable](m map[K]time.Time, now time.Time) {
	for k, at := range m {
		if now.Sub(at) > leaversKept {
			delete(m, k)
		}
	}
}

func remember[K comparable](m map[K]time.Time, k K, now time.Time) {
	if len(m) < leaversMost {
		m[k] = now
	}
}

// has reports whether a worker with that id has left.
func (l *leavers) has(id worker.ID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.ids[id]
	return ok
}

// hasAt reports whether a worker that listened at the endpoint has left, also if another
// worker listens there now.
func (l *leavers) hasAt(at worker.Endpoint) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.from[at.AddrPort()]
	return ok
}
