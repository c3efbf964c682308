package loads

import (
	"math/rand/v2"
	"time"

	"github.com/seed-60ae5743/baton/internal/heap"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

const (
	mostPerSecond = 200              // questions that begin
	mostAtOnce    = 32               // questions under way
	connectWithin = 2 * time.Second  // of a question: who is away must not hold a place for all of its time
	mostPage      = 4 << 20          // bytes of an answer; vLLM's are some 100 KiB
	longestPause  = 30 * time.Second // between two questions to an address that does not answer
	tellEvery     = 10 * time.Minute // between two lines of the log about one address
)

// agenda says which address is asked when. It reads no clock. Guarded by Poller.mu.
type agenda struct {
	interval time.Duration
	rng      *rand.Rand
	asked    map[place]*asked
	due      heap.Heap[*asked] // those that are not being asked
	free     time.Time         // no question may begin before
}

// asked is an address, and how it has answered lately.
type asked struct {
	place
	due   time.Time
	at    int // in agenda.due; -1 while it is asked, or once it is gone
	gone  bool
	bad   int       // answers in a row without a report
	told  time.Time // when the log last said so
	aloud bool      // the log has said so since the last good answer

	losses losses // guarded by Poller.mu
}

// update brings the agenda in step with a snapshot. A new address is first asked within
// an interval, at random, so that a thousand that join together are spread.
func (a *agenda) update(s *worker.Snapshot, now time.Time) {
	left := a.asked
	a.asked = make(map[place]*asked, len(left))
	for _, w := range s.Workers() {
		for _, p := range placesOf(w) {
			x := left[p]
			if x == nil {
				x = &asked{place: p, due: now.Add(time.Duration(a.rng.Int64N(int64(a.interval) + 1)))}
				a.due.Put(x)
			}
			delete(left, p)
			a.asked[p] = x
		}
	}
	for _, x := range left {
		x.gone = true
		if x.at >= 0 {
			a.due.Remove(x)
		}
	}
}

// begin returns the address that is to be asked now. If none is due, it returns nil and
// the time of the next call; a zero time means after the next change of the workers, or
// the next answer.
func (a *agenda) begin(now time.Time) (x *asked, again time.Time) {
	x = a.due.First()
	if x == nil {
		return nil, time.Time{}
	}
	again = x.due
	if again.Before(a.free) {
		again = a.free
	}
	if again.After(now) {
		return nil, again
	}
	a.free = now.Add(time.Second / mostPerSecond)
	a.due.Remove(x)
	return x, time.Time{}
}

// news says whether an answer is news for the log.
type news uint8

const (
	nothing news = iota
	silent       // the address does not say what it runs
	speaks       // it says so again
)

// ended records that an address was asked, and sets when it is asked again.
func (a *agenda) ended(x *asked, well bool, now time.Time) (n news) {
	if x.gone {
		return nothing
	}
	pause := a.interval
	switch {
	case well:
		if x.aloud {
			n = speaks
		}
		x.bad, x.aloud = 0, false
	default:
		x.bad++
		pause = min(a.interval<<min(x.bad, 10), max(longestPause, a.interval))
		if x.bad >= 2 && !x.aloud && (x.told.IsZero() || now.Sub(x.told) >= tellEvery) {
			x.aloud, x.told, n = true, now, silent
		}
	}
	x.due = now.Add(pause*9/10 + time.Duration(a.rng.Int64N(int64(pause)/5+1)))
	a.due.Put(x)
	return n
}

// Before implements [heap.Element].
func (x *asked) Before(y *asked) bool { return x.due.Before(y.due) }

// Place implements [heap.Element].
func (x *asked) Place() *int { return &x.at }
