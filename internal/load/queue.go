package load

import (
	"math"
	"time"
)

// queue has the bookings of one rank with prompt tokens, oldest first. A rank is assumed
// to prefill one request after the other. The tokens of the oldest request decrease from
// the moment it became the oldest, at the rate that it was booked with; the others wait.
// When the oldest ends, early or late, its remaining tokens are dropped and the next one
// begins. So each leg that ends corrects the estimate, and an error never outlives its
// request. The cost in seconds asks more: how many prompts a rank computes at once is
// learned, and each gets its share of the time.
type queue struct {
	head, tail *Reservation
	n          int
	since      time.Duration // when head became head, or its tokens were last corrected

	// Of the cost in seconds: the rank's time is shared among its oldest prompts, so many as it is
	// believed to compute at once (side), and is shared out until the moment until.
	side  float64
	until time.Duration
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
		q.head, q.since = r, now
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
