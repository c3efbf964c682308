package kvindex

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// RoutedConfig configures a [Routed]. The zero value is the documented default.
type RoutedConfig struct {
	// TTL is how long a routed block is believed to be held. Default 120 s.
	// Higher keeps long conversations warm; too high believes in evicted blocks.
	TTL time.Duration
	// MaxBlocks bounds the entries of all ranks together, least recently routed
	// first out. Default 500,000; an entry costs about 120 bytes.
	MaxBlocks int
}

func (c RoutedConfig) withDefaults() RoutedConfig {
	if c.TTL == 0 {
		c.TTL = 120 * time.Second
	}
	if c.MaxBlocks == 0 {
		c.MaxBlocks = 500_000
	}
	return c
}

// Validate returns every fault of the configuration, joined, or nil.
func (c RoutedConfig) Validate() error {
	var errs []error
	if c.TTL < 0 {
		errs = append(errs, fmt.Errorf("kvindex: routed TTL %s: expected above 0", c.TTL))
	}
	if c.MaxBlocks < 0 {
		errs = append(errs, fmt.Errorf("kvindex: routed max blocks %d: expected above 0", c.MaxBlocks))
	}
	return errors.Join(errs...)
}

// Routed is the approximate index: what the plugin itself has routed to each
// rank in the last while. It sees no eviction, no restart and no traffic of
// others, so its answer is an estimate. Safe for concurrent use.
//
// A rank has a slot here from its first Record until its last entry is gone or
// it is detached.
type Routed struct {
	cfg   RoutedConfig // read-only
	slots *Slots

	// mu guards all below. Taken before Slots.mu, never after it.
	mu      sync.RWMutex
	ranks   map[worker.Rank]*routedRank
	holders holders
	entries []routedEntry // entries[0] is the list's head: next newest, prev oldest. Invariant: I7
	free    []int32
	used    int
}

type routedRank struct {
	rank    worker.Rank
	slot    Slot
	entries map[SequenceHash]int32
}

type routedEntry struct {
	rank       *routedRank
	seq        SequenceHash
	at         time.Time
	prev, next int32
}

// NewRouted returns an empty index that numbers its ranks with slots.
func NewRouted(cfg RoutedConfig, slots *Slots) (*Routed, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Routed{
		cfg:     cfg.withDefaults(),
		slots:   slots,
		ranks:   make(map[worker.Rank]*routedRank),
		holders: make(holders),
		entries: make([]routedEntry, 1),
	}, nil
}

// Record notes that a request with the chain was sent to the rank at now.
func (r *Routed) Record(rank worker.Rank, chain []LocalHash, now time.Time) {
	if len(chain) == 0 {
		return
	}
	// A chain longer than the budget keeps its head: a tail without one
	// answers nothing.
	if len(chain) > r.cfg.MaxBlocks {
		chain = chain[:r.cfg.MaxBlocks]
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	// NB: callers read the clock before they take the lock, so now may be a
	// little before the newest entry; the list must stay ordered.
	if newest := r.entries[0].next; newest != 0 && now.Before(r.entries[newest].at) {
		now = r.entries[newest].at
	}
	r.expireLocked(now)
	rr := r.ranks[rank]
	if rr == nil {
		rr = &routedRank{rank: rank, slot: r.slots.acquire(rank), entries: make(map[SequenceHash]int32)}
		r.ranks[rank] = rr
	}
	// The chain is linked behind one mark, each block behind its parent, so
	// that the first block is the newest and goes last.
	after := int32(0)
	var q SequenceHash
	for i, l := range chain {
		q = nextSequence(q, i > 0, l)
		e, ok := rr.entries[q]
		if ok {
			r.unlinkLocked(e)
		} else {
			e = r.newLocked(rr, q)
		}
		r.entries[e].at = now
		r.linkAfterLocked(e, after)
		after = e
	}
	for r.used > r.cfg.MaxBlocks {
		r.dropLocked(r.entries[0].prev)
	}
}

// Overlap writes to dst how many leading blocks of chain were routed to each
// rank within the TTL before now. It allocates nothing once dst is large
// enough.
func (r *Routed) Overlap(chain []LocalHash, dst *Overlap, now time.Time) {
	r.mu.RLock()
	if r.staleLocked(now) {
		r.mu.RUnlock()
		r.mu.Lock()
		r.expireLocked(now)
		r.mu.Unlock()
		r.mu.RLock()
	}
	r.holders.overlap(chain, r.slots.Len(), dst)
	r.mu.RUnlock()
}

// Detach forgets all that was routed to the rank.
func (r *Routed) Detach(rank worker.Rank) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rr := r.ranks[rank]; rr != nil {
		for _, e := range rr.entries {
			r.dropLocked(e)
		}
	}
}

// Blocks returns the number of entries of the rank, expired ones included that
// nothing has swept yet.
func (r *Routed) Blocks(rank worker.Rank) int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if rr := r.ranks[rank]; rr != nil {
		return len(rr.entries)
	}
	return 0
}

func (r *Routed) staleLocked(now time.Time) bool {
	oldest := r.entries[0].prev
	return oldest != 0 && now.Sub(r.entries[oldest].at) >= r.cfg.TTL
}

func (r *Routed) expireLocked(now time.Time) {
	for r.staleLocked(now) {
		r.dropLocked(r.entries[0].prev)
	}
}

func (r *Routed) newLocked(rr *routedRank, q SequenceHash) int32 {
	var e int32
	if n := len(r.free); n > 0 {
		e, r.free = r.free[n-1], r.free[:n-1]
	} else {
		e = int32(len(r.entries))
		r.entries = append(r.entries, routedEntry{})
	}
	r.entries[e] = routedEntry{rank: rr, seq: q}
	rr.entries[q] = e
	r.holders.add(q, rr.slot)
	r.used++
	return e
}

func (r *Routed) dropLocked(e int32) {
	r.unlinkLocked(e)
	rr, q := r.entries[e].rank, r.entries[e].seq
	r.entries[e] = routedEntry{}
	r.free = append(r.free, e)
	r.used--
	r.holders.drop(q, rr.slot)
	delete(rr.entries, q)
	if len(rr.entries) == 0 {
		delete(r.ranks, rr.rank)
		r.slots.release(rr.slot)
	}
}

func (r *Routed) unlinkLocked(e int32) {
	p, n := r.entries[e].prev, r.entries[e].next
	r.entries[p].next, r.entries[n].prev = n, p
}

// linkAfterLocked puts e behind the entry at, towards the oldest; 0 is the
// front.
func (r *Routed) linkAfterLocked(e, at int32) {
	n := r.entries[at].next
	r.entries[e].prev, r.entries[e].next = at, n
	r.entries[at].next, r.entries[n].prev = e, e
}

// Check returns the first broken invariant (I1, I4, I5, I7) or nil.
func (r *Routed) Check() error {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if err := r.slots.check(); err != nil {
		return err
	}
	n, bits := 0, 0
	for e, last := r.entries[0].next, int32(0); e != 0; e, last = r.entries[e].next, e {
		x := r.entries[e]
		if last != 0 && x.at.After(r.entries[last].at) {
			return fmt.Errorf("kvindex: I7: entry %d is newer than the one before it", e)
		}
		if x.prev != last || x.rank.entries[x.seq] != e || r.ranks[x.rank.rank] != x.rank {
			return fmt.Errorf("kvindex: I7: entry %d is linked wrongly", e)
		}
		if !r.holders[x.seq].has(x.rank.slot) {
			return fmt.Errorf("kvindex: I4: rank %s sequence %x: bit is not set", x.rank.rank, x.seq)
		}
		n++
	}
	for _, set := range r.holders {
		bits += set.count()
	}
	if n != r.used || n > r.cfg.MaxBlocks || bits != n {
		return fmt.Errorf("kvindex: I7: %d entries listed, %d used, %d bits, budget %d", n, r.used, bits, r.cfg.MaxBlocks)
	}
	return nil
}
