package kvindex

import (
	"cmp"
	"slices"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// RankCopy is what one rank holds, apart from any index: its engine names, on
// which tiers, and the chains of hashes that lead to them. Blocks that it does
// not hold are in it where one that it holds follows them. It is filled by
// [Tree.Copy] or [Dump.Copy] and reuses its memory; the zero value is ready. Not
// safe for concurrent use.
type RankCopy struct {
	rank   worker.Rank
	runs   []copiedRun // parents before children
	locals []LocalHash // block n has locals[n-1]
	held   []heldName  // in the order of their blocks

	// Until settle: numbers are the source's own.
	raw  []rawRun
	seen slotSet   // blocks that are in raw
	of   *treeRank // the life of the rank that is copied
}

// copiedRun is a run of blocks without a branch: those from first up to the next
// run's.
type copiedRun struct {
	first  uint32
	parent uint32 // 0: none
}

type heldName struct {
	name  EngineHash
	block uint32
	tiers uint8
}

// rawRun is a run with the source's numbers.
type rawRun struct {
	first, parent uint32
	at, n         uint32 // in locals
	need          uint32 // how many of its blocks are needed
}

// chains is where a copy is taken from.
type chains interface {
	// run returns the run that a block is in: its first block, the one before
	// that, 0 at the root, and dst with its hashes.
	run(block uint32, dst []LocalHash) (first, parent uint32, _ []LocalHash)
}

// Rank returns whose blocks they are.
func (c *RankCopy) Rank() worker.Rank { return c.rank }

// Blocks returns how many engine blocks are held on any tier.
func (c *RankCopy) Blocks() int { return len(c.held) }

func (c *RankCopy) begin(r worker.Rank) {
	c.rank, c.of = r, nil
	c.unsee() // of one that was given up
	c.runs, c.locals, c.held = c.runs[:0], c.locals[:0], c.held[:0]
}

// add takes a name, and the chain of its block as far as it is not there yet.
func (c *RankCopy) add(name EngineHash, block uint32, tiers uint8, from chains) {
	c.held = append(c.held, heldName{name, block, tiers})
	top := len(c.raw)
	for block != 0 && !c.seen.has(Slot(block)) {
		at := uint32(len(c.locals))
		var first, parent uint32
		first, parent, c.locals = from.run(block, c.locals)
		n := uint32(len(c.locals)) - at
		for b := first; b < first+n; b++ {
			c.seen = c.seen.with(Slot(b))
		}
		c.raw = append(c.raw, rawRun{first: first, parent: parent, at: at, n: n})
		block = parent
	}
	slices.Reverse(c.raw[top:])
}

// settle numbers the blocks anew, from 1 on and parents first, and leaves out
// those that nothing which is held needs.
func (c *RankCopy) settle() {
	slices.SortFunc(c.held, func(a, b heldName) int {
		return cmp.Or(cmp.Compare(a.block, b.block), cmp.Compare(a.name, b.name))
	})
	order := make([]uint32, len(c.raw))
	for i := range order {
		order[i] = uint32(i)
	}
	slices.SortFunc(order, func(a, b uint32) int { return cmp.Compare(c.raw[a].first, c.raw[b].first) })
	// of returns the run with the last first block up to b: it is b's.
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
		x.at = uint32(len(locals)) // of what is kept, from here on
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
	slices.SortFunc(c.held, func(a, b heldName) int {
		return cmp.Or(cmp.Compare(a.block, b.block), cmp.Compare(a.name, b.name))
	})
	c.of = nil
	c.unsee()
}

// unsee forgets which blocks are in raw, and those.
func (c *RankCopy) unsee() {
	for _, x := range c.raw {
		for b := x.first; b < x.first+x.n; b++ {
			c.seen[b/64] &^= 1 << (b % 64)
		}
	}
	c.raw = c.raw[:0]
}

// before returns the block before another, 0 if it is a first one.
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
