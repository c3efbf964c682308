package budget

import (
	"math/bits"
	"sync"
)

// Budget bounds the sum of its shares. Safe for concurrent use.
type Budget struct {
	limit int64

	mu    sync.Mutex
	small int64 // guarded by mu: of bodies that are small
	large int64 // guarded by mu: of the others
}

// Small is the largest body that is small.
const Small = 1 << 20

// Least is the smallest budget that leaves room for a large body and small ones beside it.
const Least = 8 * Small

// New returns a budget of so many bytes, at least Least.
func New(limit int64) *Budget { return &Budget{limit: max(limit, Least)} }

// Limit is what all shares may come to.
func (b *Budget) Limit() int64 { return b.limit }

// Large is what those of large bodies may come to where one is let in: no larger body ever
// finds room, and one of that size does, where nothing else is in flight.
func (b *Budget) Large() int64 { return b.limit - b.limit/4 }

// Tight reports whether a large body may be refused now, for what others hold: one of
// unknown size, which needs half of the room for large ones free, or any.
func (b *Budget) Tight() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.large+2*Small > b.Large()/2 || b.small+b.large >= b.Large()
}

// Used is what they come to now. It may be over Limit by what was let in before.
func (b *Budget) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.small + b.large
}

// unsure is how much of a body of unknown size is small: so many of them together leave
// room for those that say that they are.
func (b *Budget) unsure() int64 { return min(Small, b.limit/2048) }

// Share is one stream's part. The zero value holds nothing; a share is owned by one
// goroutine at a time.
type Share struct {
	n     int64
	large bool
}

// Size is what the share holds.
func (s *Share) Size() int64 { return s.n }

// Admit makes the share n bytes, what a new body is said to have, and reports whether
// there is room. Where there is none, it stays as it was.
func (s *Share) Admit(b *Budget, n int64) bool { return s.take(b, n, n > Small, b.Large()) }

// AdmitUnseen is Admit for a body of which nobody knows what it will come to.
func (s *Share) AdmitUnseen(b *Budget, n int64) bool { return s.take(b, n, true, b.Large()) }

// Grow is Admit for a body of unknown size, of which n bytes have come, and which may be
// as large as most, Large at most. Once it is no longer taken for a small one it counts for
// more than has come, and begins so only while half of the room for large ones is free, or
// all of it where it needs more at once: those that have begun are to come to their end,
// rather than many to get half as far.
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

// take makes the share n bytes, where there is room: for large bodies, while they come to
// no more than atMost; for small ones, what those leave, and a quarter of the budget
// however many they are.
func (s *Share) take(b *Budget, n int64, large bool, atMost int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	smalls, larges := b.without(s)
	if large {
		larges += n
		if larges > atMost || smalls+larges > b.limit {
			return false
		}
	} else if smalls += n; smalls > b.limit-min(larges, b.Large()) {
		return false
	}
	b.small, b.large = smalls, larges
	s.n, s.large = n, large
	return true
}

// without is what the other shares come to.
func (b *Budget) without(s *Share) (smalls, larges int64) {
	if s.large {
		return b.small, b.large - s.n
	}
	return b.small - s.n, b.large
}

// Set makes the share n bytes, whether there is room or not. 0 gives it back.
func (s *Share) Set(b *Budget, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.small, b.large = b.without(s)
	if s.n, s.large = n, n > Small; s.large {
		b.large += n
	} else {
		b.small += n
	}
}
