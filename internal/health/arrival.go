package health

import "time"

// A worker whose address leads back to a Baton, over a gateway, a Service, a name or
// another network address, would send each request round in a loop. Nothing but an answer
// shows that: it needs no list of addresses, holds for every spelling of one, and nobody
// but who answers there can give it.

// welcomeLocked makes the questions due to new workers.
func (t *Tracker) welcomeLocked(es []*entry, now time.Time) {
	for _, e := range es {
		t.arrivals.put(&e.atEndpoint, now)
		if e.atBootstrap.at != "" {
			t.arrivals.put(&e.atBootstrap, now)
		}
	}
}

// arrivedLocked takes the answer to a question at arrival. It counts only if a Baton gave
// it. As long as nobody has answered, the worker is asked again, less and less often: what
// the address leads to may begin to listen later.
func (t *Tracker) arrivedLocked(x *turn, v verdict, now time.Time) {
	if x == &x.of.atEndpoint {
		x.of.hears(v)
	}
	switch v {
	case looped:
		t.loopsLocked(x.of, x.at, now)
	case well, answered, stranger:
	case unclear, unwell, unreachable, unconnected, silent, late:
		t.arrivals.put(x, now.Add(t.jitterLocked(min(t.cfg.ProbeInterval<<x.tries, t.cfg.MaxHold))))
		x.tries = min(x.tries+1, maxRelapses)
		t.nudge()
	}
}

// loopsLocked takes that a Baton has answered at an address of the worker: it is set aside,
// and probes ask there until somebody else answers. The worker's own page may come from
// elsewhere, if it was the bootstrap address, or one path alone leads back.
func (t *Tracker) loopsLocked(e *entry, at string, now time.Time) {
	e.loops, e.at = true, at
	switch {
	case !e.is().aside():
		t.condemnLocked(e, ReasonLeadsBack, now)
	case e.reason != ReasonLeadsBack:
		t.moveLocked(e, e.is(), true, ReasonLeadsBack, now)
	}
}

// hears notes what a question to the worker itself has shown.
func (e *entry) hears(v verdict) {
	e.heard = e.heard || v.heard() || v == late
	e.unheard = v
}

// NotAsked is why nothing of a worker has been heard that is new.
const NotAsked = "it has not been asked yet"

// silence says why nothing of the worker has been heard yet; "": something has.
func (e *entry) silence() string {
	switch {
	case e.heard:
		return ""
	case e.unheard == unreachable:
		return "it refuses connections"
	case e.unheard == unconnected:
		return "no connection to it can be made"
	case e.unheard == silent:
		return "it takes connections and does not answer"
	default:
		return NotAsked
	}
}
