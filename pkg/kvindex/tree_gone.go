package kvindex

import "github.com/seed-60ae5743/baton/pkg/worker"

// goneSlots is how many numbers a rank has for the blocks that left it. Two blocks may have
// one number, and then both count as gone: what is said to be kept has never left.
const goneSlots = 1 << 12

// gone says of a rank's blocks when they last left Device, counted in ledger.removals.
type gone struct {
	at  []uint32 // by block; 0: never. nil: no block has left
	all uint32   // when all blocks left at once
}

func (g *gone) note(b LocalHash, now uint32) {
	if g.at == nil {
		g.at = make([]uint32, goneSlots)
	}
	g.at[b%goneSlots] = now
}

// since reports whether the block has left after that count.
func (g *gone) since(b LocalHash, count uint32) bool {
	after := func(at uint32) bool { return at != 0 && int32(at-count) > 0 }
	return after(g.all) || g.at != nil && after(g.at[b%goneSlots])
}

// Removals implements [Index].
func (t *Tree) Removals() uint64 { return t.ledger.removals.Load() }

// Kept implements [Index].
func (t *Tree) Kept(r worker.Rank, chain []LocalHash, since uint64) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	rk := t.ranks.all[r]
	if rk == nil {
		return 0
	}
	for i, b := range chain {
		if rk.gone.since(b, uint32(since)) {
			return i
		}
	}
	return len(chain)
}
