package health

import (
	"cmp"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// pool holds the entries of one key and role, without draining workers. Keys that exactly
// the same workers serve share one pool.
//
// Invariants: healthy, doubted, aside, returning and judged count the members that are so; sum is the
// sum of their tallies, apart from rounding.
type pool struct {
	// Set at construction, read-only.
	members []*entry
	limit   int // how many may be aside by judgement of requests

	// Written under Tracker.mu, read by anyone.
	healthy   atomic.Int32
	doubted   atomic.Int32
	aside     atomic.Int32 // with those that are probing
	returning atomic.Int32 // of aside: those that are not known to refuse connections

	// Guarded by Tracker.mu.
	judged int // of aside: those set aside by judgement of requests; they count towards limit
	sum    tally
}

type poolKey struct {
	worker.Key
	role worker.Role
}

func (p *pool) count(s State, dead, refused bool, sign int) {
	switch {
	case s == Healthy:
		p.healthy.Add(int32(sign))
	case s == Doubted:
		p.doubted.Add(int32(sign))
	case s.aside():
		p.aside.Add(int32(sign))
		if !dead {
			p.judged += sign
		}
		if !refused {
			p.returning.Add(int32(sign))
		}
	}
}

// layLocked makes the pools of a snapshot.
func (t *Tracker) layLocked(s *worker.Snapshot, known map[worker.ID][]*entry) {
	t.pools = nil
	of, byRole := make(map[*entry][]*pool, len(known)), make(map[poolKey]*pool)
	for _, k := range s.Keys() {
		p := s.Pool(k)
		for role, ws := range map[worker.Role][]*worker.Worker{worker.Prefill: p.Prefill, worker.Decode: p.Decode, worker.Aggregated: p.Aggregated} {
			if len(ws) > 0 {
				byRole[poolKey{k, role}] = t.poolOfLocked(ws, known, of)
			}
		}
	}
	for _, es := range known {
		for _, e := range es {
			pools := of[e]
			for _, p := range pools {
				p.count(e.is(), e.dead, e.refused, 1)
				p.sum = p.sum.plus(e.rate)
			}
			e.pools.Store(&pools)
		}
	}
	t.byRole.Store(&byRole)
}

// poolOfLocked returns the pool of these workers: an existing one with the same members,
// or a new one.
func (t *Tracker) poolOfLocked(ws []*worker.Worker, known map[worker.ID][]*entry, of map[*entry][]*pool) *pool {
	p := &pool{}
	for _, w := range ws {
		p.members = append(p.members, known[w.ID]...)
	}
	p.limit = int(math.Ceil(t.cfg.MaxShare * float64(len(p.members))))
	for _, same := range of[p.members[0]] {
		if slices.Equal(same.members, p.members) {
			return same
		}
	}
	for _, e := range p.members {
		of[e] = append(of[e], p)
	}
	t.pools = append(t.pools, p)
	return p
}

// enforceSharesLocked brings workers back whose pools have shrunk, as long as a pool of
// theirs has more aside than its share. Those with server errors come first, then those
// that were set aside last. Dead workers stay aside. All pools use this one order, so
// that it does not matter which pool is looked at first.
func (t *Tracker) enforceSharesLocked(now time.Time) {
	var back []*entry
	for _, p := range t.pools {
		if !p.overfull() {
			continue
		}
		for _, e := range p.members {
			if e.is().aside() && !e.dead {
				back = append(back, e)
			}
		}
	}
	slices.SortFunc(back, func(a, b *entry) int {
		if x, y := a.reason == ReasonServerErrors, b.reason == ReasonServerErrors; x != y {
			if x {
				return -1
			}
			return 1
		}
		return cmp.Or(b.since.Compare(a.since), a.rank.Compare(b.rank))
	})
	for _, e := range slices.Compact(back) {
		if slices.ContainsFunc(*e.pools.Load(), (*pool).overfull) {
			t.moveLocked(e, Recovering, false, ReasonShare, now)
		}
	}
}

// overfull reports whether more members are aside by judgement than the share allows.
func (p *pool) overfull() bool { return p.judged > p.limit }

// room reports whether e may be set aside by judgement of requests: every pool of it has room,
// and one has another worker in service. A pool that has none keeps e ([entry.standing]).
func (e *entry) room() bool {
	pools := *e.pools.Load()
	mated := len(pools) == 0 // it drains
	for _, p := range pools {
		if p.judged >= p.limit {
			return false
		}
		mated = mated || p.others(e) > 0
	}
	return mated
}

// last reports whether a pool of e has no other worker in service.
func (e *entry) last() bool {
	for _, p := range *e.pools.Load() {
		if p.others(e) == 0 {
			return true
		}
	}
	return false
}

// mated reports whether each pool of e has another worker that is healthy.
func (e *entry) mated() bool {
	own := int32(0)
	if e.is() == Healthy {
		own = 1
	}
	return !slices.ContainsFunc(*e.pools.Load(), func(p *pool) bool { return p.healthy.Load() == own })
}

// others returns how many members are in service, without e.
func (p *pool) others(e *entry) int {
	n := len(p.members) - int(p.aside.Load())
	if !e.is().aside() {
		n--
	}
	return n
}

// oddLocked reports whether a worker with that tally fails more than the others of each
// pool of e.
func (t *Tracker) oddLocked(e *entry, rate tally) bool {
	return t.everyPoolLocked(e, rate.odd)
}

// everyPoolLocked reports whether holds is true for each pool of e, of the tally of its
// other members.
func (t *Tracker) everyPoolLocked(e *entry, holds func(others tally) bool) bool {
	for _, p := range *e.pools.Load() {
		t.touchLocked()
		if !holds(p.sum.less(e.rate)) {
			return false
		}
	}
	return true
}
