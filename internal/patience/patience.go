package patience

import (
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/internal/recent"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Kind is a class of requests that take similar times.
type Kind uint8

// The kinds.
const (
	Plain  Kind = iota
	Media       // pictures, audio, video: their encoder's work does not show in the prompt's tokens
	Guided      // a grammar or a schema: compiled before the first token
	numKinds
)

// Leg says which part of a request's work is limited.
type Leg uint8

// The legs.
const (
	Prefill Leg = iota // from the dispatch to the whole answer
	Stream             // decode, up to the response headers of a streamed answer
	Whole              // decode, up to the response headers of an answer that comes as a whole
	Gap                // decode, the longest time for which a streamed answer stands still
	Start              // from the dispatch of a prefill leg to its begin: what a busy proxy takes
	numLegs
)

const (
	fade        = 0.98
	factor      = 2.0
	firstFactor = 3.0
	costlyFloor = 30 * time.Second
	mostPools   = 1024 // pools come and go with the models that workers name
)

// How often work that may still run is done once more, in a pool: for one in fifty of the
// answers, and every five seconds, and a few at once. Two of them show that a worker is slow by
// itself; what waits for it then goes elsewhere in any case.
const (
	repeatsEach  = 0.02
	repeatsEvery = 5 * time.Second
	repeatsMost  = 5
)

// Subject says for which worker, leg and kind of request a limit is.
type Subject struct {
	Worker worker.ID
	Pool   worker.Key
	Leg    Leg
	Kind   Kind
}

// Limits learns how long legs take. The zero value is ready.
type Limits struct {
	mu      sync.Mutex
	workers map[worker.ID]*longest        // guarded by mu
	pools   recent.Map[worker.Key, *pool] // guarded by mu; at most mostPools
}

// pool is what is known of a pool's workers together.
type pool struct {
	longest
	repeats float64   // how often work may be done once more, at the time asked
	asked   time.Time // zero: never
}

// longest holds the longest time of each leg and kind, as a multiple of the allowance; 0:
// none was seen.
type longest [numLegs][numKinds]float64

// Limit returns how long the leg may take.
func (l *Limits) Limit(s Subject, allowance time.Duration) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	x := l.workers[s.Worker].of(s)
	if x == 0 {
		if p, held := l.pools.Get(s.Pool, time.Time{}); held {
			x = p.of(s)
		}
	}
	if x > 0 {
		return times(allowance, max(1, factor*x))
	}
	most := times(allowance, firstFactor)
	if s.Kind != Plain {
		most = max(most, costlyFloor)
	}
	return most
}

// Took learns from a leg that has served.
func (l *Limits) Took(s Subject, allowance, took time.Duration) {
	if allowance <= 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.workers == nil {
		l.workers = make(map[worker.ID]*longest)
	}
	w := l.workers[s.Worker]
	if w == nil {
		w = new(longest)
		l.workers[s.Worker] = w
	}
	x := max(took.Seconds()/allowance.Seconds(), 1e-9)
	w.learn(s, x)
	p := l.pool(s.Pool)
	p.learn(s, x)
	if s.Leg == Stream || s.Leg == Whole {
		p.repeats = min(p.repeats+repeatsEach, repeatsMost)
	}
}

// Repeat reports whether a leg that is late may be given up for another one, though what it
// does may go on, and counts it. Workers that are late because there is too much to do would be
// given more.
func (l *Limits) Repeat(of worker.Key, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.pool(of)
	if now.After(p.asked) && !p.asked.IsZero() {
		p.repeats = min(p.repeats+now.Sub(p.asked).Seconds()/repeatsEvery.Seconds(), repeatsMost)
	}
	p.asked = now
	if p.repeats < 1 {
		return false
	}
	p.repeats--
	return true
}

// Repaid takes that a leg in place of one that was late has served sooner than that one had been
// waited for: what was done once more was worth it, and so may be what follows.
func (l *Limits) Repaid(of worker.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.pool(of)
	p.repeats = min(p.repeats+1, repeatsMost)
}

// pool returns what is known of a pool that serves. If there is no room, the pool that has
// served nothing for the longest time is forgotten.
func (l *Limits) pool(key worker.Key) *pool {
	p, held := l.pools.Get(key, time.Time{})
	if !held {
		p = &pool{repeats: repeatsMost}
		if l.pools.Len() >= mostPools {
			l.pools.DropOldest()
		}
	}
	l.pools.Put(key, p, time.Time{})
	return p
}

// Forget drops workers that have left.
func (l *Limits) Forget(ids []worker.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		delete(l.workers, id)
	}
}

func (e *longest) learn(s Subject, x float64) {
	at := &e[s.Leg][s.Kind]
	*at = max(x, *at*fade)
}

func (e *longest) of(s Subject) float64 {
	if e == nil {
		return 0
	}
	return e[s.Leg][s.Kind]
}

// times multiplies without overflow, up to a day.
func times(d time.Duration, x float64) time.Duration {
	const most = 24 * time.Hour
	if f := float64(d) * x; f < float64(most) {
		return time.Duration(f)
	}
	return most
}
