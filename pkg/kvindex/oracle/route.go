package oracle

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// mapSending is a prompt that was routed and is still believed to be held.
type mapSending struct {
	path  []sequenceHash // the sequence hashes of its blocks
	until time.Duration
	seq   uint64 // the value of Map.seq at its Route call; a higher one is later
}

// Route implements [kvindex.Index].
func (m *Map) Route(r worker.Rank, chain []kvindex.LocalHash, g kvindex.Guess, now time.Time) (next time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expireLocked(now)
	chain = chain[:min(len(chain), m.route.MaxBlocks)]
	if len(chain) == 0 {
		return m.nextLocked()
	}
	rb := m.ranks[r]
	if rb == nil {
		rb = m.adoptLocked(r)
	}
	if w := &rb.views[kvindex.Routed]; w.counts == nil {
		*w = mapView{m.slots.needView(rb.slot, kvindex.Routed), make(map[sequenceHash]uint32)}
	}
	m.seq++
	s := &mapSending{until: m.now + ttl(m.route, g), seq: m.seq}
	for i, l := range chain {
		var before sequenceHash
		if i > 0 {
			before = s.path[i-1]
		}
		s.path = append(s.path, nextSequence(before, i > 0, l))
	}
	m.sendLocked(rb, s)
	m.fitLocked()
	return m.nextLocked()
}

func ttl(c kvindex.RouteConfig, g kvindex.Guess) time.Duration {
	if g == kvindex.Predicted {
		return c.PredictedTTL
	}
	return c.TTL
}

func (m *Map) adoptLocked(r worker.Rank) *rankBlocks {
	if m.strangers >= m.tooMany {
		for _, rb := range slices.SortedFunc(maps.Values(m.ranks), func(a, b *rankBlocks) int { return cmp.Compare(a.slot, b.slot) }) {
			if !rb.attached && len(rb.sent) == 0 {
				m.loseLocked(rb)
			}
		}
		m.tooMany = max(minStrangers, 2*m.strangers)
	}
	m.strangers++
	return m.newRankLocked(r)
}

// sendLocked adds a sending. If a sending that ends at the same block was routed later,
// it keeps that one instead.
func (m *Map) sendLocked(rb *rankBlocks, s *mapSending) {
	if len(s.path) == 0 {
		return
	}
	leaf := s.path[len(s.path)-1]
	if old := rb.sent[leaf]; old != nil {
		if old.seq > s.seq {
			return
		}
		m.endLocked(rb, leaf)
	}
	rb.sent[leaf] = s
	for _, q := range s.path {
		m.holders.count(&rb.views[kvindex.Routed], q)
	}
	rb.stats.Routed = len(rb.views[kvindex.Routed].counts)
}

func (m *Map) endLocked(rb *rankBlocks, leaf sequenceHash) *mapSending {
	s, w := rb.sent[leaf], &rb.views[kvindex.Routed]
	delete(rb.sent, leaf)
	for _, q := range s.path {
		w.counts[q]--
		if w.counts[q] == 0 {
			delete(w.counts, q)
			m.holders.drop(q, w.slot)
		}
	}
	rb.stats.Routed = len(w.counts)
	return s
}

// fitLocked shortens the sendings that were routed longest ago, from their ends, until
// no more than MaxBlocks blocks are routed.
func (m *Map) fitLocked() {
	for {
		var oldest *mapSending
		var of *rankBlocks
		blocks := 0
		for _, rb := range m.ranks {
			blocks += rb.stats.Routed
			for _, s := range rb.sent {
				if oldest == nil || s.seq < oldest.seq {
					oldest, of = s, rb
				}
			}
		}
		if blocks <= m.route.MaxBlocks {
			return
		}
		m.endLocked(of, oldest.path[len(oldest.path)-1])
		m.sendLocked(of, &mapSending{path: oldest.path[:len(oldest.path)-1], until: oldest.until, seq: oldest.seq})
	}
}

// disproveLocked is called when an event takes a block off Device. It removes the block
// and those that follow it from the view Routed. Of the sendings that have the block,
// the one routed last is shortened to end before it; the others end.
func (m *Map) disproveLocked(rb *rankBlocks, gone sequenceHash) {
	var latest *mapSending
	at := 0
	for leaf, s := range rb.sent {
		i := slices.Index(s.path, gone)
		if i < 0 {
			continue
		}
		m.endLocked(rb, leaf)
		if latest == nil || s.seq > latest.seq {
			latest, at = s, i
		}
	}
	if latest != nil {
		m.sendLocked(rb, &mapSending{path: latest.path[:at], until: latest.until, seq: latest.seq})
	}
}

// Expire implements [kvindex.Index].
func (m *Map) Expire(now time.Time) (next time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expireLocked(now)
	return m.nextLocked()
}

func (m *Map) expireLocked(now time.Time) {
	if m.epoch.IsZero() {
		m.epoch = now
	}
	m.now = max(m.now, now.Sub(m.epoch)) // it never goes back
	for _, rb := range m.ranks {
		for leaf, s := range rb.sent {
			if s.until <= m.now {
				m.endLocked(rb, leaf)
			}
		}
	}
}

func (m *Map) nextLocked() (next time.Time) {
	for _, rb := range m.ranks {
		for _, s := range rb.sent {
			if at := m.epoch.Add(s.until); next.IsZero() || at.Before(next) {
				next = at
			}
		}
	}
	return next
}
