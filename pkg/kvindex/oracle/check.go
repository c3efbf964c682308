package oracle

import (
	"fmt"
	"maps"
	"math/bits"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Check walks the whole Map and returns an error that names the first invariant that does
// not hold, or nil.
func (m *Map) Check() error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if err := m.slots.check(); err != nil {
		return err
	}
	bySlot, err := m.checkRanks()
	if err != nil {
		return err
	}
	return m.holders.check(bySlot)
}

// checkRanks checks each rank, and returns what each slot counts.
func (m *Map) checkRanks() (map[kvindex.Slot]map[sequenceHash]uint32, error) {
	bySlot := make(map[kvindex.Slot]map[sequenceHash]uint32)
	blocks, strangers := 0, 0
	for r, rb := range m.ranks {
		if s, ok := m.slots.Slot(r); !ok || s != rb.slot {
			return nil, fmt.Errorf("oracle: I1: rank %s has slot %d here and slot %d (%t) in the table", r, rb.slot, s, ok)
		}
		blocks += rb.stats.Routed
		if !rb.attached {
			strangers++
		}
		for v := range numViews {
			w := rb.views[v]
			if w.counts == nil {
				continue
			}
			if s, ok := m.slots.View(rb.slot, v); !ok || s != w.slot {
				return nil, fmt.Errorf("oracle: I1: rank %s counts view %d at slot %d, which is at %d (%t)", r, v, w.slot, s, ok)
			}
			bySlot[w.slot] = w.counts
		}
		if err := rb.check(r, m.holders); err != nil {
			return nil, err
		}
	}
	if strangers != m.strangers || blocks > m.route.MaxBlocks {
		return nil, fmt.Errorf("oracle: I7: %d ranks are not attached, counted %d; %d routed blocks, budget %d", strangers, m.strangers, blocks, m.route.MaxBlocks)
	}
	return bySlot, nil
}

// check checks that a sequence has the bits of those slots that count it.
func (h holders) check(bySlot map[kvindex.Slot]map[sequenceHash]uint32) error {
	for q, set := range h {
		if set.count() == 0 {
			return fmt.Errorf("oracle: I5: sequence %x has no holder", q)
		}
		for i, w := range set {
			for ; w != 0; w &= w - 1 {
				s := kvindex.Slot(i*64 + bits.TrailingZeros64(w))
				counts := bySlot[s]
				if counts == nil {
					return fmt.Errorf("oracle: I5: sequence %x is held by slot %d, which has no rank", q, s)
				}
				if counts[q] == 0 {
					return fmt.Errorf("oracle: I4: sequence %x has the bit of slot %d, whose rank does not hold it", q, s)
				}
			}
		}
	}
	return nil
}

func (rb *rankBlocks) check(r worker.Rank, h holders) error {
	var tiers [numTiers]int
	for e, b := range rb.blocks {
		if b.tiers == 0 || b.tiers >= 1<<numTiers {
			return fmt.Errorf("oracle: I2: rank %s block %x: tiers %b", r, e, b.tiers)
		}
		for t := range numTiers {
			if b.tiers>>t&1 != 0 {
				tiers[t]++
			}
		}
	}
	if tiers != rb.stats.TierBlocks || len(rb.blocks) != rb.stats.Blocks {
		return fmt.Errorf("oracle: I6: rank %s: counted %v of %d blocks, kept %v of %d",
			r, tiers, len(rb.blocks), rb.stats.TierBlocks, rb.stats.Blocks)
	}
	for v := range toldViews {
		if err := rb.checkView(r, v, h); err != nil {
			return err
		}
	}
	counts := make(map[sequenceHash]uint32)
	for leaf, s := range rb.sent {
		if leaf != s.path[len(s.path)-1] {
			return fmt.Errorf("oracle: I7: rank %s: a sending that ends at %x is kept at %x", r, s.path[len(s.path)-1], leaf)
		}
		for _, q := range s.path {
			counts[q]++
		}
	}
	if len(counts) != rb.stats.Routed {
		return fmt.Errorf("oracle: I7: rank %s: counted %d routed blocks, kept %d", r, len(counts), rb.stats.Routed)
	}
	return rb.compareView(r, kvindex.Routed, counts, h)
}

func (rb *rankBlocks) checkView(r worker.Rank, v kvindex.View, h holders) error {
	counts := make(map[sequenceHash]uint32)
	for _, b := range rb.blocks {
		if b.tiers&tiersOf[v] != 0 {
			counts[b.seq]++
		}
	}
	if rb.views[v].counts == nil {
		if tier := kvindex.Tier(v); rb.stats.TierBlocks[tier] > 0 {
			return fmt.Errorf("oracle: I4: rank %s has blocks on tier %s, which no view counts", r, tier)
		}
		return nil
	}
	return rb.compareView(r, v, counts, h)
}

func (rb *rankBlocks) compareView(r worker.Rank, v kvindex.View, counts map[sequenceHash]uint32, h holders) error {
	w := rb.views[v]
	if !maps.Equal(counts, w.counts) {
		return fmt.Errorf("oracle: I3: rank %s view %d: counted %v, kept %v", r, v, counts, w.counts)
	}
	for q := range counts {
		if !h[q].has(w.slot) {
			return fmt.Errorf("oracle: I4: rank %s view %d sequence %x: bit of slot %d is not set", r, v, q, w.slot)
		}
	}
	return nil
}
