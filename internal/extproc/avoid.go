package extproc

import (
	"crypto/sha256"
	"slices"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/internal/extproc/wire"
	"github.com/seed-60ae5743/baton/internal/leg"
)

// avoidList keeps, from one attempt of a request to the next, which ranks may be at fault
// for the failures. A fresh attempt then avoids them, even if the fault is too small to set
// a worker aside. A key consists of the request id and the time at which Envoy received
// the request; a client that repeats both only makes its own picks worse. Safe for
// concurrent use.
type avoidList struct {
	ttl time.Duration

	mu      sync.Mutex
	m       map[string]avoided // guarded by mu
	sweepAt time.Time          // guarded by mu
}

type avoided struct {
	leg.Lesson     // Avoid of all attempts that were given up, the rest of the last
	last       int // the highest number of such an attempt
	until      time.Time
}

const (
	avoidMost  = 65536 // requests kept at once
	avoidSweep = time.Minute
)

func newAvoidList(ttl time.Duration) *avoidList {
	return &avoidList{ttl: min(ttl, 5*time.Minute), m: make(map[string]avoided)}
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
	if now.After(a.sweepAt) {
		a.sweepAt = now.Add(avoidSweep)
		for k, v := range a.m {
			if now.After(v.until) {
				delete(a.m, k)
			}
		}
	}
	k := avoidKey(&q.Headers)
	e, ok := a.m[k]
	if !ok && len(a.m) >= avoidMost {
		return
	}
	for _, rank := range l.Avoid {
		if !slices.Contains(e.Avoid, rank) {
			e.Avoid = append(e.Avoid, rank)
		}
	}
	e.Suspects, e.Keep = l.Suspects, l.Keep
	e.last, e.until = max(e.last, q.Attempt), now.Add(a.ttl)
	a.m[k] = e
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
	e := a.m[avoidKey(&q.Headers)]
	e.Avoid = slices.Clone(e.Avoid)
	return e, e.last >= q.Attempt-1
}
