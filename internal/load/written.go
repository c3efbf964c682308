package load

import (
	"math"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Written is how much the answers of a rank have written, according to its KV events.
type Written struct {
	Blocks  float64 // blocks that have become full
	Seconds float64 // seconds for which choices were being written, summed over the choices
}

const (
	// writtenWindow is how long blocks are counted before the count is compared with what
	// was expected. If nothing is heard of a rank for writtenGap, its count begins anew,
	// since events may have been lost.
	writtenWindow = time.Second
	writtenGap    = 15 * time.Second
	// offLasts is the time in which a difference that was found decays. Later answers are
	// booked with the speed that was seen, so they need no correction.
	offLasts = 30 * time.Second
	// paceMemory is the number of windows over which a rank's pace is averaged.
	paceMemory = 8
)

// written is what KV events have told about a rank's answers, and by how many blocks this
// differs from their expected growth.
type written struct {
	off   offBy
	since time.Duration // when off was last 0
	pace  float64       // blocks a second of one choice; 0: unknown

	counting bool    // a window has begun, at off.heard
	blocks   float64 // counted in this window
	from     float64 // entry.expected at the beginning of the window; see agree
	seconds  float64 // answers.took at the beginning of the window
}

// offBy is by how many blocks a rank differs from what is booked on it. The difference
// goes away with the answers in which it was found, and when nothing more is heard of the
// rank.
type offBy struct {
	blocks float64
	heard  time.Duration // when events of the rank were last counted
}

func (o *offBy) fresh(now time.Duration) bool { return now-o.heard <= writtenGap }

func (o *offBy) at(now time.Duration) float64 {
	if !o.fresh(now) {
		return 0
	}
	return o.blocks
}

// Wrote corrects, by KV events, how many blocks the book assumes a rank to hold. So many
// blocks, each of which extends a chain by one, have become full, as those of a running
// answer do. live says that the events came as they were sent, each once; otherwise the
// count begins anew. About once a second the count is compared with what was expected,
// and is then returned. compared is false at other times. Wrote is for ranks whose engine
// announces each block when it is full.
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
		if all := e.load.DecodeRequests; all > 0 { // others' answers write, too
			w.Blocks *= float64(e.own().DecodeRequests) / float64(all)
		}
		x.learn(w)
	} else if off == 0 {
		x.since = now
	}
	if e.load.DecodeRequests == 0 { // the blocks are of answers that nobody has booked, or that are over
		off = 0
	}
	x.off = offBy{off, now}
	b.writeLocked(e)
	// Blocks of the message that begins a window may have been written before it.
	x.counting, x.blocks, x.from, x.seconds = live, 0, grown, seconds
	return w, compared
}

// expected is how many blocks all answers of the rank were expected to write so far,
// including answers that are over.
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

// agree assumes that the book's present number is right: off becomes 0, and in the
// present window only later blocks can differ from what is expected.
func (e *entry) agree(now time.Duration) {
	x := &e.written
	x.off.blocks, x.since = 0, now
	x.from = e.expected(now) - x.blocks
}

// end takes the part of an answer that is over out of off: what its choices wrote at the
// given pace, at most a.most blocks, less what was expected of it.
func (x *written) end(a *growingAnswer, now time.Duration, pace float64) {
	if x.pace == 0 || a.most == 0 || !x.off.fresh(now) {
		return
	}
	to, from, wrote := now.Seconds(), max(x.since.Seconds(), a.here, a.from), pace*a.choices
	at := (x.off.heard - writtenWindow/2).Seconds() // what came in a window decays only from the end of the window on
	x.off.blocks -= remaining(wrote, from, min(a.from+a.most/wrote, to), at) - remaining(a.rate, from, min(a.until, to), at)
}

// remaining is how much is left at a time of what came at a rate between two other times,
// if it decays as off does.
func remaining(rate, from, until, at float64) float64 {
	if rate == 0 || until <= from {
		return 0
	}
	lasts := offLasts.Seconds()
	return rate * lasts * (math.Exp((until-at)/lasts) - math.Exp((from-at)/lasts))
}
