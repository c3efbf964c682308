package load

import (
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Report is what an engine says of one of its ranks.
type Report struct {
	Blocks   int64 // KV blocks that running requests hold
	Requests int64 // that hold them
}

// Verdict is what a report was compared with.
type Verdict struct {
	Expected int64 // blocks that the book took the rank to hold
	Told     int64 // those of the report, with those of bookings that hold nothing yet
}

const (
	// reportLasts is how long a report counts: less and less, and then not at all.
	reportLasts = 10 * time.Second
	// mostReported bounds what is believed of a report or of KV events, where the rank's
	// capacity does not: some 16 million tokens.
	mostReported = 1 << 20
)

// correction is what the last report has shown to be missing from the bookings of a
// rank, or too much in them. It goes with the requests that it was found with, and with
// time: what comes after the report is booked anew.
type correction struct {
	blocks float64
	since  time.Duration
	// of is of how many requests it was found that are not released yet, those of other
	// replicas included: each takes its part of blocks with it.
	of int64
	// over is how many of them the engine had done with: that their answers have ended is
	// heard later. While the report counts, the next of them that are released are these,
	// and all that they have booked is in blocks.
	over int64
}

// has reports whether a booking was there when the report came: what is booked from then on
// has no part in it.
func (c *correction) has(r *Reservation) bool {
	return c.of > 0 && r.answer.here <= c.since.Seconds()
}

func (c *correction) at(now time.Duration) float64 {
	left := 1 - float64(now-c.since)/float64(reportLasts)
	return c.blocks * max(0, min(left, 1))
}

// Report corrects what the book takes a rank to hold by what its engine says, which was
// true at the given time. Of the bookings whose requests the engine does not run, those
// whose first token is not to be expected yet count with their prompts besides: the engine
// will hold those, too. The others are over. Bookings stay as they are. It reports false
// for an unknown rank.
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
		over = max(0, missing-int64(e.answers.waiting))
		told += float64(e.load.DecodeBlocks) / float64(n) * float64(missing-over)
	}
	h := e.held()
	v = Verdict{Expected: int64(h.whole(b.now)), Told: int64(told + 0.5)}
	e.correction = correction{
		blocks: told - float64(e.load.DecodeBlocks) - e.answers.at(b.now.Seconds()), since: b.now,
		of: max(n, rep.Requests), over: over,
	}
	e.agree(b.now)
	b.writeLocked(e)
	return v, true
}

// mostHeld is how many KV blocks the rank may be said to hold.
func (e *entry) mostHeld() float64 {
	if e.capacity > 0 {
		return e.capacity
	}
	return mostReported
}

// held is how many KV blocks a rank is taken to hold for requests: those of their
// prompts, those of answers so far, and what KV events and the last report have corrected.
type held struct {
	booked     float64
	answers    answers
	correction correction
	off        offBy
}

func (e *entry) held() held {
	return held{float64(e.load.DecodeBlocks), e.answers, e.correction, e.written.off}
}

// changes reports whether it is another number as time goes by.
func (h *held) changes() bool {
	return h.answers.n > 0 || h.correction.blocks != 0 || h.off.blocks != 0
}

func (h *held) at(now time.Duration) float64 {
	return max(0, h.booked+h.answers.at(now.Seconds())+h.correction.at(now)+h.off.at(now))
}

// whole is at, in whole blocks.
func (h *held) whole(now time.Duration) float64 { return float64(int64(h.at(now) + 0.5)) }

// settle takes off a booking whose answer is over, and of the corrections what came with
// its request. What was off when the last report came is in its correction; what was off
// since then is in what KV events have corrected.
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

// DecodingBlocks returns how many KV blocks a rank is taken to hold for running answers
// at the given time, and whether the book knows the rank.
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
