package load

import (
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Report is what an engine says about one of its ranks.
type Report struct {
	Blocks   int64 // KV blocks that running requests hold
	Requests int64 // running requests, which hold these blocks
}

// Verdict is a report and what it was compared with.
type Verdict struct {
	Expected int64 // blocks that the book assumed the rank to hold
	Told     int64 // blocks of the report, and of bookings whose blocks are still to come
}

const (
	// reportLasts is how long a report counts. Its weight falls evenly to 0 in that time.
	reportLasts = 10 * time.Second
	// mostReported bounds the blocks that are believed of a report or of KV events if the
	// rank's capacity is unknown: some 16 million tokens.
	mostReported = 1 << 20
)

// correction is how many blocks the last report showed to be missing from the bookings of
// a rank, or too many in them. It shrinks as the requests of that time are released, and
// with time, since later requests are booked anew.
type correction struct {
	blocks float64
	since  time.Duration
	// The field of counts the requests in the report that are not released yet, including
	// those of other replicas. Each release takes its share of blocks away.
	of int64
	// The field over counts those of them that the engine had finished before the report,
	// although the book had not heard of it. While the report counts, the next requests
	// to be released are assumed to be these. Their whole bookings are in blocks, as a
	// negative part.
	over int64
	// The field others counts those of them that other replicas have booked.
	others int64
}

// has reports whether a booking existed when the report came. Later bookings have no part
// in the correction.
func (c *correction) has(r *Reservation) bool {
	return c.of > 0 && r.answer.here <= c.since.Seconds()
}

func (c *correction) at(now time.Duration) float64 {
	left := 1 - float64(now-c.since)/float64(reportLasts)
	return c.blocks * max(0, min(left, 1))
}

// Report corrects how many blocks the book assumes a rank to hold, by what its engine
// said at the given time. Some bookings are of requests that the engine does not run. If
// their first token is not due yet, the engine will hold their prompts, too, so these are
// added. The others are taken to be over. Bookings stay as they are. known is false for
// an unknown rank.
func (b *Book) Report(r worker.Rank, rep Report, at time.Time) (v Verdict, known bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.grownLocked(r, at)
	if e == nil {
		return v, false
	}
	told := min(max(float64(rep.Blocks), 0), e.mostHeld())
	var over int64
	n := int64(e.load.DecodeRequests)
	if n > 0 {
		missing := max(0, n-max(rep.Requests, 0))
		over = max(0, missing-e.waiting())
		told += float64(e.load.DecodeBlocks) / float64(n) * float64(missing-over)
	}
	h := e.held()
	v = Verdict{Expected: int64(h.whole(b.now)), Told: int64(told + 0.5)}
	e.correction = correction{
		blocks: told - float64(e.load.DecodeBlocks) - e.answers.at(b.now.Seconds()), since: b.now,
		of: max(n, rep.Requests), over: over, others: n - int64(e.own().DecodeRequests),
	}
	e.agree(b.now)
	b.writeLocked(e)
	return v, true
}

// waiting is how many answers of all replicas have their first token still to come.
func (e *entry) waiting() int64 {
	n := int64(e.answers.waiting)
	for i := range e.others {
		n += int64(e.others[i].waiting)
	}
	return n
}

// mostHeld bounds how many KV blocks the rank may be assumed to hold.
func (e *entry) mostHeld() float64 {
	if e.capacity > 0 {
		return e.capacity
	}
	return mostReported
}

// held is how many KV blocks a rank is assumed to hold for requests: those of their
// prompts, those of answers so far, and the corrections by KV events and by the last
// report.
type held struct {
	booked     float64
	answers    answers
	correction correction
	off        offBy
	doubt      float64 // by how many times less of it counts in a pick; 0: all of it does
}

func (e *entry) held() held {
	return held{booked: float64(e.load.DecodeBlocks), answers: e.answers, correction: e.correction, off: e.written.off}
}

// changes reports whether the number changes with time.
func (h *held) changes() bool {
	return h.answers.n > 0 || h.correction.blocks != 0 || h.off.blocks != 0
}

func (h *held) at(now time.Duration) float64 {
	return max(0, h.booked+h.answers.at(now.Seconds())+h.correction.at(now)+h.off.at(now)) / max(1, h.doubt)
}

// whole returns the number of blocks at a time, rounded to whole blocks.
func (h *held) whole(now time.Duration) float64 { return float64(int64(h.at(now) + 0.5)) }

// settle takes a booking off the entry, and with it the part of the corrections that came
// with its request. Differences up to the last report are in correction; later ones are
// in written.off.
func (e *entry) settle(r *Reservation, now time.Duration) {
	l, a, c := &r.load, &r.answer, &e.correction
	switch n := e.load.DecodeRequests; {
	case n == 0 || l.DecodeRequests == 0:
	case n == l.DecodeRequests:
		*c = correction{}
		e.agree(now)
	case !c.has(r):
		e.written.end(a, now, e.written.pace)
	case c.over > 0 && now-c.since < reportLasts:
		c.over--
		c.of--
		c.blocks += float64(l.DecodeBlocks) + a.come(c.since.Seconds())
		e.written.end(a, now, 0)
	default:
		c.blocks *= float64(c.of-1) / float64(c.of)
		c.of--
		e.written.end(a, now, e.written.pace)
	}
	e.load.add(l, -1)
}

// DecodingBlocks returns how many KV blocks a rank is assumed to hold for running answers
// at the given time. False means that the book does not know the rank.
func (b *Book) DecodingBlocks(r worker.Rank, now time.Time) (int64, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.grownLocked(r, now)
	if e == nil {
		return 0, false
	}
	h := e.held()
	return int64(h.whole(b.now)), true
}
