package extproc

import (
	"strconv"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/recent"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

const registryShards = 64

// registry finds the main leg of an attempt by its nonce. It holds an attempt
// from its booking until both of its legs are over. Safe for concurrent use.
type registry struct {
	shards [registryShards]struct {
		mu sync.RWMutex // guards m
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

// lostBefore returns how many workers the request of q has lost, with that of the attempt
// before q's, and that worker; ID 0: it is not known. It is asked if Envoy has begun q's attempt
// by itself, since the answer of the one before broke off; what Envoy's access log says of that
// one may come later.
func (r *registry) lostBefore(q *leg.Request) (n int, by worker.Rank) {
	for _, s := range r.all() {
		if of := s.m.Request(); of.Attempt == q.Attempt-1 && of.Headers.Start == q.Headers.Start && of.Headers.RequestID == q.Headers.RequestID {
			return int(s.decided.losing.Load()), s.decided.ranks()[1]
		}
	}
	return 0, worker.Rank{}
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

// at lists the attempts whose prefill leg runs at the replica.
func (r *registry) at(at carrier) (out []*mainStream) {
	for _, s := range r.all() {
		if s.far.at() == at {
			out = append(out, s)
		}
	}
	return out
}

// gone tells each attempt that has one of these workers that the worker has left discovery. Those
// that have moved serve what they have.
func (r *registry) gone(ids, moved []worker.ID) {
	left := make(map[worker.ID]bool, len(ids))
	for _, id := range ids {
		left[id] = true
	}
	for _, id := range moved {
		delete(left, id)
	}
	r.tell(leg.Event{Kind: leg.EventGone, Whole: true, Left: true}, func(x worker.Rank) bool { return left[x.ID] })
}

// away tells each attempt that has the rank that it was set aside, or is silent. If ownPort
// is false, the ranks of the worker share a port, and each attempt that has any of them is
// told.
func (r *registry) away(kind leg.EventKind, rank worker.Rank, ownPort bool) {
	r.tell(leg.Event{Kind: kind, Whole: !ownPort}, func(x worker.Rank) bool { return x.In(rank, !ownPort) })
}

// tell posts the event to each attempt, once for each of its ranks for which the given
// function returns true.
func (r *registry) tell(ev leg.Event, of func(worker.Rank) bool) {
	for _, s := range r.all() {
		for _, rank := range s.decided.ranks() {
			if of(rank) {
				e := ev
				e.Rank = rank
				s.post(just(e))
			}
		}
	}
}

// attemptName is what Envoy's access log has of an attempt that Envoy did not route. Such an
// attempt has no x-attempt-id, which the plugin sets together with the destination.
type attemptName struct {
	requestID string // bounded
	attempt   int
}

func nameOf(requestID string, attempt int) attemptName {
	return attemptName{bounded(requestID), attempt}
}

// unrouted finds an attempt by its name, from when it comes until it is over: the access log
// of one whose client leaves may come before the plugin sends the hand-off, and then nothing
// comes after. Clients may choose request ids, so several attempts may have the same
// name, and the access log of one must not count for another. So an attempt is found only if
// no other main leg has had the same name since the attempt came, or shortly before. Safe
// for concurrent use.
type unrouted struct {
	mu sync.Mutex              // guards the fields below
	m  map[attemptName]bearers // of the main legs that are here
	// Names of main legs that have left, and whose access log may still come.
	late recent.Map[attemptName, struct{}]
}

// nameWait is longer than an access log takes to come.
const nameWait = 2 * leg.LogWait

// bearers are the main legs that have one name.
type bearers struct {
	n    int
	only *mainStream // nil: several have or had the name
}

func newUnrouted() unrouted {
	return unrouted{m: make(map[attemptName]bearers), late: recent.Map[attemptName, struct{}]{Keep: nameWait}}
}

// come notes that a main leg is here; leave must be called once for it.
func (u *unrouted) come(s *mainStream, n attemptName, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	b := u.m[n]
	b.n++
	_, late := u.late.Get(n, now)
	b.only = nil
	if b.n == 1 && !late {
		b.only = s
	}
	u.m[n] = b
}

// leave removes a main leg. If late is true, an entry of the access log with this name may
// still come for the main leg.
func (u *unrouted) leave(n attemptName, late bool, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	b := u.m[n]
	b.n--
	if b.n > 0 {
		u.m[n] = b
	} else {
		delete(u.m, n)
	}
	if late {
		u.late.Put(n, struct{}{}, now)
	}
}

func (u *unrouted) find(requestID, attempt string) *mainStream {
	i, err := strconv.Atoi(attempt)
	if err != nil {
		return nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.m[nameOf(requestID, i)].only
}
