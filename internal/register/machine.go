package register

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/internal/register/engine"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

const (
	// lostPause is the shortest time between questions to an engine that closes every
	// connection.
	lostPause = 100 * time.Millisecond
	// goneInterval is the longest time between questions while nothing listens: such a
	// question costs little.
	goneInterval = 250 * time.Millisecond
)

// machine decides when a worker is announced, with which record, and when it is
// withdrawn. It is not safe for concurrent use. It reads no clock and does no I/O.
type machine struct {
	// set at construction, read-only
	cfg  Config
	port uint16

	phase phase
	out   []action

	// the engine
	up       bool
	down     engine.Health // the worst health since facts were last accepted; 0: none was bad
	failures int           // since it was last healthy; silence is none while it is announced
	silent   bool          // it was silent since it was last healthy
	lost     bool          // facts must be read again after the next good answer
	again    bool          // health must be asked for again after the question that is under way

	// What was read; kept if it cannot be read for a while.
	facts   engine.Facts
	fresh   bool // facts have been read since the engine came up
	stale   bool // the refresh under way began before that
	notes   map[string]string
	noted   bool
	addr    netip.Addr
	another bool // the engine's process is not that of the present life
	mark    engine.Mark

	// the announcement
	rec    worker.Worker
	life   uint64
	seq    uint64
	heldAt time.Time // zero until the registry holds the announcement seq

	everHeld bool // the registry has held an announcement before

	// Invariant: the flag of a question is set exactly while the question is under way.
	asking, refreshing, counting bool
	healthAt, refreshAt, countAt time.Time
	healthAsked                  time.Time // when the last question about health was asked

	// the drain
	termAt    time.Time
	zeros     int
	inFlight  int
	known     bool // inFlight is known
	uncounted bool // this has been logged

	// Logged last, so that each is logged once.
	incomplete, kept string
	warnings         []string
	why              string // the reason for the phase
}

func newMachine(cfg Config, port uint16) *machine {
	return &machine{cfg: cfg, port: port, noted: cfg.AnnotationsFile == "", why: "starting"}
}

// step takes an event and returns the actions that follow, in order.
func (m *machine) step(now time.Time, ev event) []action {
	m.out = nil
	if m.phase == gone {
		return nil
	}
	switch e := ev.(type) {
	case tick:
	case healthAsked:
		m.onHealth(now, e)
	case refreshed:
		m.onRefreshed(now, e)
	case counted:
		m.onCounted(now, e)
	case held:
		m.onHeld(now, e)
	case lost:
		m.onLost(now)
	case term:
		m.onTerm(now, e)
	case hurry:
		m.end(causeTold, "told to leave at once")
	}
	m.due(now)
	return m.out
}

func (m *machine) do(v verb, why string) { m.out = append(m.out, action{verb: v, why: why}) }

// due asks the questions whose time has come, and ends a drain that has taken too long.
func (m *machine) due(now time.Time) {
	if m.phase == draining && !now.Before(m.termAt.Add(m.cfg.DrainTimeout)) {
		m.end(causeTimeout, "the drain time-out is over")
	}
	if m.phase == gone {
		return
	}
	if !m.asking && !now.Before(m.healthAt) {
		m.asking, m.healthAsked = true, now
		m.do(askHealth, "")
	}
	if m.refreshes() && !m.refreshing && !now.Before(m.refreshAt) {
		m.refreshing, m.stale = true, false
		m.do(refresh, "")
	}
	if m.counts() && !m.counting && !now.Before(m.countAt) {
		m.counting = true
		m.do(count, "")
	}
}

func (m *machine) refreshes() bool { return m.up && m.phase < draining }

// counts reports whether requests are to be counted: before the registry holds that the
// worker drains, new picks may follow a zero.
func (m *machine) counts() bool { return m.phase == draining && !m.heldAt.IsZero() }

// next returns when the machine needs a tick, if no event comes before.
func (m *machine) next() (at time.Time, any bool) {
	earlier := func(t time.Time, want bool) {
		if want && (!any || t.Before(at)) {
			at, any = t, true
		}
	}
	earlier(m.healthAt, m.phase != gone && !m.asking)
	earlier(m.refreshAt, m.refreshes() && !m.refreshing)
	earlier(m.countAt, m.counts() && !m.counting)
	earlier(m.termAt.Add(m.cfg.DrainTimeout), m.phase == draining)
	return at, any
}

func (m *machine) onHealth(now time.Time, e healthAsked) {
	m.asking = false
	m.healthAt = m.healthAsked.Add(m.cfg.HealthInterval)
	if m.again {
		m.askSoon(now)
	}
	if e.health == engine.Healthy {
		m.failures, m.silent = 0, false
		if !m.up {
			m.up, m.fresh = true, false
			if m.phase == away {
				m.why = "facts are being read"
			}
			m.do(tellHealthy, "")
			m.refreshSoon(now)
		} else if m.lost {
			m.refreshSoon(now)
		}
		m.lost = false
		return
	}
	if e.health == engine.Silent && m.phase == announced {
		m.hush(e)
		return
	}
	m.failures++
	if e.health == engine.Refused {
		m.healthAt = m.healthAsked.Add(min(m.cfg.HealthInterval, goneInterval))
	}
	if e.health == engine.Refused || m.failures >= m.cfg.UnhealthyAfter {
		m.fell(e)
	}
}

// hush takes that an announced engine is silent. That is doubt: it may compute long prompts, as
// its mates may, and plugins find out by its requests whether they have to avoid it.
func (m *machine) hush(e healthAsked) {
	if !m.silent {
		m.do(tellSilent, fmt.Sprintf("engine health: %v", e.err))
	}
	m.silent = true
}

// refreshSoon has everything read again. An answer that is under way is not used, since
// it may be from the process before.
func (m *machine) refreshSoon(now time.Time) {
	m.refreshAt, m.stale = now, m.refreshing
}

// fell withdraws the worker: its engine is dead or does not answer. During a drain only
// the death counts: an engine that answers badly still has its requests, and the worker
// is picked no more.
func (m *machine) fell(e healthAsked) {
	m.down = max(m.down, e.health)
	why := fmt.Sprintf("engine health: %s", e.health)
	if e.err != nil {
		why = fmt.Sprintf("engine health: %v", e.err)
	}
	if m.up || m.why == "starting" {
		m.do(tellUnhealthy, why)
	}
	m.up = false
	m.incomplete, m.kept = "", "" // so that they are logged again
	switch m.phase {
	case draining:
		if e.health == engine.Refused {
			m.end(causeDead, why)
		}
	case announced:
		cause := causeIll
		if e.health == engine.Refused {
			cause = causeDead
		}
		m.takeAway(cause, why)
	case away, gone:
		m.why = why
	}
}

func (m *machine) takeAway(c cause, why string) {
	m.phase, m.why, m.heldAt = away, why, time.Time{}
	m.out = append(m.out, action{verb: withdraw, why: why, cause: c})
}

// end leaves for good, and withdraws the record if there is one.
func (m *machine) end(c cause, why string) {
	if m.phase == announced || m.phase == draining {
		m.takeAway(c, why)
	}
	m.phase, m.why = gone, why
	m.do(leave, why)
}

func (m *machine) onRefreshed(now time.Time, e refreshed) {
	m.refreshing = false
	m.refreshAt = now.Add(m.cfg.Refresh)
	if m.stale || !m.refreshes() {
		m.refreshAt = now
		return
	}
	var faults []string
	fault := func(err error) { faults = append(faults, strings.ReplaceAll(err.Error(), "\n", "; ")) }
	factsErr := e.factsErr
	if factsErr == nil {
		factsErr = m.take(e.facts)
	}
	if factsErr != nil {
		fault(fmt.Errorf("engine: %w", factsErr))
	}
	addr, err := m.addr, e.addrErr
	if err == nil {
		addr, err = choose(m.addr, e.addrs, m.cfg.PreferIPv6)
	}
	if err != nil {
		fault(err)
	} else {
		m.addr = addr
	}
	if err := cmp.Or(e.notesErr, m.spoilt(e.notes)); err != nil {
		fault(err)
	} else {
		m.notes, m.noted = e.notes, true
	}
	why := strings.Join(faults, "; ")
	if !m.fresh || !m.noted || !m.addr.IsValid() {
		m.cannot(now, why)
		return
	}
	if why != "" && why != m.kept {
		m.do(tellKept, why)
	}
	m.kept = why
	m.compose(now)
}

// spoilt returns why there would be no record with these annotations, if there is one with
// those from before: a slip of somebody who annotates pods takes no engine away that is well.
func (m *machine) spoilt(notes map[string]string) error {
	fault := func(notes map[string]string) error {
		_, _, err := compose(m.cfg.Override, m.facts, notes, netip.AddrPortFrom(m.addr, m.port))
		return err
	}
	err := fault(notes)
	if err == nil || !m.noted || fault(m.notes) != nil {
		return nil
	}
	return err
}

// take accepts facts, and judges whether they are of another process. If they are not,
// the facts of unread pages are kept from before. The error names what could not be read,
// whether or not the rest is accepted.
func (m *machine) take(f engine.Facts) error {
	had, ranks := m.facts.Engine != "", engines.Of(f.Engine).RanksInMetrics
	same, known := m.mark.Same(f.Mark)
	another := had && (known && !same || !known && m.seemsAnother(f.Mark))
	switch {
	case had && !another && f.Engine == m.facts.Engine:
		f = f.Keeping(m.facts, ranks)
	case ranks && f.Unread.Metrics != nil:
		// Without the metrics, ranks, block size and process would be guesses, and a
		// wrong guess would end a life once they are known.
		return f.Unread.Err()
	}
	if another {
		m.another, m.mark = true, f.Mark
	} else {
		m.mark = engine.Mark{Start: cmp.Or(f.Mark.Start, m.mark.Start), Seed: cmp.Or(f.Mark.Seed, m.mark.Seed)}
	}
	m.facts, m.fresh, m.down = f, true, 0
	return f.Unread.Err()
}

// seemsAnother decides if the marks do not. An equal seed makes the same process likely,
// unless the connection was refused in between: the seed may be a fixed one.
func (m *machine) seemsAnother(f engine.Mark) bool {
	if f.Seed != "" && f.Seed == m.mark.Seed {
		return m.down == engine.Refused
	}
	return m.down != 0
}

// cannot records why there is no complete record, and has the facts read again soon.
func (m *machine) cannot(now time.Time, why string) {
	m.refreshAt = now.Add(min(m.cfg.Refresh, m.cfg.HealthInterval))
	if why != m.incomplete {
		m.do(tellIncomplete, why)
	}
	m.incomplete = why
	if m.phase == announced {
		m.takeAway(causeFacts, why)
	} else {
		m.why = why
	}
}

// compose announces the record if it has changed.
func (m *machine) compose(now time.Time) {
	rec, warnings, err := compose(m.cfg.Override, m.facts, m.notes, netip.AddrPortFrom(m.addr, m.port))
	if err != nil {
		m.cannot(now, strings.ReplaceAll(err.Error(), "\n", "; "))
		return
	}
	m.incomplete = ""
	for _, w := range warnings {
		if !slices.Contains(m.warnings, w) {
			m.do(tellWarning, w)
		}
	}
	m.warnings = warnings
	if m.life == 0 || m.another || !sameLife(rec, m.rec) {
		m.life++
		m.another = false
	} else if m.phase == announced && rec.Equal(&m.rec) {
		return
	}
	m.phase, m.why = announced, ""
	m.put(rec)
}

func (m *machine) put(rec worker.Worker) {
	m.seq++
	m.rec, m.heldAt = rec, time.Time{}
	m.out = append(m.out, action{verb: announce, rec: rec, life: m.life, seq: m.seq})
}

func (m *machine) onHeld(now time.Time, e held) {
	if e.seq == m.seq && m.heldAt.IsZero() && (m.phase == announced || m.phase == draining) {
		m.heldAt, m.countAt, m.everHeld = now, now, true
	}
}

// onLost asks for health at once. Facts must be read again even after a good answer: the
// process may have died and come back.
func (m *machine) onLost(now time.Time) {
	if !m.up && m.phase != draining {
		return
	}
	m.lost, m.again = true, m.asking
	m.askSoon(now)
}

func (m *machine) askSoon(now time.Time) {
	m.again = m.again && m.asking
	m.healthAt = m.healthAsked.Add(lostPause)
	if m.healthAt.Before(now) {
		m.healthAt = now
	}
}
