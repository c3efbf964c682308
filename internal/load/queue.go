package load

import "time"

// queue has the bookings of one rank with prompt tokens, oldest first. A rank is assumed
// to prefill one request after the other. The tokens of the oldest request decrease from
// the moment it became the oldest, at the rate that it was booked with; the others wait.
// When the oldest ends, early or late, its remaining tokens are dropped and the next one
// begins. So each leg that ends corrects the estimate, and an error never outlives its
// request.
type queue struct {
	head, tail *Reservation
	n          int
	since      time.Duration // when head became head, or its tokens were last corrected
}

func (q *queue) push(r *Reservation, now time.Duration) {
	q.n++
	r.before, r.after = q.tail, nil
	if q.tail == nil {
		q.head, q.since = r, now
	} else {
		q.tail.after = r
	}
	q.tail = r
}

func (q *queue) remove(r *Reservation, now time.Duration) {
	q.n--
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

// decay returns how the rank's prompt tokens decrease. total is how many are booked. At a
// time t in seconds there are the greater of floor and top - rate × t.
func (q *queue) decay(total int64) (top, floor, rate float64) {
	all := float64(total)
	if q.head == nil || q.head.rate <= 0 {
		return all, all, 0
	}
	return all + q.head.rate*q.since.Seconds(), all - float64(q.head.load.PrefillTokens), q.head.rate
}
