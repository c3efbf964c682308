package leg

import "time"

// timer names a time at which an attempt acts without another event.
type timer uint8

const (
	timerBegin  timer = iota // the prefill leg has to have begun; stopped once it has
	timerLate                // the prefill leg has to be well
	timerAnswer              // decode has to have answered; runs once decode has all that it needs
	timerProbe               // the worker that the request waits for is probed
	timerOrphan              // a prefill leg that outlives its attempt is aborted
	timerLog                 // the attempt stops waiting for the access log
	timerExtend              // Envoy is asked to wait longer for a reply
	timerGap                 // a streamed answer that passes the plugin has stood still
	timerPick                // the request that waits for a worker is tried again
	timerLost                // an answer that nobody tells of any more counts as over
	timersOfAnAttempt
)

// timers are the times of one attempt. A timer whose time is zero is stopped.
type timers [timersOfAnAttempt]time.Time

func (t *timers) set(k timer, at time.Time) { t[k] = at }

func (t *timers) stop(ks ...timer) {
	for _, k := range ks {
		t[k] = time.Time{}
	}
}

// due reports whether a timer runs and its time has come.
func (t *timers) due(k timer, now time.Time) bool { return past(t[k], now) }

// past reports whether a time is set and has come.
func past(t, now time.Time) bool { return !t.IsZero() && !t.After(now) }

// sooner returns the earlier of two times. A zero time counts as not set.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// A timer that goes off so late was not kept by this process: it stood still, or its machine
// did. What would have stopped the timer may wait behind it, so the leg is given a moment more.
const (
	stoodStill = time.Second
	afterwards = time.Second
)

// ofSilence are the timers by which a leg is taken for late.
var ofSilence = [...]timer{timerBegin, timerLate, timerAnswer, timerProbe}

// excuse puts off the timers by which a leg is taken for late if the process has stood still.
func (t *timers) excuse(now time.Time) (stood bool) {
	for _, k := range ofSilence {
		if t.due(k, now.Add(-stoodStill)) {
			t.set(k, now.Add(afterwards))
			stood = true
		}
	}
	return stood
}

const (
	// lostAfter is how long after a stream of the access log has broken off an answer
	// counts as over, unless Envoy tells of it. Envoy tells every five seconds which
	// answers run (envoy/legs.yaml.tmpl).
	lostAfter = 12 * time.Second
	// staleFor is for how long such an entry may be older than the end that was lost: both
	// wait in Envoy's buffers, the end in another one.
	staleFor = 2 * time.Second
)

// logBroken notes that the entry about the answer's end may be lost.
func (t *timers) logBroken(now time.Time) { t.set(timerLost, now.Add(lostAfter)) }

// runs notes that the answer still runs: the entry about its end is still to come.
func (t *timers) runs(now time.Time) {
	if past(t[timerLost].Add(staleFor-lostAfter), now) {
		t.stop(timerLost)
	}
}
