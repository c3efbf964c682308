package overlap

import (
	"sync/atomic"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

const (
	// heardSlots is how many blocks are remembered of what other replicas have routed. Newer
	// ones take the place of older ones.
	heardSlots = 1 << 16
	// heardMost bounds the blocks that are remembered of one prompt.
	heardMost = 4096
)

// heard remembers which blocks were last routed to a rank by another replica. It takes
// memory once one is heard. Safe for concurrent use.
type heard struct {
	slots atomic.Pointer[[heardSlots]atomic.Uint32]
}

// each calls f with the place and the mark of each block of a chain on the rank.
func (h *heard) each(r worker.Rank, chain []kvindex.LocalHash, f func(i int, slot *atomic.Uint32, mark uint32)) {
	slots := h.slots.Load()
	if slots == nil {
		return
	}
	x := uint64(r.ID)<<8 ^ uint64(r.DPRank)
	for i, b := range chain[:min(len(chain), heardMost)] {
		x = (x ^ uint64(b)) * 0x9e3779b97f4a7c15
		x ^= x >> 32
		f(i, &slots[x%heardSlots], uint32(x>>32)|1)
	}
}

// note remembers the chain as another replica's, or forgets it since it is this one's.
func (h *heard) note(r worker.Rank, chain []kvindex.LocalHash, others bool) {
	if others && h.slots.Load() == nil {
		h.slots.CompareAndSwap(nil, new([heardSlots]atomic.Uint32))
	}
	h.each(r, chain, func(_ int, slot *atomic.Uint32, mark uint32) {
		if others {
			slot.Store(mark)
		} else {
			slot.CompareAndSwap(mark, 0)
		}
	})
}

// OfOthers returns of which of the chain's blocks, from the one at the position from on,
// another replica was the last to tell that they were routed to the rank: their number.
// It is to be asked before the prompt is noted.
func (r *Routes) OfOthers(rank worker.Rank, chain []kvindex.LocalHash, from int) (n int) {
	r.heard.each(rank, chain, func(i int, slot *atomic.Uint32, mark uint32) {
		if i >= from && slot.Load() == mark {
			n++
		}
	})
	return n
}
