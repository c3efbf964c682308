package kvindex

import (
	"math/bits"
	"sync/atomic"
)

// blockID is the index of a block in the arenas; 0 is no block. A block keeps its id as
// long as any rank names it, in whichever node it comes to lie.
type blockID uint32

const (
	maxBlocks = 1<<28 - 1
	maxEdge   = 1023 // the most blocks of one node
	freeMark  = ^uint32(0)
	// minRest is the shortest rest of a free run that is worth keeping as a run.
	minRest = 8
)

// runs hands out runs of consecutive blocks. Adjacent free runs are joined, and kept in
// lists by length, so that memory stays usable when blocks come and go.
type runs struct {
	// local is each block's hash. Queries read it while writers change it. In the first
	// block of a free run it holds the links of its list.
	local []atomic.Uint64
	// meta has, for a block in use, its node, a flag, and in the high half the count of
	// its names over all ranks and of the ranks that it was routed to. For the first
	// and the last block of a free run it has freeMark and the run's length. Writers
	// only.
	meta []uint64
	next blockID // blocks from here on were never handed out
	used int
	cold marks // pages of local and meta, all inside free runs, that were given back

	heads [maxEdge + 2]blockID // the first free run of each length; the last list has all longer ones
	some  [(maxEdge + 2 + 63) / 64]uint64
}

// newRuns returns runs over two arrays, which must have the same length.
func newRuns(local []atomic.Uint64, meta []uint64) runs {
	return runs{local: local, meta: meta, next: 1}
}

func (r *runs) node(b blockID) nodeID  { return nodeID(r.meta[b] & (1<<flagBit - 1)) }
func (r *runs) refs(b blockID) uint32  { return uint32(r.meta[b] >> 32) }
func (r *runs) ref(b blockID)          { r.meta[b] += 1 << 32 }
func (r *runs) unref(b blockID, n int) { r.meta[b] -= uint64(n) << 32 }

// unrefAll takes one name off each block from first to last.
func (r *runs) unrefAll(first, last blockID) {
	some := r.meta[first : last+1]
	for i := range some {
		some[i] -= 1 << 32
	}
}

// plain returns the first of the blocks up to last, not before start, between which and last
// no block is flagged; last's own flag does not count.
func (r *runs) plain(start, last blockID) blockID {
	some := r.meta[start:last]
	for i := len(some) - 1; i >= 0; i-- {
		if some[i]>>flagBit&1 != 0 {
			return start + blockID(i) + 1
		}
	}
	return start
}

// write makes b a block of the node, with one name, where queries do not read yet.
func (r *runs) write(b blockID, n nodeID, l LocalHash) {
	set(&r.local[b], uint64(l))
	r.meta[b] = 1<<32 | uint64(n)
}

func (r *runs) setNode(b blockID, n nodeID) {
	r.meta[b] = r.meta[b]>>flagBit<<flagBit | uint64(n)
}

// flagBit is set for a block where, for some rank, a routed prompt ends or parts from
// others, or once did.
const flagBit = 31

func (r *runs) flag(b blockID)         { r.meta[b] |= 1 << flagBit }
func (r *runs) flagged(b blockID) bool { return r.meta[b]>>flagBit&1 != 0 }

// alloc returns the first block of a run of about the length wanted, and the run's
// length. The run is a little longer if the rest would be too short to keep, and
// shorter if no free run is long enough. Both results are 0 if no block is free.
func (r *runs) alloc(want uint32) (blockID, uint32) {
	list := r.listFrom(want)
	switch {
	case list > 0:
	case int(r.next) < len(r.local):
		b := r.next
		want = min(want, uint32(len(r.local))-uint32(b))
		r.next += blockID(want)
		r.take(b, want)
		return b, want
	default:
		list = r.listBelow(want)
		if list == 0 {
			return 0, 0
		}
	}
	b := r.heads[list]
	size := uint32(r.meta[b] >> 32)
	r.unlink(b, size)
	got := size
	if size > maxEdge || size >= want+minRest {
		got = min(want, size)
		r.link(b+blockID(got), size-got)
	}
	r.take(b, got)
	return b, got
}

// take marks a run as in use, at both ends.
func (r *runs) take(b blockID, size uint32) {
	r.meta[b], r.meta[b+blockID(size)-1] = 0, 0
	r.used += int(size)
	if r.cold.n > 0 {
		for p := b / pageBlocks; p <= (b+blockID(size)-1)/pageBlocks; p++ {
			r.cold.drop(uint32(p))
		}
	}
}

// enlarge lengthens a run by at most the number of blocks given, as far as the blocks
// behind it are free. It returns how many blocks it added.
func (r *runs) enlarge(b blockID, size, more uint32) uint32 {
	end := b + blockID(size)
	switch {
	case more == 0:
		return 0
	case end == r.next:
		more = min(more, uint32(len(r.local))-uint32(end))
		r.next += blockID(more)
	case uint32(r.meta[end]) == freeMark:
		free := uint32(r.meta[end] >> 32)
		r.unlink(end, free)
		if free > more {
			r.link(end+blockID(more), free-more)
		} else {
			more = free
		}
	default:
		return 0
	}
	if more > 0 {
		r.take(end, more)
	}
	return more
}

// release frees a run.
func (r *runs) release(b blockID, size uint32) {
	r.used -= int(size)
	if before := r.meta[b-1]; uint32(before) == freeMark {
		n := uint32(before >> 32)
		b -= blockID(n)
		r.unlink(b, n)
		size += n
	}
	if end := b + blockID(size); end < r.next && uint32(r.meta[end]) == freeMark {
		n := uint32(r.meta[end] >> 32)
		r.unlink(end, n)
		size += n
	}
	r.link(b, size)
}

func listOf(size uint32) uint32 { return min(size, maxEdge+1) }

// link puts a free run on its list. The links are in the local word of the run's first
// block.
func (r *runs) link(b blockID, size uint32) {
	mark := uint64(size)<<32 | uint64(freeMark)
	r.meta[b], r.meta[b+blockID(size)-1] = mark, mark
	r.cold.drop(uint32(b / pageBlocks)) // its last page is not cold: the last block was in use, or the end of a free run
	l := listOf(size)
	next := r.heads[l]
	r.local[b].Store(uint64(next))
	if next != 0 {
		r.local[next].Store(uint64(b)<<32 | uint64(uint32(r.local[next].Load())))
	}
	r.heads[l] = b
	r.some[l/64] |= 1 << (l % 64)
}

func (r *runs) unlink(b blockID, size uint32) {
	l := listOf(size)
	links := r.local[b].Load()
	prev, next := blockID(links>>32), blockID(uint32(links))
	if prev != 0 {
		r.local[prev].Store(r.local[prev].Load()>>32<<32 | uint64(next))
	} else {
		r.heads[l] = next
		if next == 0 {
			r.some[l/64] &^= 1 << (l % 64)
		}
	}
	if next != 0 {
		r.local[next].Store(uint64(prev)<<32 | uint64(uint32(r.local[next].Load())))
	}
}

// listFrom returns the first list for size or more that has a run, or 0 if there is
// none.
func (r *runs) listFrom(size uint32) uint32 {
	w := r.some[size/64] >> (size % 64) << (size % 64)
	for i := size / 64; ; w = r.some[i] {
		if w != 0 {
			return i*64 + uint32(bits.TrailingZeros64(w))
		}
		i++
		if int(i) == len(r.some) {
			return 0
		}
	}
}

// listBelow returns the last list for less than size that has a run, or 0 if there is
// none.
func (r *runs) listBelow(size uint32) uint32 {
	for l := size - 1; l > 0; l-- {
		if r.heads[l] != 0 {
			return l
		}
	}
	return 0
}

// pageBlocks is how many words of local, or of meta, make a page.
const pageBlocks = pageBytes / 8

// bytes is the memory taken from the system, whether or not it is in use.
func (r *runs) bytes() int { return int(r.next)*blockBytes - r.cold.n*2*pageBytes }

// giveBack gives pages inside of long free runs back to the system, at most as many as
// given, and returns how many. The first and the last block of a run say that it is
// free, so their pages stay.
func (r *runs) giveBack(most int) (given int) {
	for b := r.heads[maxEdge+1]; b != 0; b = blockID(uint32(r.local[b].Load())) {
		last := b + blockID(r.meta[b]>>32) - 1
		for p := b/pageBlocks + 1; (p+1)*pageBlocks <= last; p++ {
			if r.cold.has(uint32(p)) {
				continue
			}
			from, to := p*pageBlocks, (p+1)*pageBlocks
			if given == most || !giveBack(r.local[from:to]) || !giveBack(r.meta[from:to]) {
				return given
			}
			r.cold.add(uint32(p))
			given++
		}
	}
	return given
}
