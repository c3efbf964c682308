package kvindex

import (
	"cmp"
	"slices"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// RankCopy is what one rank holds, apart from any index: its engine hashes, their
// tiers, and the chains of local hashes that lead to their blocks. A block that the
// rank does not hold is in the copy if a held block follows it. [Tree.Copy] and
// [Dump.Copy] fill a RankCopy and use its memory again; the zero value is ready. Not
// safe for concurrent use.
type RankCopy struct {
	rank   worker.Rank
	runs   []copiedRun // parents before children
	locals []LocalHash // block n has locals[n-1]
	held   []heldName  // in the order of their blocks

	// Used until settle. Blocks have the numbers of the source.
	raw  []rawRun
	seen marks     // blocks that raw has
	of   *treeRank // the rank as it was when the copy began, to notice that it was detached
}

// copiedRun is a run of blocks without a branch: the blocks from first up to the first
// of the next run.
type copiedRun struct {
	first  uint32
	parent uint32 // 0: none
}

type heldName struct {
	name  EngineHash
	block uint32
	tiers uint8
}

// compare orders names by their blocks.
func (h heldName) compare(o heldName) int {
	return cmp.Or(cmp.Compare(h.block, o.block), cmp.Compare(h.name, o.name))
}

// rawRun is a run with the block numbers of the source.
type rawRun struct {
	first, parent uint32
	at, n         uint32 // its hashes are locals[at : at+n]
	need          uint32 // how many of its first blocks the copy needs
}

// chains is the source of a copy: a Tree or a Dump.
type chains interface {
	// run returns the run that a block is in: its first block, the block before that
	// (0: none), and dst with the run's hashes appended.
	run(block uint32, dst []LocalHash) (first, parent uint32, _ []LocalHash)
}

// Rank returns the rank whose blocks these are.
func (c *RankCopy) Rank() worker.Rank { return c.rank }

// Blocks returns how many engine blocks the rank holds on any tier.
func (c *RankCopy) Blocks() int { return len(c.held) }

func (c *RankCopy) begin(r worker.Rank) {
	c.rank, c.of = r, nil
	c.unsee() // a copy that failed may have left some
	c.runs, c.locals, c.held = c.runs[:0], c.locals[:0], c.held[:0]
}

// add adds a name, and those runs of its block's chain that the copy does not have yet.
func (c *RankCopy) add(name EngineHash, block uint32, tiers uint8, from chains) {
	c.held = append(c.held, heldName{name, block, tiers})
	top := len(c.raw)
	for block != 0 && !c.seen.has(block) {
		at := uint32(len(c.locals))
		var first, parent uint32
		first, parent, c.locals = from.run(block, c.locals)
		n := uint32(len(c.locals)) - at
		for b := first; b < first+n; b++ {
			c.seen.add(b)
		}
		c.raw = append(c.raw, rawRun{first: first, parent: parent, at: at, n: n})
		block = parent
	}
	slices.Reverse(c.raw[top:])
}

// settle numbers the blocks anew, from 1 on and parents first, and leaves out blocks
// that no held block needs.
func (c *RankCopy) settle() {
	slices.SortFunc(c.held, heldName.compare)
	order := make([]uint32, len(c.raw))
	for i := range order {
		order[i] = uint32(i)
	}
	slices.SortFunc(order, func(a, b uint32) int { return cmp.Compare(c.raw[a].first, c.raw[b].first) })
	// of(b) finds the run of block b: the one with the highest first block up to b.
	of := func(b uint32) *rawRun {
		i, found := slices.BinarySearchFunc(order, b, func(i, b uint32) int { return cmp.Compare(c.raw[i].first, b) })
		if !found {
			i--
		}
		return &c.raw[order[i]]
	}
	need := func(b uint32) {
		if b != 0 {
			x := of(b)
			x.need = max(x.need, b-x.first+1)
		}
	}
	for i := range c.held {
		need(c.held[i].block)
	}
	for i := range c.raw {
		need(c.raw[i].parent)
	}
	locals := make([]LocalHash, 0, len(c.locals))
	for i := range c.raw {
		x := &c.raw[i]
		from := x.at
		x.at = uint32(len(locals)) // from here on x.at is an index of the kept hashes
		locals = append(locals, c.locals[from:from+x.need]...)
	}
	number := func(b uint32) uint32 {
		if b == 0 {
			return 0
		}
		x := of(b)
		return x.at + b - x.first + 1
	}
	for i := range c.raw {
		if x := &c.raw[i]; x.need > 0 {
			c.runs = append(c.runs, copiedRun{first: x.at + 1, parent: number(x.parent)})
		}
	}
	for i := range c.held {
		c.held[i].block = number(c.held[i].block)
	}
	c.locals = locals
	slices.SortFunc(c.held, heldName.compare)
	c.of = nil
	c.unsee()
}

// unsee empties raw and seen.
func (c *RankCopy) unsee() {
	for _, x := range c.raw {
		for b := x.first; b < x.first+x.n; b++ {
			c.seen.drop(b)
		}
	}
	c.raw = c.raw[:0]
}

// before returns the block before another, or 0 if it is the first of a chain.
func (c *RankCopy) before(block uint32) uint32 {
	i, found := slices.BinarySearchFunc(c.runs, block, func(r copiedRun, b uint32) int { return cmp.Compare(r.first, b) })
	if found {
		return c.runs[i].parent
	}
	return block - 1
}

// begins reports whether a run begins with the block.
func (c *RankCopy) begins(block uint32) bool {
	_, found := slices.BinarySearchFunc(c.runs, block, func(r copiedRun, b uint32) int { return cmp.Compare(r.first, b) })
	return found
}
