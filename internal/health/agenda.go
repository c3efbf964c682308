package health

import (
	"time"

	"github.com/seed-60ae5743/baton/internal/heap"
	"github.com/seed-60ae5743/baton/internal/invariants"
)

// agenda holds what is to be asked, that which has been due longest first. Guarded by
// Tracker.mu.
type agenda struct {
	heap.Heap[*turn]
	steps int // comparisons that were made; counted only in builds with invariants
}

// turn says where a worker is to be asked, and when. It is on at most one agenda. Guarded
// by Tracker.mu.
type turn struct {
	of     *entry // set at construction, read-only
	at     string // http://host:port
	agenda *agenda
	row    int // in the agenda
	due    time.Time
	tries  int // of a question at arrival: how often it has had no answer
}

// put makes x due at the given time.
func (a *agenda) put(x *turn, due time.Time) {
	x.strike()
	x.agenda, x.due = a, due
	a.Put(x)
}

// strike takes x off its agenda, if it is on one.
func (x *turn) strike() {
	if x.agenda != nil {
		x.agenda.Remove(x)
		x.agenda = nil
	}
}

// ready returns what is due now, nil if there is nothing.
func (a *agenda) ready(now time.Time) *turn {
	if x := a.First(); x != nil && !x.due.After(now) {
		return x
	}
	return nil
}

// Before implements [heap.Element]: which is asked first.
func (x *turn) Before(y *turn) bool {
	if invariants.Enabled {
		x.agenda.steps++
	}
	if !x.due.Equal(y.due) {
		return x.due.Before(y.due)
	}
	if c := x.of.rank.Compare(y.of.rank); c != 0 {
		return c < 0
	}
	return x.at < y.at
}

// Place implements [heap.Element].
func (x *turn) Place() *int { return &x.row }
