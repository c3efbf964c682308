package kvindex

import "math/bits"

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
	probeLimit = 4
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

// find returns where the value of a name is, nil if it is not there. The place
// is valid until the next insert or erase.
func (s *nameStore) find(n *names, h EngineHash) *named {
	if len(n.dir) == 0 {
		return nil
	}
	m := s.mix(h)
	seg := s.segment(n.at(m))
	for i := m; i < m+segBuckets; i++ {
		b := &seg[i%segBuckets]
		for j := range b.key {
			if b.key[j] == h && b.val[j] != 0 {
				return &b.val[j]
			}
		}
		if b.over&overMask == 0 {
			return nil
		}
	}
	return nil
}

// touch reads the line that a search for h begins with and returns something of
// it, so that many searches' misses overlap.
func (s *nameStore) touch(n *names, h EngineHash) uint32 {
	if len(n.dir) == 0 {
		return 0
	}
	m := s.mix(h)
	return s.segment(n.at(m))[m%segBuckets].over
}

// insert adds a name that is not there.
func (s *nameStore) insert(n *names, h EngineHash, v named) {
	if len(n.dir) == 0 {
		n.dir = append(n.dir, s.segs.get())
		n.depth = 0
	}
	m := s.mix(h)
	for !s.place(s.segment(n.at(m)), m, h, v, probeLimit) {
		s.split(n, m)
	}
	n.n++
}

// place puts a name at most limit buckets from its own, or reports that there
// is no room.
func (s *nameStore) place(seg *[segBuckets]bucket, m uint64, h EngineHash, v named, limit uint64) bool {
	for d := range limit {
		b := &seg[(m+d)%segBuckets]
		for j := range b.val {
			if b.val[j] != 0 {
				continue
			}
			b.key[j], b.val[j] = h, v
			for ; d > 0; d-- {
				seg[(m+d-1)%segBuckets].over++
			}
			return true
		}
	}
	return false
}

// erase removes a name that is there.
func (s *nameStore) erase(n *names, h EngineHash) {
	m := s.mix(h)
	seg := s.segment(n.at(m))
	for d := range uint64(segBuckets) {
		b := &seg[(m+d)%segBuckets]
		for j := range b.key {
			if b.key[j] != h || b.val[j] == 0 {
				continue
			}
			b.val[j] = 0
			n.n--
			for ; d > 0; d-- {
				seg[(m+d-1)%segBuckets].over--
			}
			return
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
			s.place(to, m, h, v, segBuckets)
		}
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

// drop empties a table and gives its segments back.
func (s *nameStore) drop(n *names) {
	var last uint32
	for _, id := range n.dir {
		if id != last {
			last = id
			clear(s.segment(id)[:])
			s.segs.put(id)
		}
	}
	*n = names{}
}
