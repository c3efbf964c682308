package kvindex

import (
	"cmp"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
)

// loadSlice is the most blocks of one event when a copy is loaded.
const loadSlice = 512

// Load stores the copy as events of its rank, which must be attached and hold nothing.
// As with events, the index keeps within its budget and writers of other ranks take
// turns; other events of this rank must wait. Load returns how many blocks the index
// refused, in most cases because memory is short. Error: [ErrUnknownRank].
//
// Blocks that the rank does not hold, but that a held block follows, are stored on
// External meanwhile, where only [OnExternal] counts them, and removed at the end.
func (c *RankCopy) Load(into Index) (left int, err error) {
	l := loader{c: c, into: into, holes: map[uint32]EngineHash{}}
	for from := 0; from < len(c.held) && err == nil; {
		to := l.group(from)
		err = l.store(c.held[from:to])
		from = to
	}
	return l.left, errors.Join(err, l.fillIn())
}

type loader struct {
	c      *RankCopy
	into   Index
	holes  map[uint32]EngineHash // made-up names of blocks that the rank does not hold
	left   int
	blocks []Block
}

// group returns the end of the held blocks from i on that make one event: each is the
// parent of the next, and all are on the same tiers.
func (l *loader) group(i int) int {
	h := l.c.held
	to := i + 1
	for to < len(h) && to-i < loadSlice && h[to].tiers == h[i].tiers &&
		h[to].block == h[to-1].block+1 && !l.c.begins(h[to].block) {
		to++
	}
	return to
}

// store stores the blocks on each of their tiers.
func (l *loader) store(held []heldName) error {
	e := Stored{Blocks: l.blocks[:0]}
	for _, h := range held {
		e.Blocks = append(e.Blocks, Block{Engine: h.name, Local: l.c.locals[h.block-1]})
	}
	l.blocks = e.Blocks
	var err error
	if p := l.c.before(held[0].block); p != 0 {
		e.HasParent = true
		e.Parent, err = l.name(p)
		if err != nil {
			return l.judge(err, len(held))
		}
	}
	for e.Tier = range numTiers {
		if held[0].tiers>>e.Tier&1 != 0 {
			if err := l.into.Store(l.c.rank, e); err != nil {
				return l.judge(err, len(held))
			}
		}
	}
	return nil
}

// judge counts blocks that the index refused. It returns the error if the load cannot
// go on.
func (l *loader) judge(err error, blocks int) error {
	l.left += blocks
	if errors.Is(err, ErrUnknownRank) {
		return err
	}
	return nil
}

// name returns a name under which the rank has the block in the index. For a block that
// the rank does not hold it makes up a name, and stores the block under it. An engine
// has hardly ever given the same name; if it has, the block of one of the two is
// refused.
func (l *loader) name(block uint32) (EngineHash, error) {
	var missing []uint32
	e := Stored{Tier: External}
	for b := block; b != 0; b = l.c.before(b) {
		e.Parent, e.HasParent = l.known(b)
		if e.HasParent {
			break
		}
		missing = append(missing, b)
	}
	slices.Reverse(missing)
	for some := range slices.Chunk(missing, loadSlice) {
		e.Blocks = nil
		for _, b := range some {
			e.Blocks = append(e.Blocks, Block{Engine: EngineHash(rand.Uint64()), Local: l.c.locals[b-1]})
		}
		if err := l.into.Store(l.c.rank, e); err != nil {
			return 0, err
		}
		for i, b := range some {
			l.holes[b] = e.Blocks[i].Engine
		}
		e.Parent, e.HasParent = e.Blocks[len(some)-1].Engine, true
	}
	return e.Parent, nil
}

func (l *loader) known(block uint32) (EngineHash, bool) {
	h := l.c.held
	i, found := slices.BinarySearchFunc(h, block, func(h heldName, b uint32) int { return cmp.Compare(h.block, b) })
	if found {
		return h[i].name, true
	}
	name, found := l.holes[block]
	return name, found
}

// fillIn removes the blocks that the rank does not hold.
func (l *loader) fillIn() error {
	for some := range slices.Chunk(slices.Collect(maps.Values(l.holes)), loadSlice) {
		if err := l.into.Remove(l.c.rank, Removed{Blocks: some, Tier: External}); err != nil {
			return err
		}
	}
	return nil
}
