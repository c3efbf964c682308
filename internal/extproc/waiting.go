package extproc

import (
	"sync/atomic"
	"time"
)

// waiting counts the requests that wait for a worker to return, and their bytes. Safe for
// concurrent use.
type waiting struct{ requests, bytes atomic.Int64 }

// waitingShare is the part of the budget for bodies that such requests may take: those of
// other models need the rest.
const waitingShare = 4

// take reports whether the request of s, for which no worker is there now, may wait for one to
// return. It counts the request until leave.
func (w *waiting) take(s *mainStream, now time.Time) bool {
	if now.Sub(s.m.WaitsSince(now)) >= s.srv.cfg.MaxWait || s.srv.reached(stageDraining) {
		return false
	}
	if s.waits.Load() > 0 {
		return true
	}
	n := int64(len(s.m.Request().Body)) + 1
	if w.bytes.Add(n) > s.srv.bodies.Limit()/waitingShare {
		w.bytes.Add(-n)
		return false
	}
	w.requests.Add(1)
	s.waits.Store(n)
	return true
}

// leave ends the wait of a request that waits no longer.
func (w *waiting) leave(s *mainStream) {
	if n := s.waits.Swap(0); n > 0 {
		w.bytes.Add(-n)
		w.requests.Add(-1)
	}
}
