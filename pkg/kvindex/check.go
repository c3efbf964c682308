package kvindex

import (
	"fmt"
	"math/bits"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Check implements [Index].
func (m *Map) Check() error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if err := m.slots.check(); err != nil {
		return err
	}
	bySlot := make(map[Slot]*rankBlocks, len(m.ranks))
	for r, rb := range m.ranks {
		if s, ok := m.slots.Slot(r); !ok || s != rb.slot {
			return fmt.Errorf("kvindex: I1: rank %s has slot %d here and slot %d (%t) in the table", r, rb.slot, s, ok)
		}
		bySlot[rb.slot] = rb
		if err := rb.check(r, m.holders); err != nil {
			return err
		}
	}
	for q, set := range m.holders {
		if set.count() == 0 {
			return fmt.Errorf("kvindex: I5: sequence %x has no holder", q)
		}
		for i, w := range set {
			for ; w != 0; w &= w - 1 {
				s := Slot(i*64 + bits.TrailingZeros64(w))
				rb := bySlot[s]
				if rb == nil {
					return fmt.Errorf("kvindex: I5: sequence %x is held by slot %d, which has no rank", q, s)
				}
				if rb.device[q] == 0 {
					return fmt.Errorf("kvindex: I4: sequence %x has the bit of slot %d, whose rank does not hold it", q, s)
				}
			}
		}
	}
	return nil
}

func (rb *rankBlocks) check(r worker.Rank, h holders) error {
	var tiers [numTiers]int
	device := make(map[SequenceHash]uint32, len(rb.device))
	for e, b := range rb.blocks {
		if b.tiers == 0 || b.tiers >= 1<<numTiers {
			return fmt.Errorf("kvindex: I2: rank %s block %x: tiers %b", r, e, b.tiers)
		}
		for t := range numTiers {
			if b.tiers>>t&1 != 0 {
				tiers[t]++
			}
		}
		if b.tiers&(1<<Device) != 0 {
			device[b.seq]++
		}
	}
	for q, n := range device {
		if rb.device[q] != n {
			return fmt.Errorf("kvindex: I3: rank %s sequence %x: counted %d, kept %d", r, q, n, rb.device[q])
		}
		if !h[q].has(rb.slot) {
			return fmt.Errorf("kvindex: I4: rank %s sequence %x: bit of slot %d is not set", r, q, rb.slot)
		}
	}
	if len(device) != len(rb.device) {
		return fmt.Errorf("kvindex: I3: rank %s keeps counts of %d sequences, has %d", r, len(rb.device), len(device))
	}
	if tiers != rb.stats.TierBlocks || len(rb.blocks) != rb.stats.Blocks {
		return fmt.Errorf("kvindex: I6: rank %s: counted %v of %d blocks, kept %v of %d",
			r, tiers, len(rb.blocks), rb.stats.TierBlocks, rb.stats.Blocks)
	}
	return nil
}
