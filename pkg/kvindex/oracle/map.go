package oracle

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Map implements [kvindex.Index], apart from Copy, Reserve, Removals and Kept, which
// panic. Safe for concurrent use: readers share the lock; a writer holds it for one call.
type Map struct {
	kvindex.Index // nil

	route kvindex.RouteConfig // read-only

	// mu guards the fields below.
	mu      sync.RWMutex
	slots   Numbers
	ranks   map[worker.Rank]*rankBlocks
	holders holders // by the slots of all views. Invariant: I4, I5

	// Scratch of Store, guarded by mu.
	seqs []sequenceHash
	seen map[kvindex.EngineHash]struct{}

	epoch     time.Time     // the first time that a caller has told
	now       time.Duration // the latest one, counted from the first
	seq       uint64        // counts calls of Route
	strangers int           // ranks that are known but not attached
	tooMany   int           // as many strangers make adoptLocked look for those with nothing left
}

// rankBlocks is the state of one rank.
type rankBlocks struct {
	rank   worker.Rank
	slot   kvindex.Slot
	blocks map[kvindex.EngineHash]heldBlock
	views  [numViews]mapView
	stats  kvindex.Stats // Invariant: I6

	attached bool // false: only Route has named the rank
	sent     map[sequenceHash]*mapSending
}

// mapView counts how many blocks of the rank have each sequence hash and are in the
// view.
type mapView struct {
	slot   kvindex.Slot
	counts map[sequenceHash]uint32 // nil: the rank has not needed the view. Invariant: I3
}

type heldBlock struct {
	seq   sequenceHash
	tiers uint8 // bit per Tier. Invariant: I2, never 0
}

var _ kvindex.Index = (*Map)(nil)

// New returns an empty Map. Every field of the limits must be set, unless nothing is
// routed.
func New(c kvindex.RouteConfig) *Map {
	return &Map{
		route: c, tooMany: minStrangers,
		slots:   newNumbers(),
		ranks:   make(map[worker.Rank]*rankBlocks),
		holders: make(holders),
		seen:    make(map[kvindex.EngineHash]struct{}),
	}
}

// Numbers returns the slots of the ranks. They change with the Map.
func (m *Map) Numbers() *Numbers { return &m.slots }

// Attach implements [kvindex.Index].
func (m *Map) Attach(r worker.Rank) kvindex.Slot {
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

func (m *Map) newRankLocked(r worker.Rank) *rankBlocks {
	rb := &rankBlocks{
		rank:   r,
		slot:   m.slots.acquire(r),
		blocks: make(map[kvindex.EngineHash]heldBlock),
		sent:   make(map[sequenceHash]*mapSending),
	}
	rb.views[kvindex.OnDevice] = mapView{rb.slot, make(map[sequenceHash]uint32)}
	m.ranks[r] = rb
	return rb
}

// rankLocked returns an attached rank, or nil if r is not attached.
func (m *Map) rankLocked(r worker.Rank) *rankBlocks {
	if rb := m.ranks[r]; rb != nil && rb.attached {
		return rb
	}
	return nil
}

// Detach implements [kvindex.Index].
func (m *Map) Detach(r worker.Rank) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if rb := m.ranks[r]; rb != nil {
		m.loseLocked(rb)
	}
}

func (m *Map) loseLocked(rb *rankBlocks) {
	m.clearLocked(rb)
	delete(m.ranks, rb.rank)
	m.slots.release(rb.rank)
	if !rb.attached {
		m.strangers--
	}
}

// Slot implements [kvindex.Index].
func (m *Map) Slot(r worker.Rank) (kvindex.Slot, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	rb := m.rankLocked(r)
	if rb == nil {
		return 0, false
	}
	return rb.slot, true
}

// Store implements [kvindex.Index].
func (m *Map) Store(r worker.Rank, e kvindex.Stored) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	rb := m.rankLocked(r)
	if rb == nil {
		return kvindex.ErrUnknownRank
	}
	var parent sequenceHash
	if e.HasParent {
		p, ok := rb.blocks[e.Parent]
		if !ok {
			rb.stats.UnknownParents++
			return kvindex.ErrUnknownParent
		}
		parent = p.seq
	}
	if !m.planLocked(rb, parent, e) {
		rb.stats.Conflicts++
		return kvindex.ErrConflict
	}
	for i, b := range e.Blocks {
		m.addLocked(rb, b.Engine, m.seqs[i], e.Tier)
	}
	return nil
}

// planLocked computes the sequence hashes of the event's blocks into m.seqs. It returns
// false if an engine hash of the event already names another block of the rank, or
// occurs twice in the event.
func (m *Map) planLocked(rb *rankBlocks, parent sequenceHash, e kvindex.Stored) bool {
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

func (m *Map) addLocked(rb *rankBlocks, h kvindex.EngineHash, q sequenceHash, t kvindex.Tier) {
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
func (m *Map) seeLocked(rb *rankBlocks, t kvindex.Tier) {
	v := kvindex.View(t) // the narrowest one in which blocks of the tier count
	if rb.views[v].counts != nil {
		return
	}
	rb.views[v] = mapView{m.slots.needView(rb.slot, v), make(map[sequenceHash]uint32)}
	for _, b := range rb.blocks {
		if b.tiers&tiersOf[v] != 0 {
			m.holders.count(&rb.views[v], b.seq)
		}
	}
}

// recountLocked changes the counts of the views when the tiers of a block change.
func (m *Map) recountLocked(rb *rankBlocks, q sequenceHash, was, is uint8) {
	for v := range toldViews {
		w := &rb.views[v]
		switch counted, counts := was&tiersOf[v] != 0, is&tiersOf[v] != 0; {
		case w.counts == nil || counted == counts:
		case counts:
			m.holders.count(w, q)
		default:
			w.counts[q]--
			if w.counts[q] == 0 {
				delete(w.counts, q)
				m.holders.drop(q, w.slot)
				if v == kvindex.OnDevice {
					m.disproveLocked(rb, q)
				}
			}
		}
	}
}

// count counts one more block in a view.
func (h holders) count(w *mapView, q sequenceHash) {
	w.counts[q]++
	if w.counts[q] == 1 {
		h.add(q, w.slot)
	}
}

// Remove implements [kvindex.Index].
func (m *Map) Remove(r worker.Rank, e kvindex.Removed) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	rb := m.rankLocked(r)
	if rb == nil {
		return kvindex.ErrUnknownRank
	}
	for _, h := range e.Blocks {
		held := rb.blocks[h]
		if held.tiers&(1<<e.Tier) == 0 {
			rb.stats.UnknownRemoves++
			continue
		}
		rb.stats.Removed++
		rb.stats.TierBlocks[e.Tier]--
		was := held.tiers
		held.tiers &^= 1 << e.Tier
		if held.tiers == 0 {
			delete(rb.blocks, h)
			rb.stats.Blocks--
		} else {
			rb.blocks[h] = held
		}
		m.recountLocked(rb, held.seq, was, held.tiers)
	}
	return nil
}

// Clear implements [kvindex.Index].
func (m *Map) Clear(r worker.Rank) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	rb := m.rankLocked(r)
	if rb == nil {
		return kvindex.ErrUnknownRank
	}
	m.clearLocked(rb)
	rb.stats.Clears++
	return nil
}

func (m *Map) clearLocked(rb *rankBlocks) {
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

// Overlap implements [kvindex.Index].
func (m *Map) Overlap(chain []kvindex.LocalHash, dst *kvindex.Overlap) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	m.holders.overlap(chain, m.slots.Len(), dst)
}

// Names returns the engine hashes of a rank, in no order.
func (m *Map) Names(r worker.Rank) []kvindex.EngineHash {
	m.mu.RLock()
	defer m.mu.RUnlock()
	rb := m.rankLocked(r)
	if rb == nil {
		return nil
	}
	return slices.Collect(maps.Keys(rb.blocks))
}

// Clone returns a Map in which the attached ranks hold the same blocks. It has nothing that
// was routed.
func (m *Map) Clone() *Map {
	m.mu.RLock()
	defer m.mu.RUnlock()
	out := New(m.route)
	for r, rb := range m.ranks {
		if !rb.attached {
			continue
		}
		out.Attach(r)
		for h, b := range rb.blocks {
			for tier := range numTiers {
				if b.tiers>>tier&1 != 0 {
					out.addLocked(out.ranks[r], h, b.seq, tier)
				}
			}
		}
	}
	return out
}

// Stats implements [kvindex.Index].
func (m *Map) Stats(r worker.Rank) (kvindex.Stats, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	rb := m.ranks[r]
	if rb == nil {
		return kvindex.Stats{}, false
	}
	return rb.stats, true
}

// minStrangers is how many ranks that are not attached may be there before those with
// nothing left go.
const minStrangers = 64

// tiersOf has for each view that events fill a bit for each tier that counts in the view.
var tiersOf = [toldViews]uint8{
	kvindex.OnDevice:   1 << kvindex.Device,
	kvindex.ToHost:     1<<kvindex.Device | 1<<kvindex.Host,
	kvindex.ToDisk:     1<<kvindex.Device | 1<<kvindex.Host | 1<<kvindex.Disk,
	kvindex.OnExternal: 1 << kvindex.External,
}
