package extproc

import (
	"crypto/sha256"
	"slices"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/internal/extproc/wire"
	"github.com/seed-60ae5743/baton/internal/leg"
)

// avoidList remembers, from one attempt of a request to the next, which workers
// have failed it, so that a fresh attempt is a different one even where the fault
// is too small to set the worker aside. The key is made of the request id and
// the moment Envoy received the request; a client that repeats both only makes
// its own picks worse. Safe for concurrent use.
type avoidList struct {
	ttl time.Duration

	mu      sync.Mutex
	m       map[string]avoided // guarded by mu
	sweepAt time.Time          // guarded by mu
}

type avoided struct {
	leg.Lesson     // of all attempts that were given up
	last       int // the latest of them
	until      time.Time
}

const (
	avoidMost  = 65536 // requests remembered at once
	avoidSweep = time.Minute
)

func newAvoidList(ttl time.Duration) *avoidList {
	return &avoidList{ttl: min(ttl, 5*time.Minute), m: make(map[string]avoided)}
}

func avoidKey(h *wire.Headers) string { return bounded(h.Start + "/" + h.RequestID) }

// maxKeyBytes is the longest text of a client's that is kept as it is, to find what is known
// of its request. Request ids are some 36 bytes.
const maxKeyBytes = 128

// bounded returns s, or, of one that is longer than maxKeyBytes, a digest: what clients send
// must not decide how much is kept of them.
func bounded(s string) string {
	if len(s) <= maxKeyBytes {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	return string(sum[:])
}

// add notes that this attempt failed, who may be at fault for it, and what waits for
// a mate's word.
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

// of returns what is known of the attempts before: nothing on a first one. ours says
// that the latest was given up by us: else Envoy repeats it on its own word.
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
