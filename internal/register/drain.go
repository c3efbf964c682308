package register

import (
	"errors"
	"time"

	"github.com/seed-60ae5743/baton/internal/register/engine"
)

const (
	// pollInterval is the time between two counts of a draining engine's requests.
	// zerosToLeave is how many counts in a row must be zero: during one count a request
	// may be between two queues of the engine.
	pollInterval = 200 * time.Millisecond
	zerosToLeave = 3
)

// onTerm begins the drain. A worker that the registry has never held was never picked: it
// has no requests to wait for.
func (m *machine) onTerm(now time.Time, e term) {
	switch m.phase {
	case away:
		m.end(causeTold, "told to leave")
	case announced:
		if !m.everHeld && !e.known {
			m.end(causeTold, "told to leave, and the registry never held the worker")
			return
		}
		m.phase, m.termAt, m.why = draining, now, "told to leave"
		rec := m.rec
		rec.Draining = true
		m.put(rec)
	case draining, gone:
	}
}

func (m *machine) onCounted(now time.Time, e counted) {
	m.counting = false
	m.countAt = now.Add(pollInterval)
	if m.phase != draining {
		return
	}
	m.inFlight, m.known = e.n, e.err == nil
	if errors.Is(e.err, engine.ErrNotCounted) && !m.uncounted {
		m.uncounted = true
		m.do(tellUncounted, e.err.Error())
	}
	if e.err != nil || e.n > 0 {
		m.zeros = 0
		return
	}
	m.zeros++
	if m.zeros >= zerosToLeave && !now.Before(m.heldAt.Add(m.cfg.DrainSettle)) {
		m.end(causeDrained, "drained")
	}
}
