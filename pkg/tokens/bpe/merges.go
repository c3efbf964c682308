package bpe

import "math/bits"

// none stands for no rank and no id.
const none = ^uint32(0)

// merges tells what two tokens side by side become, and how early: the lower rank wins.
type merges struct {
	slots []mergeSlot
	shift uint8
	// joints are the pairs of characters over which some merge reaches, as bits by hash: a
	// pair whose bit is not set never merges, whatever stands around it. Nil: not known.
	joints []uint64
}

type mergeSlot struct {
	pair     uint64 // left<<32 | right; emptyPair: free
	rank, id uint32
}

const emptyPair = ^uint64(0)

// spread is an odd number whose bits look random: its products spread keys by their high
// bits.
const spread = 0x9E3779B97F4A7C15

// newMerges makes a table for n merges that is at most half full.
func newMerges(n int) *merges {
	size := 64 - bits.LeadingZeros64(uint64(2*n))
	m := &merges{slots: make([]mergeSlot, 1<<size), shift: uint8(64 - size)}
	for i := range m.slots {
		m.slots[i].pair = emptyPair
	}
	return m
}

func (m *merges) slot(pair uint64) *mergeSlot {
	i := pair * spread >> m.shift
	for {
		s := &m.slots[i&uint64(len(m.slots)-1)]
		if s.pair == pair || s.pair == emptyPair {
			return s
		}
		i++
	}
}

// set notes a merge. Of several for one pair the last counts.
func (m *merges) set(left, right, rank, id uint32) {
	*m.slot(uint64(left)<<32 | uint64(right)) = mergeSlot{uint64(left)<<32 | uint64(right), rank, id}
}

// get returns the rank of the pair and what it becomes; none, none if it does not merge.
func (m *merges) get(left, right uint32) (rank, id uint32) {
	s := m.slot(uint64(left)<<32 | uint64(right))
	if s.pair == emptyPair {
		return none, none
	}
	return s.rank, s.id
}

// jointBits is how many bits joints has. A joint that shares the bit of another only
// costs a border.
const jointBits = 1 << 20

func jointBit(left, right rune) (word, bit uint64) {
	h := (uint64(left)<<32 | uint64(right)) * spread >> 44
	return h >> 6, 1 << (h & 63)
}

// borders reports whether no merge reaches over the border between two characters.
func (m *merges) borders(left, right rune) bool {
	word, bit := jointBit(left, right)
	return m.joints != nil && m.joints[word]&bit == 0
}

// symbol is one token of a word while it is merged.
type symbol struct {
	id         uint32
	rank       uint32 // of the pair with the next symbol; none: it does not merge
	becomes    uint32 // what that pair becomes
	prev, next int32  // neighbours in a long word; next is -1 at the end
}

// shortWord is up to how many symbols each merge looks at all of them: faster than a heap
// while they lie in the processor's nearest cache.
const shortWord = 40

// merge replaces the word's symbols by its tokens. The pair of the lowest rank merges
// first, and of several the leftmost.
func (e *Encoder) merge() {
	w := e.word
	for i := range len(w) - 1 {
		w[i].rank, w[i].becomes = e.t.merges.get(w[i].id, w[i+1].id)
	}
	if len(w) > 0 {
		w[len(w)-1].rank = none
	}
	if len(w) <= shortWord {
		e.word = mergeShort(e.t.merges, w)
		return
	}
	e.mergeLong()
}

func mergeShort(m *merges, w []symbol) []symbol {
	for {
		at, best := -1, none
		for i := range w {
			if w[i].rank < best {
				at, best = i, w[i].rank
			}
		}
		if at < 0 {
			return w
		}
		w[at].id = w[at].becomes
		copy(w[at+1:], w[at+2:])
		w = w[:len(w)-1]
		w[at].rank = none
		if at+1 < len(w) {
			w[at].rank, w[at].becomes = m.get(w[at].id, w[at+1].id)
		}
		if at > 0 {
			w[at-1].rank, w[at-1].becomes = m.get(w[at-1].id, w[at].id)
		}
	}
}

// mergeLong merges by a heap of rank<<32|place. An entry is stale if the pair at its place
// has another rank by now. A pair cannot come back: symbols only grow, and two tokens are
// never the same text.
func (e *Encoder) mergeLong() {
	w, h := e.word, e.heap[:0]
	for i := range w {
		w[i].prev, w[i].next = int32(i-1), int32(i+1)
		if w[i].rank != none {
			h = append(h, uint64(w[i].rank)<<32|uint64(i))
		}
	}
	w[len(w)-1].next = -1
	h.init()
	update := func(i int32) {
		s := &w[i]
		s.rank = none
		if s.next >= 0 {
			s.rank, s.becomes = e.t.merges.get(s.id, w[s.next].id)
		}
		if s.rank != none {
			h = h.push(uint64(s.rank)<<32 | uint64(i))
		}
	}
	for len(h) > 0 {
		top := h[0]
		h = h.pop()
		i := int32(uint32(top))
		s := &w[i]
		if s.rank != uint32(top>>32) {
			continue
		}
		gone := &w[s.next]
		s.id, s.next = s.becomes, gone.next
		gone.rank = none
		if s.next >= 0 {
			w[s.next].prev = i
		}
		update(i)
		if s.prev >= 0 {
			update(s.prev)
		}
	}
	n := 0
	for i := int32(0); i >= 0; n++ {
		next := w[i].next
		w[n].id = w[i].id
		i = next
	}
	e.word, e.heap = w[:n], h
}

// heap is a binary heap, the least first.
type heap []uint64

func (h heap) init() {
	for i := len(h)/2 - 1; i >= 0; i-- {
		h.down(i)
	}
}

func (h heap) push(v uint64) heap {
	h = append(h, v)
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 2
		if h[up] <= v {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = v
	return h
}

func (h heap) pop() heap {
	last := len(h) - 1
	h[0] = h[last]
	h = h[:last]
	if last > 1 {
		h.down(0)
	}
	return h
}

func (h heap) down(i int) {
	v := h[i]
	for {
		kid := 2*i + 1
		if kid >= len(h) {
			break
		}
		if kid+1 < len(h) && h[kid+1] < h[kid] {
			kid++
		}
		if h[kid] >= v {
			break
		}
		h[i] = h[kid]
		i = kid
	}
	h[i] = v
}
