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

// ended is remove for a prompt that is over.
func (q *queue) ended(r *Reservation, now time.Duration) {
	q.ends(r)
	q.remove(r, now)
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
	q.put(r, q.tail, 0, now)
}

// insert is push for a booking of another replica, of which is heard late: it goes before those that were
// booked after it.
func (q *queue) insert(r *Reservation, had, now time.Duration) {
	after := q.tail
	for after != nil && after.since > r.since {
		after = after.before
	}
	q.put(r, after, had, now)
}

// put puts a booking behind another one, or, if that is nil, first.
func (q *queue) put(r, behind *Reservation, had, now time.Duration) {
	q.share(now)
	q.n++
	r.had, r.before = had, behind
	if behind == nil {
		r.after, q.head = q.head, r
	} else {
		r.after, behind.after = behind.after, r
	}
	if r.after == nil {
		q.tail = r
	} else {
		r.after.before = r
	}
}

// remove takes a booking out of the queue.
func (q *queue) remove(r *Reservation, now time.Duration) {
	q.share(now)
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
