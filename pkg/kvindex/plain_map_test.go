package kvindex

import (
	"sync"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// plainMap is a plain implementation of [Index], but for Copy and Reserve: Go maps behind
// one RWMutex. It is simple enough to be obviously correct, so tests compare [Tree] with it.
// Readers share the lock; a writer holds it for one event.
type plainMap struct {
	Index // nil

	slots *Slots
	route RouteConfig // read-only

	// mu guards the fields below. It is taken before Slots.mu, never after it.
	mu      sync.RWMutex
	ranks   map[worker.Rank]*rankBlocks
	holders holderSets // by the slots of all views. Invariant: I4, I5

	// Scratch of Store, guarded by mu.
	seqs []sequenceHash
	seen map[EngineHash]struct{}

	time      timeline
	seq       uint64 // counts calls of Route
	strangers int    // ranks that are known but not attached
	tooMany   int    // as many strangers make adoptLocked look for those with nothing left
}

// rankBlocks is the state of one rank.
type rankBlocks struct {
	rank   worker.Rank
	slot   Slot
	blocks map[EngineHash]heldBlock
	views  [numViews]mapView
	stats  Stats // Invariant: I6

	attached bool // false: only Route has named the rank
	sent     map[sequenceHash]*mapSending
}

// mapView counts how many blocks of the rank have each sequence hash and are in the
// view.
type mapView struct {
	slot   Slot
	counts map[sequenceHash]uint32 // nil: the rank has not needed the view. Invariant: I3
}

type heldBlock struct {
	seq   sequenceHash
	tiers uint8 // bit per Tier. Invariant: I2, never 0
}

var _ Index = (*plainMap)(nil)

func newPlainMap(slots *Slots) *plainMap { return newPlainMapOf(slots, RouteConfig{}) }

func newPlainMapOf(slots *Slots, c RouteConfig) *plainMap {
	return &plainMap{
		route: c.withDefaults(), tooMany: minStrangers,
		slots:   slots,
		ranks:   make(map[worker.Rank]*rankBlocks),
		holders: make(holderSets),
		seen:    make(map[EngineHash]struct{}),
	}
}

// Attach implements [Index].
func (m *plainMap) Attach(r worker.Rank) Slot {
	m.mu.Lock()
	defer m.mu.Unlock()
	rb := m.ranks[r]
	if rb == nil {
		rb = m.newRankLocked(r)
	} else if !rb.attached {
		m.strangers--
	}
	rb.attached = true
	return rb.slot
}

func (m *plainMap) newRankLocked(r worker.Rank) *rankBlocks {
	rb := &rankBlocks{
		rank:   r,
		slot:   m.slots.acquire(r),
		blocks: make(map[EngineHash]heldBlock),
		sent:   make(map[sequenceHash]*mapSending),
	}
	rb.views[OnDevice] = mapView{rb.slot, make(map[sequenceHash]uint32)}
	m.ranks[r] = rb
	return rb
}

// rankLocked returns an attached rank, or nil if r is not attached.
func (m *plainMap) rankLocked(r worker.Rank) *rankBlocks {
	if rb := m.ranks[r]; rb != nil && rb.attached {
		return rb
	}
	return nil
}

// Detach implements [Index].
func (m *plainMap) Detach(r worker.Rank) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if rb := m.ranks[r]; rb != nil {
		m.loseLocked(rb)
	}
}

func (m *plainMap) loseLocked(rb *rankBlocks) {
	m.clearLocked(rb)
	delete(m.ranks, rb.rank)
	m.slots.release(rb.slot)
	if !rb.attached {
		m.strangers--
	}
}

// Slot implements [Index].
func (m *plainMap) Slot(r worker.Rank) (Slot, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	rb := m.rankLocked(r)
	if rb == nil {
		return 0, false
	}
	return rb.slot, true
}

// Store implements [Index].
func (m *plainMap) Store(r worker.Rank, e Stored) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	rb := m.rankLocked(r)
	if rb == nil {
		return ErrUnknownRank
	}
	var parent sequenceHash
	if e.HasParent {
		p, ok := rb.blocks[e.Parent]
		if !ok {
			rb.stats.UnknownParents++
			return ErrUnknownParent
		}
		parent = p.seq
	}
	if !m.planLocked(rb, parent, e) {
		rb.stats.Conflicts++
		return ErrConflict
	}
	for i, b := range e.Blocks {
		m.addLocked(rb, b.Engine, m.seqs[i], e.Tier)
	}
	return nil
}

// planLocked computes the sequence hashes of the event's blocks into m.seqs. It returns
// false if an engine hash of the event already names another block of the rank, or
// occurs twice in the event.
func (m *plainMap) planLocked(rb *rankBlocks, parent sequenceHash, e Stored) bool {
	m.seqs = m.seqs[:0]
	clear(m.seen)
	if e.HasParent {
		m.seen[e.Parent] = struct{}{}
	}
	q := parent
	for i, b := range e.Blocks {
		q = nextSequence(q, e.HasParent || i > 0, b.Local)
		m.seqs = append(m.seqs, q)
		if _, twice := m.seen[b.Engine]; twice {
			return false
		}
		m.seen[b.Engine] = struct{}{}
		if held, ok := rb.blocks[b.Engine]; ok && held.seq != q {
			return false
		}
	}
	return true
}

func (m *plainMap) addLocked(rb *rankBlocks, h EngineHash, q sequenceHash, t Tier) {
	m.seeLocked(rb, t)
	held := rb.blocks[h]
	if held.tiers&(1<<t) != 0 {
		rb.stats.Duplicates++
		return
	}
	if held.tiers == 0 {
		rb.stats.Blocks++
	}
	now := heldBlock{seq: q, tiers: held.tiers | 1<<t}
	rb.blocks[h] = now
	rb.stats.TierBlocks[t]++
	rb.stats.Stored++
	m.recountLocked(rb, q, held.tiers, now.tiers)
}

// seeLocked adds and fills the view that blocks on the tier need, if the rank does not
// have it.
func (m *plainMap) seeLocked(rb *rankBlocks, t Tier) {
	v := viewOf(t)
	if rb.views[v].counts != nil {
		return
	}
	rb.views[v] = mapView{m.slots.needView(rb.slot, v), make(map[sequenceHash]uint32)}
	for _, b := range rb.blocks {
		if b.tiers&tiersOf[v] != 0 {
			m.countLocked(&rb.views[v], b.seq)
		}
	}
}

// recountLocked changes the counts of the views when the tiers of a block change.
func (m *plainMap) recountLocked(rb *rankBlocks, q sequenceHash, was, is uint8) {
	for v := range toldViews {
		w := &rb.views[v]
		switch counted, counts := was&tiersOf[v] != 0, is&tiersOf[v] != 0; {
		case w.counts == nil || counted == counts:
		case counts:
			m.countLocked(w, q)
		default:
			if w.counts[q]--; w.counts[q] == 0 {
				delete(w.counts, q)
				m.holders.drop(q, w.slot)
				if v == OnDevice {
					m.disproveLocked(rb, q)
				}
			}
		}
	}
}

func (m *plainMap) countLocked(w *mapView, q sequenceHash) {
	if w.counts[q]++; w.counts[q] == 1 {
		m.holders.add(q, w.slot)
	}
}

// Remove implements [Index].
func (m *plainMap) Remove(r worker.Rank, e Removed) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	rb := m.rankLocked(r)
	if rb == nil {
		return ErrUnknownRank
	}
	for _, h := range e.Blocks {
		m.takeLocked(rb, h, e.Tier)
	}
	return nil
}

func (m *plainMap) takeLocked(rb *rankBlocks, h EngineHash, t Tier) {
	held := rb.blocks[h]
	if held.tiers&(1<<t) == 0 {
		rb.stats.UnknownRemoves++
		return
	}
	rb.stats.Removed++
	rb.stats.TierBlocks[t]--
	was := held.tiers
	if held.tiers &^= 1 << t; held.tiers == 0 {
		delete(rb.blocks, h)
		rb.stats.Blocks--
	} else {
		rb.blocks[h] = held
	}
	m.recountLocked(rb, held.seq, was, held.tiers)
}

// Clear implements [Index].
func (m *plainMap) Clear(r worker.Rank) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	rb := m.rankLocked(r)
	if rb == nil {
		return ErrUnknownRank
	}
	m.clearLocked(rb)
	rb.stats.Clears++
	return nil
}

func (m *plainMap) clearLocked(rb *rankBlocks) {
	for v := range toldViews {
		for q := range rb.views[v].counts {
			m.holders.drop(q, rb.views[v].slot)
		}
		clear(rb.views[v].counts)
	}
	clear(rb.blocks)
	for leaf := range rb.sent {
		m.endLocked(rb, leaf)
	}
	rb.stats.Blocks = 0
	rb.stats.TierBlocks = [numTiers]int{}
}

// Overlap implements [Index].
func (m *plainMap) Overlap(chain []LocalHash, dst *Overlap) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	m.holders.overlap(chain, m.slots.Len(), dst)
}

// Stats implements [Index].
func (m *plainMap) Stats(r worker.Rank) (Stats, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	rb := m.ranks[r]
	if rb == nil {
		return Stats{}, false
	}
	return rb.stats, true
}
