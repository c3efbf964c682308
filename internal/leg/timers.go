package leg

import "time"

// timer is one of the times at which an attempt goes on by itself.
type timer uint8

const (
	timerBegin  timer = iota // prefill's leg has to have begun; stopped once it has
	timerLate                // prefill has to be well
	timerAnswer              // decode has to have answered; stopped while it lacks something
	timerProbe               // who is waited for is probed
	timerOrphan              // a prefill leg that outlives its client is ended
	timerLog                 // the access log is awaited no longer
	timersOfAnAttempt
)

// timers are the times of one attempt: zero ones are stopped.
type timers [timersOfAnAttempt]time.Time

func (t *timers) set(k timer, at time.Time) { t[k] = at }

func (t *timers) stop(ks ...timer) {
	for _, k := range ks {
		t[k] = time.Time{}
	}
}

// due reports whether a timer runs and its time has come.
func (t *timers) due(k timer, now time.Time) bool { return past(t[k], now) }

// next is the earliest of those that are listed; zero: none of them runs.
func (t *timers) next(ks ...timer) time.Time {
	var at time.Time
	for _, k := range ks {
		at = sooner(at, t[k])
	}
	return at
}

// past reports whether a time is set and has come.
func past(t, now time.Time) bool { return !t.IsZero() && !t.After(now) }

// sooner is the earlier of two times, of which zero ones are not set.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
