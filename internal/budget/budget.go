package budget

import "sync/atomic"

// Budget bounds the sum of its shares. Safe for concurrent use.
type Budget struct {
	limit int64
	used  atomic.Int64
}

// Small is the largest body that may use the whole budget.
const Small = 1 << 20

// Least is the smallest budget that leaves room for a large body and small ones beside it.
const Least = 8 * Small

// New returns a budget of so many bytes, at least Least.
func New(limit int64) *Budget { return &Budget{limit: max(limit, Least)} }

// Limit is what all shares may come to.
func (b *Budget) Limit() int64 { return b.limit }

// Large is what they may come to where a body over Small is let in.
func (b *Budget) Large() int64 { return b.limit - b.limit/4 }

// Used is what they come to now. It may be over Limit by what was let in before.
func (b *Budget) Used() int64 { return b.used.Load() }

// room is what all shares may come to where one of n bytes is among them.
func (b *Budget) room(n int64) int64 {
	if n > Small {
		return b.Large()
	}
	return b.limit
}

// Share is one stream's part. The zero value holds nothing; a share is owned by one
// goroutine at a time.
type Share struct{ n int64 }

// Size is what the share holds.
func (s *Share) Size() int64 { return s.n }

// Grow makes the share n bytes, if it is less, and reports whether there is room. Where
// there is none, it stays as it was.
func (s *Share) Grow(b *Budget, n int64) bool {
	if n <= s.n {
		return true
	}
	for {
		used := b.used.Load()
		next := used + n - s.n
		if next > b.room(n) {
			return false
		}
		if b.used.CompareAndSwap(used, next) {
			s.n = n
			return true
		}
	}
}

// Set makes the share n bytes, whether there is room or not. 0 gives it back.
func (s *Share) Set(b *Budget, n int64) {
	b.used.Add(n - s.n)
	s.n = n
}
