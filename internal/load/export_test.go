package load

import (
	"slices"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// RankLoad is the load of a named rank.
type RankLoad struct {
	Rank worker.Rank
	Load
}

// Loads appends the load of every known rank to dst, ordered by rank.
func (b *Book) Loads(dst []RankLoad) []RankLoad {
	from := len(dst)
	b.mu.Lock()
	for i := range b.entries {
		if e := &b.entries[i]; e.present {
			dst = append(dst, RankLoad{Rank: e.rank, Load: e.load})
		}
	}
	b.mu.Unlock()
	slices.SortFunc(dst[from:], func(x, y RankLoad) int { return x.Rank.Compare(y.Rank) })
	return dst
}

// Rank returns the rank that was booked last, or zero if none was.
func (r *Reservation) Rank() worker.Rank {
	if r.book == nil {
		return worker.Rank{}
	}
	r.book.mu.Lock()
	defer r.book.mu.Unlock()
	return r.rank
}

// Held reports whether the booking exists and is not released. For nil it is false.
func (r *Reservation) Held() bool {
	if r == nil || r.book == nil {
		return false
	}
	r.book.mu.Lock()
	defer r.book.mu.Unlock()
	return r.held
}

// Load returns what is still booked.
func (r *Reservation) Load() Load {
	if r.book == nil {
		return Load{}
	}
	r.book.mu.Lock()
	defer r.book.mu.Unlock()
	return r.load
}
