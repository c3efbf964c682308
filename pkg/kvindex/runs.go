package kvindex

import (
	"math/bits"
	"sync/atomic"
)

// blockID is the place of a block in the arenas; 0 is none. A block keeps it
// for as long as any rank names it, whatever node it comes to belong to.
type blockID uint32

const (
	maxBlocks = 1<<28 - 1
	maxEdge   = 1023 // blocks of one node
	freeMark  = ^uint32(0)
	// minRest is the shortest rest of a run worth keeping apart.
	minRest = 8
)

// runs hands out runs of consecutive blocks. Free runs that touch are joined
// and kept by length, so that the memory stays of use under churn.
type runs struct {
	// local is each block's hash. Queries read it beside the writer.
	local []atomic.Uint64
	// meta is, of a block in use, its node, a flag, and in the high half how many
	// names all ranks have for it, and how many ranks it was routed to; of the first
	// and last block of a free run, freeMark and the run's length. Writers only.
	meta []uint64
	next blockID // never handed out so far
	used int
	cold marks // pages of both memories, all of free blocks, that were given back

	heads [maxEdge + 2]blockID // first free run by length; the last list has all longer ones
	some  [(maxEdge + 2 + 63) / 64]uint64
}

// newRuns: both memories must be of one length.
func newRuns(local []atomic.Uint64, meta []uint64) runs {
	return runs{local: local, meta: meta, next: 1}
}

func (r *runs) node(b blockID) nodeID  { return nodeID(r.meta[b] & (1<<flagBit - 1)) }
func (r *runs) refs(b blockID) uint32  { return uint32(r.meta[b] >> 32) }
func (r *runs) ref(b blockID)          { r.meta[b] += 1 << 32 }
func (r *runs) unref(b blockID, n int) { r.meta[b] -= uint64(n) << 32 }

func (r *runs) setNode(b blockID, n nodeID) {
	r.meta[b] = r.meta[b]>>flagBit<<flagBit | uint64(n)
}

// flagBit marks a block where some rank's view of what was routed has, or once
// had, an end or a branch.
const flagBit = 31

func (r *runs) flag(b blockID)         { r.meta[b] |= 1 << flagBit }
func (r *runs) flagged(b blockID) bool { return r.meta[b]>>flagBit&1 != 0 }

// alloc returns a run of about want blocks: a little more if the rest were too
// short, fewer if there is no longer one; 0 if there is none at all.
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
		if list = r.listBelow(want); list == 0 {
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

// take marks a run as in use at both ends.
func (r *runs) take(b blockID, size uint32) {
	r.meta[b], r.meta[b+blockID(size)-1] = 0, 0
	r.used += int(size)
	if r.cold.n > 0 {
		for p := b / pageBlocks; p <= (b+blockID(size)-1)/pageBlocks; p++ {
			r.cold.drop(uint32(p))
		}
	}
}

// enlarge adds up to more blocks to a run where those behind it are free, and
// returns how many.
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

// release gives a run back.
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

// link puts a run on its list. The links lie in the hash of its first block.
func (r *runs) link(b blockID, size uint32) {
	mark := uint64(size)<<32 | uint64(freeMark)
	r.meta[b], r.meta[b+blockID(size)-1] = mark, mark
	r.cold.drop(uint32(b / pageBlocks)) // its last block was in use, or said so before
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
	} else if r.heads[l] = next; next == 0 {
		r.some[l/64] &^= 1 << (l % 64)
	}
	if next != 0 {
		r.local[next].Store(uint64(prev)<<32 | uint64(uint32(r.local[next].Load())))
	}
}

// listFrom returns the first list at or above size that has a run, 0 if none.
func (r *runs) listFrom(size uint32) uint32 {
	w := r.some[size/64] >> (size % 64) << (size % 64)
	for i := size / 64; ; w = r.some[i] {
		if w != 0 {
			return i*64 + uint32(bits.TrailingZeros64(w))
		}
		if i++; int(i) == len(r.some) {
			return 0
		}
	}
}

// listBelow returns the last list below size that has a run, 0 if none.
func (r *runs) listBelow(size uint32) uint32 {
	for l := size - 1; l > 0; l-- {
		if r.heads[l] != 0 {
			return l
		}
	}
	return 0
}

// pageBlocks is how many blocks' hashes, or metas, are a page.
const pageBlocks = pageBytes / 8

// bytes is how much memory there is, used or not.
func (r *runs) bytes() int { return int(r.next)*blockBytes - r.cold.n*2*pageBytes }

// giveBack lets the system have up to most pages inside of long free runs, and
// returns how many. A run's ends say that it is free, and stay.
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
