package facts

import (
	"errors"
	"math/rand/v2"
	"reflect"
	"syscall"
	"time"

	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/internal/register/engine"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Target is where a worker is asked, and as what. It is comparable: a worker with another
// Target is asked anew.
type Target struct {
	Worker worker.ID
	URL    string // of the engine
	Kind   engine.Kind
	// Bootstrap is the port of Mooncake's bootstrap server, if the worker is expected to
	// have one; else 0.
	Bootstrap uint16
	// Events is the host:port where KV events are looked for if the engine does not say
	// where it publishes; "": nowhere.
	Events string
	// Rank is by how many ports Events is above the port of the engine's rank 0.
	Rank worker.DPRank
}

// State is what is known of a worker's facts.
type State string

// The states.
const (
	Unknown State = "unknown" // no answer yet
	Known   State = "known"
	Failing State = "failing" // known from before; the last questions brought no answer
)

// change is what an answer has changed.
type change uint8

// The changes.
const (
	same    change = iota // nothing
	told                  // facts
	another               // the process is another one
)

// tellAfter is how many questions in a row must fail until that is a note: engines are
// started and ended all the time.
const tellAfter = 2

// subject is one worker that is asked, and what has come of it. It reads no clock.
type subject struct {
	key    string // of the inner source
	target Target
	host   string // of target.URL, for the limit

	due    time.Time
	asking bool
	again  bool // to be asked again after the question under way

	known   bool
	reading Reading
	readAt  time.Time
	down    bool // nothing listened at its address since readAt

	failures int // in a row
	since    time.Time
	short    int    // answers in a row that left something out
	err      string // of the last question; "": it was answered
	fault    string // the note on failures; "": none
}

// state returns the worker's state, and since when it has it.
func (s *subject) state() State {
	switch {
	case !s.known:
		return Unknown
	case s.failures >= tellAfter:
		return Failing
	default:
		return Known
	}
}

// pace says how often workers are asked.
type pace struct {
	refresh, retry time.Duration
	rng            *rand.Rand
}

// spread returns d, give or take a fifth.
func (p *pace) spread(d time.Duration) time.Duration {
	return d*4/5 + time.Duration(p.rng.Int64N(int64(d)*2/5+1))
}

// backoff returns the pause after n failures in a row: retry, doubled with each, up to
// refresh.
func (p *pace) backoff(n int) time.Duration {
	return p.spread(min(p.retry<<min(n-1, 20), p.refresh))
}

// answered takes an answer.
func (s *subject) answered(r Reading, now time.Time, p *pace) (c change) {
	before := s.reading
	switch {
	case !s.known:
		c = told
	case s.replaced(&r.Facts):
		c = another
	default:
		r.Facts = r.Facts.Keeping(before.Facts, engines.Of(r.Facts.Engine).RanksInMetrics)
		if r.Facts.Unread.Events != nil {
			r.Tried = before.Tried
		}
		if !sameReading(before, r) {
			c = told
		}
	}
	if !s.known || c == another {
		s.since = now
	}
	if s.failures >= tellAfter {
		s.since = now
		if c == same {
			c = told // the note on the failures goes
		}
	}
	s.known, s.reading, s.readAt, s.down = true, r, now, false
	s.failures, s.err, s.fault = 0, "", ""
	pause := p.spread(p.refresh)
	if s.lacks() {
		s.short++
		pause = p.backoff(s.short)
	} else {
		s.short = 0
	}
	s.next(now, pause)
	return c
}

// failed takes the error of a question. It reports whether the note has changed.
func (s *subject) failed(err error, now time.Time, p *pace) (c change) {
	s.failures++
	s.err = plain(err)
	s.down = s.down || errors.Is(err, syscall.ECONNREFUSED)
	if s.failures == tellAfter {
		s.since = now
		s.fault = s.reproach(err)
		c = told
	}
	s.next(now, p.backoff(s.failures))
	return c
}

func (s *subject) next(now time.Time, pause time.Duration) {
	s.asking, s.due = false, now.Add(pause)
	if s.again {
		s.again, s.due = false, now
	}
}

// soon has the worker asked at once; if a question is under way, after it, since its
// answer may be of the process before.
func (s *subject) soon(now time.Time) {
	if s.asking {
		s.again = true
	} else if now.Before(s.due) {
		s.due = now
	}
}

// lacks reports whether the reading left something out that another one may have: an
// engine that is starting does not know its blocks yet.
func (s *subject) lacks() bool {
	f := &s.reading.Facts
	return f.Unread.Err() != nil || len(f.Models) == 0 || f.BlockSize == 0 && !engines.Of(f.Engine).HidesBlockSize
}

// replaced reports whether the facts are of another process than those before. If the
// marks do not decide, other facts on which the index depends do, and that nothing
// listened meanwhile.
func (s *subject) replaced(f *engine.Facts) bool {
	b := &s.reading.Facts
	is, known := b.Mark.Same(f.Mark)
	if known {
		return !is
	}
	changed := func(before, now uint64) bool { return before != 0 && now != 0 && before != now }
	return s.down || b.Engine != f.Engine || b.Role != f.Role || b.Eagle != f.Eagle ||
		changed(uint64(b.BlockSize), uint64(f.BlockSize)) || changed(uint64(b.DPSize), uint64(f.DPSize)) ||
		b.FirstRank != f.FirstRank && b.Unread.Metrics == nil && f.Unread.Metrics == nil
}

// sameReading compares what workers are made from: not the errors of unread pages.
func sameReading(a, b Reading) bool {
	a.Facts.Unread, b.Facts.Unread = engine.Unread{}, engine.Unread{}
	return reflect.DeepEqual(a, b)
}
