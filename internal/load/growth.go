package load

import "time"

// Growth is how the answer of a booking is expected to take KV blocks: none at first,
// then so many a second, up to a limit. The zero value is an answer that takes none.
type Growth struct {
	After     time.Duration // time from the booking to the first token
	PerSecond float64       // blocks a second, for each choice
	Most      float64       // blocks, for each choice
	Choices   int           // choices written at once; 0 means 1
}

// phase is the state of a booking's answer.
type phase uint8

const (
	still   phase = iota // the answer does not grow, or is over
	waiting              // the first token is still to come
	growing
	grown // the answer has the most blocks that were expected
)

// growingAnswer is the growth of one booking: between from and until its blocks increase
// evenly. Guarded by Book.mu. Times are in seconds since Book.epoch.
type growingAnswer struct {
	of          *Reservation
	phase       phase
	from, until float64
	rate, most  float64 // of all choices together
	choices     float64
	here        float64 // when it was booked on its rank; set even if the answer does not grow
	at          int     // index in Book.turns, while waiting or growing
}

// answers are the answers of a rank. At a time t in seconds they hold grown + rate × t -
// begun blocks, in addition to those of their prompts.
type answers struct {
	grown, rate, begun float64
	n                  int     // answers that are growing or grown
	waiting            int     // answers whose first token is still to come
	most               float64 // blocks that all of them are expected to take at most

	// The seconds for which choices have been written, summed over the choices: at a time
	// t, running × t - starts for these answers, and done for those that are over.
	running, starts, done float64
}

// took is for how many seconds choices have been written, including those that are over.
func (a *answers) took(now float64) float64 { return a.running*now - a.starts + a.done }

func (a *answers) at(now float64) float64 {
	if a.n == 0 {
		return 0 // so that rounding errors do not remain
	}
	return max(0, a.grown+a.rate*now-a.begun)
}

// count adds an answer in its phase, or with sign -1 takes it off.
func (a *answers) count(g *growingAnswer, sign float64) {
	if g.phase != still {
		a.most += sign * g.most
	}
	switch g.phase {
	case waiting:
		a.waiting += int(sign)
		if a.n+a.waiting == 0 {
			a.most = 0
		}
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
	// What is left of sums of nothing are rounding errors.
	a.n += int(sign)
	if a.n == 0 {
		*a = answers{waiting: a.waiting, most: a.most, done: a.done}
	}
	if a.n+a.waiting == 0 {
		a.most = 0
	}
}

// plantLocked begins the growth of a booking that was just made.
func (b *Book) plantLocked(r *Reservation, e *entry, g Growth) {
	if !(g.PerSecond > 0 && g.Most > 0) {
		return
	}
	from, n := (b.now + max(g.After, 0)).Seconds(), float64(max(g.Choices, 1))
	r.answer = growingAnswer{
		of: r, phase: waiting, from: from, until: from + g.Most/g.PerSecond, rate: n * g.PerSecond, most: n * g.Most, choices: n,
		here: r.answer.here,
	}
	b.turns.Put(&r.answer)
	e.answers.count(&r.answer, 1)
	b.turnLocked(r, e)
}

// turnLocked moves a booking's answer on through the phases that have ended.
func (b *Book) turnLocked(r *Reservation, e *entry) {
	a, now := &r.answer, b.now.Seconds()
	for a.phase == waiting && now >= a.from || a.phase == growing && now >= a.until {
		if e != nil {
			e.answers.count(a, -1)
		}
		a.phase++
		if e != nil {
			e.answers.count(a, 1)
		}
		if a.phase == grown {
			b.turns.Remove(a)
		} else {
			b.turns.Fix(a)
		}
	}
}

// growLocked moves every booking's answer on to its present phase.
func (b *Book) growLocked() {
	now := b.now.Seconds()
	for a := b.turns.First(); a != nil && a.next() <= now; a = b.turns.First() {
		e := b.entryLocked(a.of)
		b.turnLocked(a.of, e)
		if e != nil {
			b.writeLocked(e)
		}
	}
}

// uprootLocked ends the growth of a booking. e is nil if its rank has left.
func (b *Book) uprootLocked(r *Reservation, e *entry) {
	b.turnLocked(r, e)
	a, now := &r.answer, b.now.Seconds()
	if e != nil {
		e.answers.count(a, -1)
		e.answers.done += a.took(now)
		e.over += a.come(now)
	}
	if a.phase == waiting || a.phase == growing {
		b.turns.Remove(a)
	}
	a.phase = still
}

// replantLocked lets a booking's answer go on growing on another rank.
func (b *Book) replantLocked(r *Reservation, e *entry) {
	a, now := &r.answer, b.now.Seconds()
	a.here = now
	if a.most == 0 {
		return
	}
	a.phase = waiting
	b.turns.Put(a)
	e.answers.count(a, 1)
	b.turnLocked(r, e)
	e.answers.done -= a.took(now) // it was not written on this rank
	e.over -= a.come(now)
}

// come is how many blocks the answer is expected to have now.
func (a *growingAnswer) come(now float64) float64 {
	return max(0, min(a.rate*(now-a.from), a.most))
}

// took is for how many seconds the choices of the answer have been written, summed over
// the choices. It goes on as long as the answer is booked, even after its expected end.
func (a *growingAnswer) took(now float64) float64 {
	return a.choices * max(0, now-a.from)
}

// next is when the present phase ends.
func (a *growingAnswer) next() float64 {
	if a.phase == waiting {
		return a.from
	}
	return a.until
}

// Before implements [heap.Element]: which of two answers is the first whose phase ends.
func (a *growingAnswer) Before(o *growingAnswer) bool { return a.next() < o.next() }

// Place implements [heap.Element].
func (a *growingAnswer) Place() *int { return &a.at }
