package kvindex

import "math/bits"

// slotSet is a set of slots. It may be shorter than the number of slots.
type slotSet []uint64

func wordsFor(n int) int { return (n + 63) / 64 }

func (b slotSet) has(s Slot) bool {
	w := int(s / 64)
	return w < len(b) && b[w]>>(s%64)&1 != 0
}

func (b slotSet) with(s Slot) slotSet {
	for int(s/64) >= len(b) {
		b = append(b, 0)
	}
	b[s/64] |= 1 << (s % 64)
	return b
}

// without removes s, and cuts empty words off the end, so that an empty set has length
// 0.
func (b slotSet) without(s Slot) slotSet {
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
type holders map[SequenceHash]slotSet

func (h holders) add(q SequenceHash, s Slot) { h[q] = h[q].with(s) }

func (h holders) drop(q SequenceHash, s Slot) {
	if b := h[q].without(s); len(b) > 0 {
		h[q] = b
	} else {
		delete(h, q)
	}
}

// overlap follows the chain as long as some slot holds every block of it. When a slot
// does not hold the next block, it writes the slot's count.
func (h holders) overlap(chain []LocalHash, n int, dst *Overlap) {
	dst.reset(n)
	if len(chain) == 0 {
		return
	}
	q := nextSequence(0, false, chain[0])
	copied := copy(dst.alive, h[q])
	clear(dst.alive[copied:])
	depth := uint32(1)
	for ; int(depth) < len(chain); depth++ {
		q = nextSequence(q, true, chain[depth])
		if dst.narrow(h[q], depth) {
			return
		}
	}
	dst.narrow(nil, depth)
}

// narrow removes the slots that are not in set from o.alive, and writes depth as their
// overlap. It reports whether no slot is left.
func (o *Overlap) narrow(set slotSet, depth uint32) bool {
	var left uint64
	for i, was := range o.alive {
		var now uint64
		if i < len(set) {
			now = was & set[i]
		}
		for gone := was &^ now; gone != 0; gone &= gone - 1 {
			o.Blocks[i*64+bits.TrailingZeros64(gone)] = depth
		}
		o.alive[i] = now
		left |= now
	}
	return left == 0
}

// count returns the number of slots in the set.
func (b slotSet) count() int {
	n := 0
	for _, w := range b {
		n += bits.OnesCount64(w)
	}
	return n
}
