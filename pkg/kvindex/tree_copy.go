package kvindex

import (
	"math/bits"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// copySlice is about how many names and blocks are copied before writers get the lock:
// some tens of microseconds.
const copySlice = 4096

// Copy implements [Index]. Events of other ranks wait for one slice at most. Blocks that
// the rank loses meanwhile, to the budget or to a Clear, may or may not be in the copy.
func (t *Tree) Copy(r worker.Rank, c *RankCopy) error {
	c.begin(r)
	var err error
	for from, more := uint64(0), true; more; {
		from, more, err = t.copySome(r, from, c)
		if err != nil {
			return err
		}
	}
	c.settle()
	return nil
}

// copySome copies, for one slice, names in the order of their mixed hashes, beginning
// with the hash given. It returns where the next slice begins, and whether there is
// one. Names keep this order when the table changes between two slices. A block that
// has a name now had the name when the copy began, so the chain of the block has not
// changed, and what was copied of it before is right.
func (t *Tree) copySome(r worker.Rank, from uint64, c *RankCopy) (next uint64, more bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	rk := t.ranks.idle(r)
	if from == 0 {
		c.of = rk
	}
	if rk == nil || rk != c.of { // the rank was detached, and possibly attached again
		return 0, false, ErrUnknownRank
	}
	next, more = t.ledger.copySome(&rk.names, from, c)
	return next, more, nil
}

// copySome copies the names of some segments, as Tree.copySome says.
func (l *ledger) copySome(n *names, from uint64, c *RankCopy) (next uint64, more bool) {
	if len(n.dir) == 0 {
		return 0, false
	}
	for done := len(c.held) + len(c.locals); len(c.held)+len(c.locals)-done < copySlice; {
		seg := l.names.segment(n.at(from))
		for i := range seg {
			b := &seg[i]
			for j, v := range b.val {
				if h := b.key[j]; v != 0 && l.names.mix(h) >= from {
					c.add(h, uint32(v.block()), v.tiers(), l.trie)
				}
			}
		}
		// The next segment has the next value of the top bits.
		depth := seg[0].over >> depthShift
		width := uint64(1) << (64 - depth)
		var wrapped uint64
		from, wrapped = bits.Add64(from&-width, width, 0)
		if depth == 0 || wrapped != 0 {
			return 0, false
		}
	}
	return from, true
}
