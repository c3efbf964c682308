package tokens

import (
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// strikesOut is how many late answers set a tokenizer aside. One refused connection or
// broken answer is enough.
const strikesOut = 3

// asides remembers which tokenizers must not be asked now. Safe for concurrent use.
type asides struct {
	base time.Duration    // the first time that a tokenizer is set aside lasts so long; set at construction
	now  func() time.Time // set at construction

	mu   sync.Mutex // guards all below
	next int        // where the next pick begins
	// byEndpoint has an entry for each tokenizer that has had a fault since its last good
	// answer.
	byEndpoint map[worker.Endpoint]*aside
}

type aside struct {
	strikes int           // faults in a row
	until   time.Time     // the tokenizer is not asked before
	last    time.Duration // how long it was set aside last; 0: not yet
	probing bool          // the time is over, and one caller is asking the tokenizer again
}

func newAsides(base time.Duration) *asides {
	return &asides{base: base, now: time.Now, byEndpoint: make(map[worker.Endpoint]*aside)}
}

// pick returns the next tokenizer in turn that is not set aside. False means that all
// are. When a tokenizer's time is over, one caller alone gets it, for as long as probe,
// so that only that caller waits if the tokenizer still hangs. The caller must then call
// good, bad or undecided.
func (a *asides) pick(from []worker.Endpoint, probe time.Duration) (worker.Endpoint, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	for i := range from {
		ep := from[(a.next+i)%len(from)]
		st := a.byEndpoint[ep]
		if st != nil && now.Before(st.until) {
			continue
		}
		if st != nil && st.last > 0 {
			st.probing, st.until = true, now.Add(probe)
		}
		a.next = (a.next + i + 1) % len(from)
		return ep, true
	}
	return worker.Endpoint{}, false
}

// good forgets the tokenizer's faults.
func (a *asides) good(ep worker.Endpoint) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.byEndpoint, ep)
}

// undecided notes that a request ended and says neither good nor bad of the tokenizer.
func (a *asides) undecided(ep worker.Endpoint) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if st := a.byEndpoint[ep]; st != nil && st.probing {
		st.probing, st.until = false, time.Time{}
	}
}

// bad notes a fault. atOnce sets the tokenizer aside even after one fault.
func (a *asides) bad(ep worker.Endpoint, atOnce bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	st := a.byEndpoint[ep]
	if st == nil {
		a.prune(now)
		st = new(aside)
		a.byEndpoint[ep] = st
	}
	if now.Before(st.until) && !st.probing {
		return // this request was sent before the tokenizer was set aside
	}
	st.strikes++
	if !atOnce && !st.probing && st.strikes < strikesOut {
		return
	}
	st.probing = false
	st.last = min(max(2*st.last, a.base), maxSetAside)
	st.until = now.Add(st.last)
}

// prune forgets tokenizers that were not asked for long, so that addresses that come and
// go do not pile up.
func (a *asides) prune(now time.Time) {
	if len(a.byEndpoint) < 256 {
		return
	}
	for ep, st := range a.byEndpoint {
		if now.Sub(st.until) > maxSetAside {
			delete(a.byEndpoint, ep)
		}
	}
}
