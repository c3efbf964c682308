package health

import (
	"container/heap"
	"time"

	"github.com/seed-60ae5743/baton/internal/invariants"
)

// agenda holds the workers that are to be probed, the one that has been due longest
// first. A worker is on at most one agenda. Guarded by Tracker.mu.
type agenda struct {
	rows  []*entry
	steps int // comparisons that were made; counted only in builds with invariants
}

// put makes e due for a probe at the given time.
func (a *agenda) put(e *entry, due time.Time) {
	e.strike()
	e.agenda, e.due = a, due
	heap.Push(a, e)
}

// strike takes e off its agenda, if it is on one.
func (e *entry) strike() {
	if e.agenda != nil {
		heap.Remove(e.agenda, e.row)
		e.agenda = nil
	}
}

// first returns the entry that is due next, nil if the agenda is empty.
func (a *agenda) first() *entry {
	if len(a.rows) == 0 {
		return nil
	}
	return a.rows[0]
}

// ready returns an entry that is due now, nil if there is none.
func (a *agenda) ready(now time.Time) *entry {
	if e := a.first(); e != nil && !e.due.After(now) {
		return e
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
	return x.rank.Compare(y.rank) < 0
}

func (a *agenda) Swap(i, j int) {
	a.rows[i], a.rows[j] = a.rows[j], a.rows[i]
	a.rows[i].row, a.rows[j].row = i, j
}

func (a *agenda) Push(x any) {
	e := x.(*entry)
	e.row = len(a.rows)
	a.rows = append(a.rows, e)
}

func (a *agenda) Pop() any {
	last := len(a.rows) - 1
	e := a.rows[last]
	a.rows[last], a.rows = nil, a.rows[:last]
	return e
}
