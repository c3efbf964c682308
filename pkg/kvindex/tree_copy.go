package kvindex

import (
	"math/bits"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// copySlice is about how many names and blocks are copied before writers get
// their turn: some tens of microseconds.
const copySlice = 4096

// Copy fills c with what the rank holds. No event of this rank may be given
// until it returns; those of others may, and wait for a slice of it at most.
// What the budget or a Clear takes from the rank meanwhile may be in the copy or
// not. Error: [ErrUnknownRank], also where the rank leaves meanwhile.
func (t *Tree) Copy(r worker.Rank, c *RankCopy) error {
	c.begin(r)
	var err error
	for from, more := uint64(0), true; more; {
		if from, more, err = t.copySome(r, from, c); err != nil {
			return err
		}
	}
	c.settle()
	return nil
}

// copySome copies the names whose mixed hash is from or above, for one slice,
// and returns where the next one begins. Names do not move in that order
// whatever becomes of the table between two slices. A block that has a name now
// had it when the copy began, so its chain has been the same all the time, and
// what was copied of it before is right.
func (t *Tree) copySome(r worker.Rank, from uint64, c *RankCopy) (next uint64, more bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	rk := t.idle(r)
	if from == 0 {
		c.of = rk
	}
	if rk == nil || rk != c.of { // it has left, and may have come back
		return 0, false, ErrUnknownRank
	}
	n := &rk.names
	if len(n.dir) == 0 {
		return 0, false, nil
	}
	for done := len(c.held) + len(c.locals); len(c.held)+len(c.locals)-done < copySlice; {
		seg := t.names.segment(n.at(from))
		for i := range seg {
			b := &seg[i]
			for j, v := range b.val {
				if h := b.key[j]; v != 0 && t.names.mix(h) >= from {
					c.add(h, uint32(v.block()), v.tiers(), t)
				}
			}
		}
		// The next segment is that of the next hashes with other top bits.
		depth := seg[0].over >> depthShift
		width := uint64(1) << (64 - depth)
		var wrapped uint64
		if from, wrapped = bits.Add64(from&-width, width, 0); depth == 0 || wrapped != 0 {
			return 0, false, nil
		}
	}
	return from, true, nil
}

// run implements chains; mu is held.
func (t *Tree) run(block uint32, dst []LocalHash) (first, parent uint32, _ []LocalHash) {
	n := &t.nodes[t.blocks.node(blockID(block))]
	start := n.start()
	for b := start; b < start+blockID(n.load().length()); b++ {
		dst = append(dst, LocalHash(t.blocks.local[b].Load()))
	}
	if p := n.parent(); p != 0 {
		x := &t.nodes[p]
		parent = uint32(x.start()) + x.load().length() - 1
	}
	return uint32(start), parent, dst
}
