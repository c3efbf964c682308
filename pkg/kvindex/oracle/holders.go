package oracle

import (
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/seed-60ae5743/baton/pkg/kvindex"
)

// seed is that of the hash of a sequence.
const seed = 1337

// sequenceHash is the hash of a block chained on the sequenceHash of its parent. It
// names the whole prefix that ends with the block.
type sequenceHash uint64

// nextSequence returns the sequence hash of a block with the local hash l. Without a
// parent it is l: s0 = b0, s(i) = XXH3_64(le64(s(i-1)) || le64(b(i)), 1337).
func nextSequence(parent sequenceHash, hasParent bool, l kvindex.LocalHash) sequenceHash {
	if !hasParent {
		return sequenceHash(l)
	}
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:8], uint64(parent))
	binary.LittleEndian.PutUint64(b[8:], uint64(l))
	return sequenceHash(xxh3.HashSeed(b[:], seed))
}

// bitSet is a set of slots.
type bitSet []uint64

func (b bitSet) has(s kvindex.Slot) bool {
	w := int(s / 64)
	return w < len(b) && b[w]>>(s%64)&1 != 0
}

func (b bitSet) with(s kvindex.Slot) bitSet {
	for int(s/64) >= len(b) {
		b = append(b, 0)
	}
	b[s/64] |= 1 << (s % 64)
	return b
}

// without removes s, and cuts empty words off the end, so that an empty set has length
// 0.
func (b bitSet) without(s kvindex.Slot) bitSet {
	if w := int(s / 64); w < len(b) {
		b[w] &^= 1 << (s % 64)
	}
	for len(b) > 0 && b[len(b)-1] == 0 {
		b = b[:len(b)-1]
	}
	return b
}

// holders has for each sequence hash the slots that hold it. A hash without a holder is
// not in the map.
type holders map[sequenceHash]bitSet

func (h holders) add(q sequenceHash, s kvindex.Slot) { h[q] = h[q].with(s) }

func (h holders) drop(q sequenceHash, s kvindex.Slot) {
	if b := h[q].without(s); len(b) > 0 {
		h[q] = b
	} else {
		delete(h, q)
	}
}

// overlap follows the chain as long as some slot holds every block of it. When a slot
// does not hold the next block, it writes the slot's count.
func (h holders) overlap(chain []kvindex.LocalHash, n int, dst *kvindex.Overlap) {
	dst.Blocks = make([]uint32, n)
	if len(chain) == 0 {
		return
	}
	q := nextSequence(0, false, chain[0])
	alive := slices.Clone(h[q])
	depth := uint32(1)
	for ; int(depth) < len(chain); depth++ {
		q = nextSequence(q, true, chain[depth])
		if narrow(alive, h[q], depth, dst) {
			return
		}
	}
	narrow(alive, nil, depth, dst)
}

// narrow removes the slots that are not in set from alive, and writes depth as their
// overlap. It reports whether no slot is left.
func narrow(alive, set bitSet, depth uint32, dst *kvindex.Overlap) bool {
	var left uint64
	for i, was := range alive {
		var now uint64
		if i < len(set) {
			now = was & set[i]
		}
		for gone := was &^ now; gone != 0; gone &= gone - 1 {
			dst.Blocks[i*64+bits.TrailingZeros64(gone)] = depth
		}
		alive[i] = now
		left |= now
	}
	return left == 0
}

// count returns the number of slots in the set.
func (b bitSet) count() int {
	n := 0
	for _, w := range b {
		n += bits.OnesCount64(w)
	}
	return n
}
