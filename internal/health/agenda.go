package health

import (
	"container/heap"
	"time"

	"github.com/seed-60ae5743/baton/internal/invariants"
)

// agenda holds what is to be asked, that which has been due longest first. Guarded by
// Tracker.mu.
type agenda struct {
	rows  []*turn
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
	heap.Push(a, x)
}

// strike takes x off its agenda, if it is on one.
func (x *turn) strike() {
	if x.agenda != nil {
		heap.Remove(x.agenda, x.row)
		x.agenda = nil
	}
}

// first returns what is due next, nil if the agenda is empty.
func (a *agenda) first() *turn {
	if len(a.rows) == 0 {
		return nil
	}
	return a.rows[0]
}

// ready returns what is due now, nil if there is nothing.
func (a *agenda) ready(now time.Time) *turn {
	if x := a.first(); x != nil && !x.due.After(now) {
		return x
	}
	return nil
}

// The following methods are for container/heap.

func (a *agenda) Len() int { return len(a.rows) }

func (a *agenda) Less(i, j int) bool {
	if invariants.Enabled {
		a.steps++
	}
	x, y := a.rows[i], a.rows[j]
	if !x.due.Equal(y.due) {
		return x.due.Before(y.due)
	}
	if c := x.of.rank.Compare(y.of.rank); c != 0 {
		return c < 0
	}
	return x.at < y.at
}

func (a *agenda) Swap(i, j int) {
	a.rows[i], a.rows[j] = a.rows[j], a.rows[i]
	a.rows[i].row, a.rows[j].row = i, j
}

func (a *agenda) Push(x any) {
	t := x.(*turn)
	t.row = len(a.rows)
	a.rows = append(a.rows, t)
}

func (a *agenda) Pop() any {
	last := len(a.rows) - 1
	x := a.rows[last]
	a.rows[last], a.rows = nil, a.rows[:last]
	return x
}
