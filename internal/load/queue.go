package load

import (
	"math"
	"time"
)

// queue has the bookings of one rank with prompt tokens, oldest first. How many prompts a rank computes at
// once is learned (side): its time is shared among so many of the oldest, and is shared out until the moment
// until. When a prompt ends, early or late, what was left of it is dropped: so each leg that ends corrects
// the estimate, and an error never outlives its request.
type queue struct {
	head, tail *Reservation
	n          int
	side       float64
	until      time.Duration
}

const (
	// A rank is believed to compute so many prompts at once that all but a twentieth of its prompts ended
	// among the oldest so many. A prompt that ended beyond them moves the number by up to sideStep.
	sideStep = 0.2
	beyond   = 0.05
	mostSide = 64
)

// sides is how many of the queue's prompts are believed to be computed now.
func (q *queue) sides() int {
	return min(q.n, 1+int(math.Round(q.side)))
}

// share gives the time since the last sharing to the prompts that are computed.
func (q *queue) share(now time.Duration) {
	took := now - q.until
	q.until = now
	k := q.sides()
	for r, i := q.head, 0; i < k; r, i = r.after, i+1 {
		r.had += took / time.Duration(k)
	}
}

// ends learns from where among the queue's prompts one ended how many are computed at once.
func (q *queue) ends(r *Reservation) {
	at := 0.0
	if q.n == 1 {
		return // there was nothing to overtake
	}
	for o := q.head; o != r && at < mostSide; o = o.after {
		at++
	}
	if at > q.side+0.5 {
		q.side = min(q.side+sideStep*(1-beyond), mostSide)
	} else {
		q.side = max(q.side-sideStep*beyond, 0)
	}
}

func (q *queue) push(r *Reservation, now time.Duration) {
	q.share(now)
	q.n++
	r.had = 0
	r.before, r.after = q.tail, nil
	if q.tail == nil {
		q.head = r
	} else {
		q.tail.after = r
	}
	q.tail = r
}

func (q *queue) remove(r *Reservation, now time.Duration) {
	q.share(now)
	q.ends(r)
	q.n--
	if q.head == r {
		q.head = r.after
	} else {
		r.before.after = r.after
	}
	if q.tail == r {
		q.tail = r.before
	} else {
		r.after.before = r.before
	}
	r.before, r.after = nil, nil
}
