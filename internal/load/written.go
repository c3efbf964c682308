package load

import (
	"math"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Written is what the answers of a rank have come to, by its KV events.
type Written struct {
	Blocks  float64 // that have become full
	Seconds float64 // that the choices of answers took for it, added up
}

const (
	// writtenWindow is how long blocks are counted before they are compared with what was
	// expected; a rank of which nothing was heard for writtenGap begins anew, since events
	// may have been lost.
	writtenWindow = time.Second
	writtenGap    = 15 * time.Second
	// offLasts is how fast what was found is given up: answers that are booked from then
	// on are expected to be as fast as was seen.
	offLasts = 30 * time.Second
	// paceMemory is how many windows a rank's pace is the mean of.
	paceMemory = 8
)

// written is what KV events have told of a rank's answers, and by how many blocks that
// differs from how they were expected to grow.
type written struct {
	off   offBy
	since time.Duration // since when off has come about; nothing was off then
	pace  float64       // blocks a second of one choice; 0: not known

	counting bool    // since off.heard
	blocks   float64 // heard since then
	from     float64 // what had been expected until then, and what of blocks was told otherwise
	seconds  float64 // answers' time until then
}

// offBy is by how many blocks a rank differs from what is booked on it. It goes with the
// answers that it was found with, and where nothing is heard of the rank any more.
type offBy struct {
	blocks float64
	heard  time.Duration // the last time
}

func (o *offBy) fresh(now time.Duration) bool { return now-o.heard <= writtenGap }

func (o *offBy) at(now time.Duration) float64 {
	if !o.fresh(now) {
		return 0
	}
	return o.blocks
}

// Wrote corrects what the book takes a rank to hold by its KV events: so many blocks that
// extend a chain by one have become full, which is what a running answer does. live says
// that they were heard as they came, each once; else counting begins anew. What was counted
// is returned when it has been compared, some once a second. It is for ranks whose engine
// tells of each block when it is full.
func (b *Book) Wrote(r worker.Rank, blocks int, live bool, at time.Time) (w Written, compared bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.grownLocked(r, at)
	if e == nil {
		return w, false
	}
	x, now := &e.written, b.now
	took, counts := now-x.off.heard, live && x.counting
	if counts && took < writtenWindow {
		x.blocks += float64(blocks)
		return w, false
	}
	grown, seconds := e.expected(now), e.answers.took(now.Seconds())
	off := x.off.at(now) * (1 - float64(took)/float64(offLasts))
	if counts && x.off.fresh(now) {
		w, compared = Written{Blocks: x.blocks + float64(blocks), Seconds: seconds - x.seconds}, true
		off = min(off+w.Blocks-(grown-x.from), e.mostHeld())
		x.learn(w)
	} else if off == 0 {
		x.since = now
	}
	if e.load.DecodeRequests == 0 { // they are of answers that others have booked, or that are over
		off = 0
	}
	x.off = offBy{off, now}
	b.writeLocked(e)
	// What came with the first message that counts may be of before.
	x.counting, x.blocks, x.from, x.seconds = live, 0, grown, seconds
	return w, compared
}

// expected is how many blocks the answers of the rank were expected to have come to, those
// that are over included: it only grows, but where bookings move away.
func (e *entry) expected(now time.Duration) float64 {
	return e.answers.at(now.Seconds()) + e.over
}

func (x *written) learn(w Written) {
	if w.Seconds <= 0 {
		return
	}
	if pace := w.Blocks / w.Seconds; x.pace == 0 {
		x.pace = pace
	} else {
		x.pace += (pace - x.pace) / paceMemory
	}
}

// agree takes what the book has now for what the rank holds: nothing is off, and of what
// is being counted only what is still to come will be.
func (e *entry) agree(now time.Duration) {
	x := &e.written
	x.off.blocks, x.since = 0, now
	x.from = e.expected(now) - x.blocks
}

// end takes off what is left in off of an answer that is over: of what its choices wrote at
// a pace, which could come to so many blocks at most, and of what was expected in its place.
func (x *written) end(a *growingAnswer, now time.Duration, pace float64) {
	if x.pace == 0 || a.most == 0 || !x.off.fresh(now) {
		return
	}
	to, from, wrote := now.Seconds(), max(x.since.Seconds(), a.here, a.from), pace*a.choices
	at := (x.off.heard - writtenWindow/2).Seconds() // nothing is given up of what came in a window before that ends
	x.off.blocks -= remaining(wrote, from, min(a.from+a.most/wrote, to), at) - remaining(a.rate, from, min(a.until, to), at)
}

// remaining is what is left, at a time, of what came at a rate from one time until another and
// was given up as off is.
func remaining(rate, from, until, at float64) float64 {
	if rate == 0 || until <= from {
		return 0
	}
	lasts := offLasts.Seconds()
	return rate * lasts * (math.Exp((until-at)/lasts) - math.Exp((from-at)/lasts))
}
