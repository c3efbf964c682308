package load

import (
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
	off  float64 // goes with the answers that it was found with
	pace float64 // blocks a second of one choice; 0: not known

	counting bool
	since    time.Duration // when counting began
	blocks   float64       // heard since then
	from     float64       // what had been expected until then
	seconds  float64       // answers' time until then
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
	grown, seconds := e.expected(now), e.answers.took(now.Seconds())
	took := now - x.since
	switch {
	case !live || !x.counting || took > writtenGap:
		x.blocks = 0 // what came with it may be of before
	case took < writtenWindow:
		x.blocks += float64(blocks)
		return w, false
	default:
		w = Written{Blocks: x.blocks + float64(blocks), Seconds: seconds - x.seconds}
		compared = true
		x.off *= 1 - float64(took)/float64(offLasts)
		x.off = min(x.off+w.Blocks-(grown-x.from), e.mostHeld())
		if e.load.DecodeRequests == 0 { // they are of answers that others have booked, or that are over
			x.off = 0
		}
		x.learn(w)
		b.writeLocked(e)
	}
	x.counting, x.since, x.blocks, x.from, x.seconds = live, now, 0, grown, seconds
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

// at is what is found to be off now: nothing where the rank's events have ceased.
func (x *written) at(now time.Duration) float64 {
	if !x.fresh(now) {
		return 0
	}
	return x.off
}

func (x *written) fresh(now time.Duration) bool { return x.counting && now-x.since <= writtenGap }

// end takes off what an answer that is over has come to beyond what was expected: its
// choices were written for so many seconds, and could come to so many blocks at most.
func (x *written) end(now time.Duration, grown, seconds, most float64) {
	x.off = x.at(now)
	if x.pace > 0 && x.fresh(now) {
		x.off -= min(seconds*x.pace, most) - grown
	}
}
