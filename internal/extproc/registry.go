package extproc

import (
	"strconv"
	"sync"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

const registryShards = 64

// registry finds the main leg of an attempt by its nonce. It holds an attempt
// from its booking until both of its legs are over. Safe for concurrent use.
type registry struct {
	shards [registryShards]struct {
		mu sync.RWMutex
		m  map[uint64]*mainStream
	}
}

func newRegistry() *registry {
	r := new(registry)
	for i := range r.shards {
		r.shards[i].m = make(map[uint64]*mainStream)
	}
	return r
}

func (r *registry) add(nonce uint64, s *mainStream) {
	sh := &r.shards[nonce%registryShards]
	sh.mu.Lock()
	sh.m[nonce] = s
	sh.mu.Unlock()
}

func (r *registry) remove(nonce uint64) {
	sh := &r.shards[nonce%registryShards]
	sh.mu.Lock()
	delete(sh.m, nonce)
	sh.mu.Unlock()
}

func (r *registry) find(nonce uint64) *mainStream {
	sh := &r.shards[nonce%registryShards]
	sh.mu.RLock()
	defer sh.mu.RUnlock()
	return sh.m[nonce]
}

// all returns every attempt, in no order.
func (r *registry) all() []*mainStream {
	var out []*mainStream
	for i := range r.shards {
		sh := &r.shards[i]
		sh.mu.RLock()
		for _, s := range sh.m {
			out = append(out, s)
		}
		sh.mu.RUnlock()
	}
	return out
}

func (r *registry) len() int {
	n := 0
	for i := range r.shards {
		sh := &r.shards[i]
		sh.mu.RLock()
		n += len(sh.m)
		sh.mu.RUnlock()
	}
	return n
}

// gone tells every attempt whose prefill worker has left discovery.
func (r *registry) gone(ids []worker.ID) {
	left := make(map[worker.ID]bool, len(ids))
	for _, id := range ids {
		left[id] = true
	}
	for _, s := range r.all() {
		if left[s.prefillID()] {
			s.post(&event{kind: evGone})
		}
	}
}

// attemptName is an attempt as Envoy's access log names one that it did not
// route: x-attempt-id comes with the destination.
type attemptName struct {
	requestID string
	attempt   int
}

// unrouted finds an attempt by its name, from the moment its hand-off leaves for
// decode until it is over. Of two with one name neither is found: request ids
// may be a client's. Safe for concurrent use.
type unrouted struct {
	mu sync.Mutex
	m  map[attemptName]*mainStream // nil: two have the name
}

func (u *unrouted) add(s *mainStream) {
	n := s.m.name()
	if n.requestID == "" {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if other, taken := u.m[n]; taken && other != s {
		s = nil
	}
	u.m[n] = s
}

func (u *unrouted) remove(s *mainStream) {
	u.mu.Lock()
	defer u.mu.Unlock()
	n := s.m.name()
	if at, ok := u.m[n]; ok && (at == s || at == nil) {
		delete(u.m, n)
	}
}

func (u *unrouted) find(requestID, attempt string) *mainStream {
	i, err := strconv.Atoi(attempt)
	if err != nil {
		return nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.m[attemptName{requestID, i}]
}
