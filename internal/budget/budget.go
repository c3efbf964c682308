package budget

import (
	"math/bits"
	"sync"
)

// Budget bounds the bytes of its shares together. Safe for concurrent use.
type Budget struct {
	limit int64

	mu    sync.Mutex
	small int64 // guarded by mu: bytes of small bodies
	large int64 // guarded by mu: bytes of the others
}

// Small is the size up to which a body counts as small.
const Small = 1 << 20

// Least is the smallest budget that has room for a large body and for small ones beside
// it.
const Least = 8 * Small

// New returns a budget of limit bytes, or of Least if that is more.
func New(limit int64) *Budget { return &Budget{limit: max(limit, Least)} }

// Limit is how many bytes all shares may take together.
func (b *Budget) Limit() int64 { return b.limit }

// Large is how many bytes the large bodies may take together for one more to be let in. No
// larger body ever has room; a body of this size has, if nothing else is in flight.
func (b *Budget) Large() int64 { return b.limit - b.limit/4 }

// Tight reports whether a large body may be refused now because of other bodies. A body
// of unknown size is refused if less than half of the room for large ones is free; any
// large body, if that room is taken.
func (b *Budget) Tight() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.large+2*Small > b.Large()/2 || b.small+b.large >= b.Large()
}

// Used is how many bytes are taken now. It may exceed Limit, since bodies that were let
// in may grow.
func (b *Budget) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.small + b.large
}

// unsure is up to which size a body of unknown size counts as small. It is so little that
// many such bodies leave room for those whose size is known to be small.
func (b *Budget) unsure() int64 { return min(Small, b.limit/2048) }

// Share is the part of one stream. The zero value holds nothing. One goroutine at a time
// owns a share.
type Share struct {
	n     int64
	large bool
}

// Size is how many bytes the share holds.
func (s *Share) Size() int64 { return s.n }

// Admit sets the share to n bytes, the size that is announced for a new body. False means
// that there is no room: the share then stays as it was.
func (s *Share) Admit(b *Budget, n int64) bool { return s.take(b, n, n > Small, b.Large()) }

// AdmitUnseen is Admit for a body of unknown size.
func (s *Share) AdmitUnseen(b *Budget, n int64) bool { return s.take(b, n, true, b.Large()) }

// Grow is Admit for a body of unknown size, of which n bytes have come. The argument most
// bounds the size of the body, and is at most Large. Once the body no longer counts as
// small, it counts for more than has come. That may begin only while half of the room for
// large bodies is free, or all of it if the body needs more than half: so those that have
// begun reach their end, and no more begin than can.
func (s *Share) Grow(b *Budget, n, most int64) bool {
	switch {
	case n <= s.n:
		return true
	case !s.large && n <= b.unsure():
		return s.take(b, n, false, 0)
	}
	next := max(n, min(max(int64(1)<<bits.Len64(uint64(n-1)), Small), most))
	if s.large {
		return s.take(b, next, true, b.Large())
	}
	return s.take(b, next, true, max(next, b.Large()/2))
}

// take sets the share to n bytes if there is room. Large bodies have room up to atMost,
// within the limit. Small ones have what the large ones leave, and always a quarter of
// the budget.
func (s *Share) take(b *Budget, n int64, large bool, atMost int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	smalls, larges := b.without(s)
	if large {
		larges += n
		if larges > atMost || smalls+larges > b.limit {
			return false
		}
	} else {
		smalls += n
		if smalls > b.limit-min(larges, b.Large()) {
			return false
		}
	}
	b.small, b.large = smalls, larges
	s.n, s.large = n, large
	return true
}

// without returns how many bytes the other shares take.
func (b *Budget) without(s *Share) (smalls, larges int64) {
	if s.large {
		return b.small, b.large - s.n
	}
	return b.small - s.n, b.large
}

// Set sets the share to n bytes, with or without room. 0 gives the share back.
func (s *Share) Set(b *Budget, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.small, b.large = b.without(s)
	s.n, s.large = n, n > Small
	if s.large {
		b.large += n
	} else {
		b.small += n
	}
}
