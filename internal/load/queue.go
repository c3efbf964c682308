package load

import "time"

// queue is the bookings of one rank that have prompt tokens, oldest first. A
// rank is taken to prefill one request after the other: the tokens of the
// oldest grow fewer from the moment it became that, at the rate that it was
// booked with, and those of the others wait. When it ends, early or late, what
// was left of it goes and the next one begins: so the estimate is put right
// with each leg that ends, and an error never outlives its request.
type queue struct {
	head, tail *Reservation
	since      time.Duration // when head became head, or was last put right
}

func (q *queue) push(r *Reservation, now time.Duration) {
	r.before, r.after = q.tail, nil
	if q.tail == nil {
		q.head, q.since = r, now
	} else {
		q.tail.after = r
	}
	q.tail = r
}

func (q *queue) remove(r *Reservation, now time.Duration) {
	if q.head == r {
		q.head, q.since = r.after, now
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

// decay returns how the rank's tokens, total together, go: at a time t in
// seconds they are the greater of floor and top - rate × t.
func (q *queue) decay(total int64) (top, floor, rate float64) {
	all := float64(total)
	if q.head == nil || q.head.rate <= 0 {
		return all, all, 0
	}
	return all + q.head.rate*q.since.Seconds(), all - float64(q.head.load.PrefillTokens), q.head.rate
}
