package load

import (
	"container/heap"
	"time"
)

// Growth is how the answer of a booking is expected to take KV blocks: none at first,
// then so many a second, and no more than so many. The zero value is an answer that
// takes none.
type Growth struct {
	After     time.Duration // from the booking on, until the first token
	PerSecond float64       // blocks, of each choice
	Most      float64       // blocks, of each choice
	Choices   int           // that are written at once; 0: one
}

// phase is how far the answer of a booking has come.
type phase uint8

const (
	still   phase = iota // it does not grow, or is over
	waiting              // its first token is to come
	growing
	grown // it has the most that was expected
)

// growing of one booking: between two instants the blocks go up evenly. Guarded by
// Book.mu; instants are in seconds since Book.epoch.
type growingAnswer struct {
	phase       phase
	from, until float64
	rate, most  float64 // of all choices together
	choices     float64
	here        float64 // since when it is booked on its rank, of one that does not grow as well
	at          int     // in Book.turns, while waiting or growing
}

// answers are the answers of a rank: at a time t in seconds they hold
// grown + rate × t - begun blocks, besides those of their prompts.
type answers struct {
	grown, rate, begun float64
	n                  int // that count in it
	waiting            int // whose first token is to come

	// How long their choices have been written for, added up: at a time t in seconds
	// running × t - starts, and done of those that are over.
	running, starts, done float64
}

// took is for how many seconds choices have been written, those that are over included.
func (a *answers) took(now float64) float64 { return a.running*now - a.starts + a.done }

func (a *answers) at(now float64) float64 {
	if a.n == 0 {
		return 0 // and no rounding is kept
	}
	return max(0, a.grown+a.rate*now-a.begun)
}

// count adds what an answer counts in its phase, or takes it off.
func (a *answers) count(g *growingAnswer, sign float64) {
	switch g.phase {
	case waiting:
		a.waiting += int(sign)
		return
	case growing:
		a.rate += sign * g.rate
		a.begun += sign * g.rate * g.from
	case grown:
		a.grown += sign * g.most
	default:
		return
	}
	a.running += sign * g.choices
	a.starts += sign * g.choices * g.from
	if a.n += int(sign); a.n == 0 {
		*a = answers{waiting: a.waiting, done: a.done}
	}
}

// plantLocked begins the growth of a booking that has been made now.
func (b *Book) plantLocked(r *Reservation, e *entry, g Growth) {
	if !(g.PerSecond > 0 && g.Most > 0) {
		return
	}
	from, n := (b.now + max(g.After, 0)).Seconds(), float64(max(g.Choices, 1))
	r.answer = growingAnswer{
		phase: waiting, from: from, until: from + g.Most/g.PerSecond, rate: n * g.PerSecond, most: n * g.Most, choices: n,
		here: r.answer.here,
	}
	heap.Push(&b.turns, r)
	e.answers.count(&r.answer, 1)
	b.turnLocked(r, e)
}

// turnLocked takes a booking through the phases that have passed.
func (b *Book) turnLocked(r *Reservation, e *entry) {
	a, now := &r.answer, b.now.Seconds()
	for a.phase == waiting && now >= a.from || a.phase == growing && now >= a.until {
		if e != nil {
			e.answers.count(a, -1)
		}
		if a.phase++; e != nil {
			e.answers.count(a, 1)
		}
		if a.phase == grown {
			heap.Remove(&b.turns, a.at)
		} else {
			heap.Fix(&b.turns, a.at)
		}
	}
}

// growLocked brings every booking into the phase that it is in now.
func (b *Book) growLocked() {
	for now := b.now.Seconds(); len(b.turns) > 0 && b.turns[0].answer.next() <= now; {
		r := b.turns[0]
		e := b.entryLocked(r)
		b.turnLocked(r, e)
		if e != nil {
			b.writeLocked(e)
		}
	}
}

// uprootLocked ends the growth of a booking; e is nil where its rank has left.
func (b *Book) uprootLocked(r *Reservation, e *entry) {
	b.turnLocked(r, e)
	a, now := &r.answer, b.now.Seconds()
	if e != nil {
		e.answers.count(a, -1)
		e.answers.done += a.took(now)
		e.over += a.come(now)
	}
	if a.phase == waiting || a.phase == growing {
		heap.Remove(&b.turns, a.at)
	}
	a.phase = still
}

// replantLocked goes on with a booking's growth, as far as it has come, on another rank.
func (b *Book) replantLocked(r *Reservation, e *entry) {
	a, now := &r.answer, b.now.Seconds()
	if a.here = now; a.most == 0 {
		return
	}
	a.phase = waiting
	heap.Push(&b.turns, r)
	e.answers.count(a, 1)
	b.turnLocked(r, e)
	e.answers.done -= a.took(now) // it was not written here
	e.over -= a.come(now)
}

// come is how many blocks the answer is expected to have come to.
func (a *growingAnswer) come(now float64) float64 {
	return max(0, min(a.rate*(now-a.from), a.most))
}

// took is for how many seconds the choices of the answer have been written until now, added
// up: as long as it is booked, also when it has come to more than was expected.
func (a *growingAnswer) took(now float64) float64 {
	return a.choices * max(0, now-a.from)
}

// next is when the phase ends.
func (a *growingAnswer) next() float64 {
	if a.phase == waiting {
		return a.from
	}
	return a.until
}

// turns are the bookings whose phase ends, soonest first: a heap.
type turns []*Reservation

// Len implements heap.Interface.
func (t turns) Len() int { return len(t) }

// Less implements heap.Interface.
func (t turns) Less(i, j int) bool { return t[i].answer.next() < t[j].answer.next() }

// Swap implements heap.Interface.
func (t turns) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].answer.at, t[j].answer.at = i, j
}

// Push implements heap.Interface.
func (t *turns) Push(x any) {
	r := x.(*Reservation)
	r.answer.at = len(*t)
	*t = append(*t, r)
}

// Pop implements heap.Interface.
func (t *turns) Pop() any {
	n := len(*t) - 1
	r := (*t)[n]
	(*t)[n] = nil
	*t = (*t)[:n]
	return r
}
