package kvindex

import "math/bits"

// A rank's engine hashes are in segments of 96 buckets; a bucket is one cache line. A
// directory, indexed by the top bits of the mixed hash, gives the segment. A full
// segment is split in two, so that a table grows in small steps and leaves no garbage.
const (
	segBuckets = 96
	segBytes   = segBuckets * 64
	bucketKeys = 5
	// pageBuckets is how many buckets make a page.
	pageBuckets = pageBytes / 64
	// probeLimit is how many buckets a search for a free place looks at, from the
	// name's own bucket on, before the segment is split.
	probeLimit = 12
)

type bucket struct {
	key [bucketKeys]EngineHash
	val [bucketKeys]named // 0: free
	// over has in the low half how many names passed this full bucket on their way to a
	// later one: a search ends at a bucket where that is 0. Above it is a bit for each
	// name of this bucket that passed another one. In the first bucket of a segment the
	// high byte is the depth of the segment.
	over uint32
}

const (
	overMask   = 0xffff
	awayShift  = 16
	depthShift = 24
)

// named is what an engine hash of a rank names: a block in the high 28 bits, and a bit
// for each tier. Invariant: I2, the tiers are never 0.
type named uint32

func (v named) block() blockID { return blockID(v >> numTiers) }
func (v named) tiers() uint8   { return uint8(v & (1<<numTiers - 1)) }

func nameOf(b blockID, tiers uint8) named { return named(b)<<numTiers | named(tiers) }

// names is the table of one rank. The segments of all ranks come from one nameStore.
type names struct {
	dir   []uint32 // segments by the top bits of the mixed hash; empty: nothing is stored yet
	depth uint8    // how many bits index dir
	n     int
	segs  int
}

// nameStore is the memory of the tables of all ranks.
type nameStore struct {
	buckets []bucket
	segs    pool
	cold    marks  // the segments in segs.cold, counted from 0
	pages   int    // how many pages were given back
	seed    uint64 // makes engine hashes that were chosen to collide harmless
}

func (s *nameStore) mix(h EngineHash) uint64 {
	hi, lo := bits.Mul64(uint64(h)^s.seed, 0x9e3779b97f4a7c15)
	return hi ^ lo
}

func (s *nameStore) segment(id uint32) *[segBuckets]bucket {
	return (*[segBuckets]bucket)(s.buckets[int(id-1)*segBuckets:])
}

// home returns the own bucket of a mixed hash. It uses the low half, since the top bits
// index the directory.
func home(m uint64) uint64 { return m & (1<<32 - 1) * segBuckets >> 32 }

// after returns the bucket n places after i, around the end of the segment. n is at
// most segBuckets.
func after(i, n uint64) uint64 {
	i += n
	if i >= segBuckets {
		i -= segBuckets
	}
	return i
}

func (n *names) at(m uint64) uint32 { return n.dir[m>>(64-n.depth)] }

// spot is the place of a name; a nil bucket: the name is nowhere. Valid until the table
// changes.
type spot struct {
	b *bucket
	j int
}

func (p spot) val() *named { return &p.b.val[p.j] }

// has reports whether the spot still has the name h.
func (p spot) has(h EngineHash) bool { return p.b != nil && p.b.key[p.j] == h && p.b.val[p.j] != 0 }

// find returns the spot of the name h, without a bucket if the table does not have h.
func (s *nameStore) find(n *names, h EngineHash) spot {
	if len(n.dir) == 0 {
		return spot{}
	}
	m := s.mix(h)
	seg := s.segment(n.at(m))
	for d, i := 0, home(m); d < segBuckets; d, i = d+1, after(i, 1) {
		b := &seg[i]
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

// ahead is how many searches are made together, so that their cache misses overlap.
const ahead = 16

// touch reads the cache line with which a search for h begins. It returns something
// from it, so that the compiler does not leave out the read.
func (s *nameStore) touch(n *names, h EngineHash) uint32 {
	m := s.mix(h)
	return s.segment(n.at(m))[home(m)].over
}

// put returns the value of the name h and true, or a new place for it and false. The
// caller must then fill the new place. It is valid until the next put.
func (s *nameStore) put(n *names, h EngineHash) (v *named, found bool) {
	if len(n.dir) == 0 {
		n.dir = append(n.dir, s.newSegment())
		n.depth, n.segs = 0, 1
	}
	m := s.mix(h)
	for {
		seg := s.segment(n.at(m))
		at := home(m)
		for d := range uint64(probeLimit) {
			b := &seg[after(at, d)]
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
			// I12: no name is beyond a bucket with a free place.
			b.key[free] = h
			n.n++
			if d > 0 {
				b.over |= 1 << (awayShift + free)
			}
			for ; d > 0; d-- {
				seg[after(at, d-1)].over++
			}
			return &b.val[free], false
		}
		if p := s.find(n, h); p.b != nil {
			return p.val(), true
		}
		s.split(n, m)
	}
}

// erase removes the name h from its spot. Then a name that had to pass the bucket moves
// into the free place, and so on for the place that it leaves, so that searches stay
// short.
func (s *nameStore) erase(n *names, h EngineHash, at spot) {
	m := s.mix(h)
	seg := s.segment(n.at(m))
	*at.val() = 0
	at.b.over &^= 1 << (awayShift + at.j)
	n.n--
	hole := home(m)
	for ; &seg[hole] != at.b; hole = after(hole, 1) {
		seg[hole].over--
	}
	for at.b.over&overMask != 0 {
		from, d := s.passing(seg, hole)
		h := from.b.key[from.j]
		at.b.key[at.j], *at.val() = h, *from.val()
		*from.val() = 0
		from.b.over &^= 1 << (awayShift + from.j)
		if home(s.mix(h)) != hole {
			at.b.over |= 1 << (awayShift + at.j)
		}
		for ; d > 0; d-- {
			seg[hole].over--
			hole = after(hole, 1)
		}
		at = from
	}
}

// passing returns the first name after the bucket hole that had to pass it, and its
// distance.
func (s *nameStore) passing(seg *[segBuckets]bucket, hole uint64) (spot, uint64) {
	for d := uint64(1); ; d++ {
		at := after(hole, d)
		b := &seg[at]
		for away := b.over >> awayShift % (1 << bucketKeys); away != 0; away &= away - 1 {
			j := bits.TrailingZeros32(away)
			if after(at, segBuckets-home(s.mix(b.key[j]))) >= d {
				return spot{b, j}, d
			}
		}
	}
}

// split divides the segment of the mixed hash m in two. It doubles the directory first
// if only one entry of it has the segment.
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
	upperID := s.newSegment()
	n.segs++
	upper := s.segment(upperID)
	depth++
	seg[0].over = uint32(depth) << depthShift
	upper[0].over = uint32(depth) << depthShift
	// The segment has 2*run consecutive entries of the directory; the upper half
	// becomes the new segment's.
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

// refill puts a name at the first free place of a segment, which must have one.
func refill(seg *[segBuckets]bucket, m uint64, h EngineHash, v named) {
	for d := range uint64(segBuckets) {
		b := &seg[after(home(m), d)]
		for j := range b.val {
			if b.val[j] == 0 {
				b.key[j], b.val[j] = h, v
				if d > 0 {
					b.over |= 1 << (awayShift + j)
				}
				return
			}
		}
		b.over++
	}
}

// sample calls f with the names of as many buckets as given, spread over the table.
func (s *nameStore) sample(n *names, buckets int, f func(named)) {
	for i := range min(buckets, n.segs*segBuckets) {
		m := uint64(i+1) * 0x9e3779b97f4a7c15
		for _, v := range s.segment(n.at(m))[home(m<<17)].val {
			if v != 0 {
				f(v)
			}
		}
	}
}

// each calls f with every name. f may change the value in place.
func (s *nameStore) each(n *names, f func(EngineHash, *named)) {
	var last uint32
	for _, id := range n.dir {
		if id == last { // the entries of one segment are consecutive
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
