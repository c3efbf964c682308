package extproc

import (
	"crypto/sha256"
	"slices"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/internal/leg"
	"github.com/seed-60ae5743/baton/internal/recent"
	"github.com/seed-60ae5743/baton/internal/wire"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// avoidList keeps, from one attempt of a request to the next, which ranks may be at fault
// for the failures. A fresh attempt then avoids them, even if the fault is too small to set
// a worker aside. A key consists of the request id and the time at which Envoy received
// the request; a client that repeats both only makes its own picks worse. Safe for
// concurrent use.
type avoidList struct {
	mu       sync.Mutex
	requests recent.Map[string, avoided] // guarded by mu; held since the latest attempt was given up
}

type avoided struct {
	leg.Lesson     // Avoid of all attempts that were given up, most else of the last
	last       int // the highest number of such an attempt
}

const (
	avoidKept = 5 * time.Minute
	avoidMost = 65536 // requests
)

// newAvoidList returns a list for requests that last no longer than the given time.
func newAvoidList(longest time.Duration) *avoidList {
	return &avoidList{requests: recent.Map[string, avoided]{Keep: min(longest, avoidKept), Most: avoidMost}}
}

func avoidKey(h *wire.Headers) string { return bounded(h.Start + "/" + h.RequestID) }

// maxKeyBytes is the size up to which a key is kept as the client sent it. A request id has
// about 36 bytes.
const maxKeyBytes = 128

// bounded returns s, or a digest of s if s is longer than maxKeyBytes: clients must not
// decide how much memory a key takes.
func bounded(s string) string {
	if len(s) <= maxKeyBytes {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	return string(sum[:])
}

// add notes that the attempt of q was given up, and what a fresh attempt has to know of it.
func (a *avoidList) add(q *leg.Request, l leg.Lesson, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	k := avoidKey(&q.Headers)
	e, _ := a.requests.Get(k, now)
	for _, rank := range l.Avoid {
		e.AlsoAvoid(rank)
	}
	e.Suspects, e.Keep, e.Told, e.By = l.Suspects, l.Keep, l.Told, l.By
	e.last, e.Lost = max(e.last, q.Attempt), max(e.Lost, l.Lost)
	a.requests.Put(k, e, now)
}

// lost notes how many workers the request has lost, and which one was to answer it, after an
// attempt in whose place Envoy begins another one by itself.
func (a *avoidList) lost(q *leg.Request, n int, by worker.Rank, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	k := avoidKey(&q.Headers)
	e, _ := a.requests.Get(k, now)
	e.Lost = max(e.Lost, n)
	e.AlsoAvoid(by)
	a.requests.Put(k, e, now)
}

// of returns what was noted about the earlier attempts of the request: nothing for a first
// attempt. ours is false if the plugin did not give up the attempt before this one: then
// Envoy has begun this attempt by itself.
func (a *avoidList) of(q *leg.Request) (before avoided, ours bool) {
	if q.Attempt <= 1 {
		return avoided{}, true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	e, _ := a.requests.Get(avoidKey(&q.Headers), time.Time{})
	e.Avoid = slices.Clone(e.Avoid)
	return e, e.last >= q.Attempt-1
}
