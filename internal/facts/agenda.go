package facts

import (
	"maps"
	"math/rand/v2"
	"slices"
	"time"
)

// agenda says which worker is asked when. It is pure: it reads no clock. Not safe for
// concurrent use.
type agenda struct {
	pace
	cfg      *Config             // has the limits
	subjects map[string]*subject // by the key of the inner source
	free     time.Time           // no question may begin before
	running  int
	doubtful int // of running: of workers that did not answer the last time
	hosts    map[string]int
}

func newAgenda(cfg *Config, seed uint64) *agenda {
	return &agenda{
		cfg: cfg, pace: pace{refresh: cfg.Refresh, retry: cfg.Retry, rng: rand.New(rand.NewPCG(seed, 2))},
		subjects: map[string]*subject{}, hosts: map[string]int{},
	}
}

// follow makes the agenda ask the targets, by key, and forget all others. New ones are
// asked at random within the time that the limit gives to all of them.
func (a *agenda) follow(targets map[string]Target, now time.Time) {
	for key, s := range a.subjects {
		if targets[key] != s.target {
			delete(a.subjects, key)
		}
	}
	var fresh []*subject
	for _, key := range slices.Sorted(maps.Keys(targets)) { // sorted, so that the same seed gives the same times
		if a.subjects[key] == nil {
			t := targets[key]
			s := &subject{key: key, target: t, host: hostOf(t.URL), since: now}
			a.subjects[key] = s
			fresh = append(fresh, s)
		}
	}
	within := time.Second * time.Duration(len(fresh)-1) / time.Duration(a.cfg.PerSecond)
	for _, s := range fresh {
		s.due = now.Add(time.Duration(a.rng.Int64N(int64(max(within, 0)) + 1)))
	}
}

// begin returns the worker that is to be asked now, as asking. If there is none, it
// returns nil and the time of the next call; a zero time means after the next change or
// answer.
func (a *agenda) begin(now time.Time) (next *subject, again time.Time) {
	if a.running >= a.cfg.AtOnce {
		return nil, time.Time{}
	}
	for _, s := range a.subjects {
		if a.may(s) && (next == nil || s.before(next)) {
			next = s
		}
	}
	if next == nil {
		return nil, time.Time{}
	}
	again = next.due
	if again.Before(a.free) {
		again = a.free
	}
	if again.After(now) {
		return nil, again
	}
	a.free = now.Add(time.Second / time.Duration(a.cfg.PerSecond))
	next.asking = true
	a.count(next, 1)
	return next, time.Time{}
}

// before orders by the time at which a worker is due.
func (s *subject) before(o *subject) bool {
	if s.due.Equal(o.due) {
		return s.key < o.key
	}
	return s.due.Before(o.due)
}

// may reports whether the limits allow a question to the worker. Workers that did not
// answer the last time get half of the places, so that those which hang do not keep the
// others waiting.
func (a *agenda) may(s *subject) bool {
	if s.asking || a.hosts[s.host] >= a.cfg.PerHost {
		return false
	}
	return s.failures == 0 || a.doubtful < max(a.cfg.AtOnce/2, 1)
}

// ended makes room after a question of s; it must be called before s takes the answer.
func (a *agenda) ended(s *subject) { a.count(s, -1) }

func (a *agenda) count(s *subject, n int) {
	a.running += n
	if s.failures > 0 {
		a.doubtful += n
	}
	a.hosts[s.host] += n
	if a.hosts[s.host] == 0 {
		delete(a.hosts, s.host)
	}
}
