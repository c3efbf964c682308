package kvindex

import (
	"math/bits"
	"slices"
)

// A rank's engine hashes are kept in segments of 64 buckets, one cache line
// each. A directory indexed by the top bits of the mixed hash says which
// segment: a full segment is split in two, so that a table grows in small steps
// and leaves no garbage.
const (
	segBuckets = 64
	segBytes   = segBuckets * 64
	bucketKeys = 5
	// probeLimit is how many buckets a new name may be away from its own before
	// the segment is split.
	probeLimit = 12
)

type bucket struct {
	key [bucketKeys]EngineHash
	val [bucketKeys]named // 0: free
	// over counts the names that passed this full bucket on their way to a
	// later one, in the low half: a search ends where it is 0. In the first
	// bucket of a segment the high byte is the segment's depth.
	over uint32
}

const (
	overMask   = 0xffff
	depthShift = 24
)

// named is what an engine hash of a rank names: a block in the high 28 bits and
// a bit per tier. Invariant: I2, the tiers are never 0.
type named uint32

func (v named) block() blockID { return blockID(v >> numTiers) }
func (v named) tiers() uint8   { return uint8(v & (1<<numTiers - 1)) }

func nameOf(b blockID, tiers uint8) named { return named(b)<<numTiers | named(tiers) }

// names is one rank's table. All ranks' segments come from one store.
type names struct {
	dir   []uint32 // by the top bits of the mixed hash; empty: nothing stored yet
	depth uint8    // bits that index dir
	n     int
}

// nameStore is the memory of all tables.
type nameStore struct {
	buckets []bucket
	segs    pool
	seed    uint64 // against engine hashes chosen to collide
}

func (s *nameStore) mix(h EngineHash) uint64 {
	hi, lo := bits.Mul64(uint64(h)^s.seed, 0x9e3779b97f4a7c15)
	return hi ^ lo
}

func (s *nameStore) segment(id uint32) *[segBuckets]bucket {
	return (*[segBuckets]bucket)(s.buckets[(id-1)*segBuckets:])
}

func (n *names) at(m uint64) uint32 { return n.dir[m>>(64-n.depth)] }

// spot is where a name is; no bucket: nowhere. Valid until the table changes.
type spot struct {
	b *bucket
	j int
}

func (p spot) val() *named { return &p.b.val[p.j] }

// has reports whether the name is there still.
func (p spot) has(h EngineHash) bool { return p.b != nil && p.b.key[p.j] == h && p.b.val[p.j] != 0 }

// find returns where a name is.
func (s *nameStore) find(n *names, h EngineHash) spot {
	if len(n.dir) == 0 {
		return spot{}
	}
	m := s.mix(h)
	seg := s.segment(n.at(m))
	for d := range uint64(segBuckets) {
		b := &seg[(m+d)%segBuckets]
		for j := range b.key {
			if b.key[j] == h && b.val[j] != 0 {
				return spot{b, j}
			}
		}
		if b.over&overMask == 0 {
			break
		}
	}
	return spot{}
}

// touch reads the line that a search for h begins with and returns something of
// it, so that many searches' misses overlap.
func (s *nameStore) touch(n *names, h EngineHash) uint32 {
	m := s.mix(h)
	return s.segment(n.at(m))[m%segBuckets].over
}

// put returns where the value of a name is, or a place for it, which the caller
// must fill; and whether it was there. The place is valid until the next put.
func (s *nameStore) put(n *names, h EngineHash) (v *named, found bool) {
	if len(n.dir) == 0 {
		n.dir = append(n.dir, s.segs.get())
		n.depth = 0
	}
	m := s.mix(h)
	for {
		seg := s.segment(n.at(m))
		for d := range uint64(probeLimit) {
			b := &seg[(m+d)%segBuckets]
			free := -1
			for j := range b.val {
				if b.val[j] == 0 {
					free = j
				} else if b.key[j] == h {
					return &b.val[j], true
				}
			}
			if free < 0 {
				continue
			}
			// I12: nothing is beyond a bucket with a free place.
			b.key[free] = h
			n.n++
			for ; d > 0; d-- {
				seg[(m+d-1)%segBuckets].over++
			}
			return &b.val[free], false
		}
		if p := s.find(n, h); p.b != nil {
			return p.val(), true
		}
		s.split(n, m)
	}
}

// erase removes a name from where it is. Then one that had to go beyond the
// bucket comes back to it, and so on, so that searches stay short.
func (s *nameStore) erase(n *names, h EngineHash, at spot) {
	m := s.mix(h)
	seg := s.segment(n.at(m))
	*at.val() = 0
	n.n--
	hole := m
	for ; &seg[hole%segBuckets] != at.b; hole++ {
		seg[hole%segBuckets].over--
	}
	for seg[hole%segBuckets].over&overMask != 0 {
		from, away := s.passing(seg, hole)
		at.b.key[at.j], *at.val() = from.b.key[from.j], *from.val()
		*from.val() = 0
		for ; away > 0; away-- {
			seg[hole%segBuckets].over--
			hole++
		}
		at = from
	}
}

// passing returns the first name that had to pass the bucket, and how far
// beyond it is.
func (s *nameStore) passing(seg *[segBuckets]bucket, hole uint64) (spot, uint64) {
	for d := uint64(1); ; d++ {
		b := &seg[(hole+d)%segBuckets]
		for j := range b.val {
			if b.val[j] != 0 && (hole+d-s.mix(b.key[j]))%segBuckets >= d {
				return spot{b, j}, d
			}
		}
	}
}

// split halves the segment of m, and doubles the directory where the segment is
// indexed by all of its bits.
func (s *nameStore) split(n *names, m uint64) {
	id := n.at(m)
	seg := s.segment(id)
	depth := uint8(seg[0].over >> depthShift)
	if depth == n.depth {
		wide := make([]uint32, 2*len(n.dir))
		for i, d := range n.dir {
			wide[2*i], wide[2*i+1] = d, d
		}
		n.dir = wide
		n.depth++
	}
	old := *seg
	clear(seg[:])
	upperID := s.segs.get()
	upper := s.segment(upperID)
	depth++
	seg[0].over = uint32(depth) << depthShift
	upper[0].over = uint32(depth) << depthShift
	// The directory's run of this segment: its upper half is the new one's.
	run := uint64(1) << (n.depth - depth)
	first := m >> (64 - n.depth) &^ (2*run - 1)
	for i := first + run; i < first+2*run; i++ {
		n.dir[i] = upperID
	}
	for i := range old {
		for j, v := range old[i].val {
			if v == 0 {
				continue
			}
			h := old[i].key[j]
			m := s.mix(h)
			to := seg
			if m>>(64-depth)&1 != 0 {
				to = upper
			}
			refill(to, m, h, v)
		}
	}
}

// refill puts a name at the first free place of a segment that has one.
func refill(seg *[segBuckets]bucket, m uint64, h EngineHash, v named) {
	for d := range uint64(segBuckets) {
		b := &seg[(m+d)%segBuckets]
		for j := range b.val {
			if b.val[j] == 0 {
				b.key[j], b.val[j] = h, v
				return
			}
		}
		b.over++
	}
}

// each calls f with every name. f may change the value in place.
func (s *nameStore) each(n *names, f func(EngineHash, *named)) {
	var last uint32
	for _, id := range n.dir {
		if id == last { // runs of one segment are together
			continue
		}
		last = id
		seg := s.segment(id)
		for i := range seg {
			b := &seg[i]
			for j := range b.val {
				if b.val[j] != 0 {
					f(b.key[j], &b.val[j])
				}
			}
		}
	}
}

// take empties a table, gives its segments back, and appends the blocks that it
// named to dst.
func (s *nameStore) take(n *names, dst []blockID) []blockID {
	dst = slices.Grow(dst, n.n)
	var last uint32
	for _, id := range n.dir {
		if id == last {
			continue
		}
		last = id
		seg := s.segment(id)
		for i := range seg {
			for _, v := range seg[i].val {
				if v != 0 {
					dst = append(dst, v.block())
				}
			}
		}
		clear(seg[:])
		s.segs.put(id)
	}
	*n = names{}
	return dst
}
