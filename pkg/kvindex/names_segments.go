package kvindex

import "slices"

// This file has how segments are taken, joined and given back.

// newSegment returns an empty segment.
func (s *nameStore) newSegment() uint32 {
	id := s.segs.get()
	if s.cold.n > 0 && s.cold.has(id-1) {
		s.cold.drop(id - 1)
		s.pages -= s.pagesOf(id - 1)
	}
	clear(s.segment(id)[:]) // a segment that was used before still has its names
	return id
}

// bytes is the memory taken from the system, whether or not it is in use.
func (s *nameStore) bytes() int { return int(s.segs.next)*segBytes - s.pages*pageBytes }

// pagesOf returns how many pages are given back with the segment seg: one, or two if
// the other segment of its pair was given back before. A pair has three pages and
// shares the middle one.
func (s *nameStore) pagesOf(seg uint32) int {
	if s.cold.has(seg ^ 1) {
		return 2
	}
	return 1
}

// giveBack gives the memory of free segments back to the system. It returns of how many
// segments, at most as many as given.
func (s *nameStore) giveBack(most int) (given int) {
	for ; given < most && len(s.segs.free) > 0; given++ {
		last := len(s.segs.free) - 1
		id := s.segs.free[last]
		from, to := (id-1)*segBuckets, id*segBuckets
		switch i := id - 1; {
		case s.cold.has(i ^ 1):
			from, to = i&^1*segBuckets, (i|1)*segBuckets+segBuckets
		case i%2 == 0:
			to = from + pageBuckets
		default:
			from = to - pageBuckets
		}
		if !giveBack(s.buckets[from:to]) {
			return given
		}
		s.segs.free = s.segs.free[:last]
		s.segs.cold = append(s.segs.cold, id)
		s.pages += s.pagesOf(id - 1)
		s.cold.add(id - 1)
	}
	return given
}

// take frees segments in the order of the mixed hashes, beginning with the one of the
// hash given. It stops when the number of names given, or a few more, are gone. It
// appends the blocks that they named to dst. It returns the hash at which to continue,
// or 0 if the table is empty. Before the table is empty it may be used for nothing
// else.
func (s *nameStore) take(n *names, from uint64, most int, dst []blockID) (uint64, []blockID) {
	if len(n.dir) == 0 {
		return 0, dst
	}
	dst = slices.Grow(dst, min(n.n, most+segBuckets*bucketKeys)+1)
	all, k := dst[:cap(dst)], len(dst)
	for end := k + most; k < end; {
		id, next := s.segmentAt(n, from)
		was := k
		seg := s.segment(id)
		for i := range seg {
			for _, v := range seg[i].val {
				// Without a branch, since the processor cannot predict which places are
				// free.
				all[k] = v.block()
				k += int((v | -v) >> 31)
			}
		}
		n.n -= k - was
		s.segs.put(id)
		from = next
		if from == 0 {
			*n = names{}
			break
		}
	}
	return from, all[:k]
}

// segmentAt returns the segment of a mixed hash, and the lowest hash beyond the
// segment, or 0 if it is the last one.
func (s *nameStore) segmentAt(n *names, m uint64) (id uint32, next uint64) {
	id = n.at(m)
	return id, s.end(id, m)
}

// end returns the lowest mixed hash beyond the segment that m is in, or 0 if there is
// none.
func (s *nameStore) end(id uint32, m uint64) uint64 {
	free := 64 - s.segment(id)[0].over>>depthShift
	return (m>>free + 1) << free
}

// mergeBelow is the most names that two segments may have together to be joined. It is
// less than what a segment may hold, so that the joined one is not split again at once.
const mergeBelow = segBuckets * bucketKeys * 3 / 4

// merge joins the segment of m with the other half that it was split from, repeatedly,
// as long as both together have few names. It returns how many segments were freed.
func (s *nameStore) merge(n *names, m uint64) (saved int) {
	for {
		id := n.at(m)
		seg := s.segment(id)
		depth := uint8(seg[0].over >> depthShift)
		if depth == 0 {
			return saved
		}
		run := uint64(1) << (n.depth - depth)
		first := m >> (64 - n.depth) &^ (2*run - 1)
		lower, upper := n.dir[first], n.dir[first+run]
		other := lower + upper - id
		if uint8(s.segment(other)[0].over>>depthShift) != depth || s.count(lower)+s.count(upper) > mergeBelow {
			return saved
		}
		to, from := s.segment(lower), s.segment(upper)
		to[0].over -= 1 << depthShift
		for i := range from {
			for j, v := range from[i].val {
				if v != 0 {
					refill(to, s.mix(from[i].key[j]), from[i].key[j], v)
				}
			}
		}
		for i := first + run; i < first+2*run; i++ {
			n.dir[i] = lower
		}
		s.segs.put(upper)
		n.segs--
		saved++
	}
}

// count returns how many names a segment has.
func (s *nameStore) count(id uint32) (k int) {
	seg := s.segment(id)
	for i := range seg {
		for _, v := range seg[i].val {
			k += int((v | -v) >> 31)
		}
	}
	return k
}
