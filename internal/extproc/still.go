package extproc

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/seed-60ae5743/baton/internal/blame"
	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/patience"
)

// This file follows how long the bytes of streamed answers stand still. Envoy's access log tells
// every few seconds how many bytes an answer has by then.

// gaps are the times, in seconds, for which Envoy's configuration has a route that ends an answer
// that stands still (envoy.Gaps).
var gaps = [...]int{1, 2, 5, 10, 20, 40, 80, 160, 320}

// gapOf returns the shortest of gaps that is not below d; empty: there is none, or d is 0.
func gapOf(d time.Duration) string {
	for _, n := range gaps {
		if limit := time.Duration(n) * time.Second; d > 0 && d <= limit {
			return strconv.Itoa(n)
		}
	}
	return ""
}

// gapBases is how many times the allowance of an answer's head that of a gap is. A worker that
// takes requests in turns, or computes one anew, pauses the answers that run.
const gapBases = 3

// still is what is known of one answer's gaps. Owned by the goroutine that handles an event, but
// for the count, which is the server's.
type still struct {
	bytes   uint64
	since   time.Time     // when the bytes were first seen to be so many; zero: no entry has come
	longest time.Duration // of the gaps that were seen
	taught  time.Duration // the same, of those that the client cannot have made by not reading
	count   *atomic.Int64 // of answers that stand still; nil: this one does not count there
}

// sees takes how many bytes the answer has, and returns how long there have been so many.
func (s *still) sees(bytes uint64, now time.Time, count *atomic.Int64) time.Duration {
	if s.since.IsZero() || bytes != s.bytes {
		s.leave()
		s.bytes, s.since = bytes, now
		return 0
	}
	gap := now.Sub(s.since)
	s.longest = max(s.longest, gap)
	if leg.SightOfStill(bytes) != blame.Expired {
		s.taught = max(s.taught, gap)
	}
	if s.count == nil {
		s.count = count
		count.Add(1)
	}
	return s.longest
}

func (s *still) leave() {
	if s.count != nil {
		s.count.Add(-1)
		s.count = nil
	}
}

// cut notes that the answer was ended for its gap. It teaches as well: else a limit that is too
// short would never grow.
func (s *still) cut(now time.Time, limit time.Duration) {
	s.taught = max(s.taught, limit)
	if s.since.IsZero() {
		s.since = now
	}
}

// over learns from an answer that has ended. Of a short one no gap is known.
func (s *still) over(l *patience.Limits, of limited) {
	s.leave()
	if !s.since.IsZero() {
		l.Took(of.subject, of.allowance, s.taught)
		s.since = time.Time{}
	}
}
