package health

import (
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-60ae5743/baton/internal/invariants"
	"github.com/seed-60ae5743/baton/internal/recent"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// maxRelapses bounds what is counted, and with it the pause between questions at arrival, which
// doubles. The hold of a worker that relapses gets four times as long, since each costs a request;
// mostQuadrupled is how often.
const (
	maxRelapses    = 16
	mostQuadrupled = 6
)

// maxLates bounds the doubling of a probe's time.
const maxLates = 8

// Tracker knows the health of every worker. Safe for concurrent use.
type Tracker struct {
	// Set at construction, read-only.
	cfg  Config
	gap  time.Duration // between the beginnings of two probes
	wake chan struct{} // has room for one: tells Run to look again

	// known has one entry for every worker, or one for each rank if each has an address
	// of its own. Update replaces the map, under mu; nothing writes to the map itself.
	known   atomic.Pointer[map[worker.ID][]*entry]
	byRole  atomic.Pointer[map[poolKey]*pool] // replaced in the same way
	limited atomic.Int64                      // entries that are not healthy; written under mu
	trials  atomic.Uint64                     // the number of the last trial
	changes changes

	// mu guards the fields below, and the fields of entries and pools. Hooks are called
	// while it is held, and no other code outside of the package. The only other lock
	// that is taken meanwhile is the one of changes.
	mu        sync.Mutex
	gone      recent.Map[worker.Endpoint, []*entry] // workers that have left lately
	rng       *rand.Rand
	pools     []*pool
	suspects  agenda    // of workers in service
	scheduled agenda    // of workers aside
	arrivals  agenda    // questions to workers that are new
	welcomed  bool      // the last that began was such a question
	ahead     int       // suspects probed in a row while a worker aside was due
	nextBegin time.Time // no probe begins before
	probes    uint64    // the number of the last probe
	budget    int       // for asking mates, in hundredths of a request

	// Counted only in builds with invariants.
	touched int          // entries and pools that were looked at
	looked  atomic.Int64 // the same, by the methods that take no lock
}

// entry is what can fail by itself, as far as requests can tell: a worker, or one of its
// ranks if each has an address of its own. Atomic fields are written under Tracker.mu,
// except trial, and read by anyone. The other fields are guarded by Tracker.mu.
type entry struct {
	// Set at construction, read-only.
	rank     worker.Rank // rank 0 if the entry is a whole worker
	ownPort  bool        // the entry is one rank
	endpoint worker.Endpoint
	prefill  bool

	state atomic.Uint32           // a State
	pools atomic.Pointer[[]*pool] // empty while the worker drains; never nil
	trial atomic.Uint64           // the request that tries a recovering worker; 0: none
	kept  atomic.Bool             // aside by judgement of requests while a pool had no other worker in service: that pool keeps it

	reason    Reason
	since     time.Time
	dead      bool // aside on evidence to which no share applies: nothing of it answers, or its connections are refused
	refused   bool // the latter: nobody waits for it; recovering: it was so before its page answered
	relapses  int
	sparedFor Reason // why it should be aside, if there is no room

	// What requests have met.
	serverErrors int // in a row
	rate         tally
	refusals     int       // bad ends in a row, with no answer that has begun between
	servedAt     time.Time // the latest OK
	slow         bool      // a request was slow after that
	slowRequest  uint64    // the slow request; 0: not known
	partner      partner   // in the latest failed hand-off

	// Probes. They ask at the endpoint, or, while loops is set, where a Baton has answered
	// in the worker's place.
	turn
	loops  bool
	flight flight
	lates  uint8 // how many probes in a row had no answer in time
	answers
	models   []string  // that its engine was first heard to serve; nil: it has not told
	recorded []string  // the models of its record
	probe    uint64    // the number of its last probe
	asked    time.Time // when its last probe on suspicion began

	// The questions at arrival. No bootstrap: at is empty.
	atEndpoint, atBootstrap turn
	heard                   bool    // something of the worker has answered
	unheard                 verdict // of the latest question at its endpoint, until then
}

// New returns a Tracker that knows no worker.
func New(cfg Config) *Tracker {
	cfg = cfg.withDefaults()
	seed := cfg.Seed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t := &Tracker{
		cfg: cfg, gap: time.Second / time.Duration(cfg.MaxProbes), wake: make(chan struct{}, 1),
		rng: rand.New(rand.NewPCG(seed, seed)), budget: firstMates,
		gone: recent.Map[worker.Endpoint, []*entry]{Keep: goneKept, Most: goneMost},
	}
	t.known.Store(new(map[worker.ID][]*entry))
	t.byRole.Store(new(map[poolKey]*pool))
	t.changes.version.Store(1)
	return t
}

// Update makes the Tracker know the workers of s and forget all others.
func (t *Tracker) Update(s *worker.Snapshot, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before, known := *t.known.Load(), make(map[worker.ID][]*entry)
	for id, es := range before {
		if s.Worker(id) == nil {
			t.gone.Put(es[0].endpoint, es, now)
		}
	}
	for _, w := range s.Workers() {
		es := before[w.ID]
		if !stillOf(es, w) {
			isNew := len(es) == 0
			es = entriesOf(w)
			if isNew {
				t.inheritLocked(es, now)
			}
			t.welcomeLocked(es, now)
		}
		learnAnewLocked(es, w)
		known[w.ID] = es
	}
	t.layLocked(s, known)
	t.known.Store(&known)
	for id, es := range before {
		still := known[id]
		if len(still) > 0 && still[0] == es[0] {
			continue
		}
		for _, e := range es {
			e.strike()
			e.atEndpoint.strike()
			e.atBootstrap.strike()
			if e.is() != Healthy {
				t.limited.Add(-1)
				t.changes.note(id)
			}
		}
	}
	t.enforceSharesLocked(now)
	t.nudge()
}

// learnAnewLocked forgets which models an engine was heard to serve if its record has others now.
func learnAnewLocked(es []*entry, w *worker.Worker) {
	for _, e := range es {
		if !slices.Equal(e.recorded, w.Models) {
			e.recorded, e.models = w.Models, nil
		}
	}
}

// goneKept is for how long a worker that has left is remembered by its address, and goneMost how
// many are.
const (
	goneKept = 5 * time.Minute
	goneMost = 65536
)

// inheritLocked gives to a worker with a new id what was known of the one that has left its
// address lately: two records that take turns there are of one worker. One that was aside is let
// back as one that recovers, unless it could not be reached: somebody has registered it since.
func (t *Tracker) inheritLocked(es []*entry, now time.Time) {
	was, ok := t.gone.Get(es[0].endpoint, now)
	if !ok || len(was) != len(es) || was[0].rank.ID == es[0].rank.ID || was[0].prefill != es[0].prefill {
		return
	}
	for i, e := range es {
		o := was[i]
		e.serverErrors, e.rate, e.refusals, e.servedAt, e.slow, e.slowRequest = o.serverErrors, o.rate, o.refusals, o.servedAt, o.slow, o.slowRequest
		e.relapses, e.lates, e.answers = o.relapses, o.lates, o.answers
		e.heard = o.heard
		switch {
		case o.refused, o.is() == Healthy:
		case o.is() == Doubted:
			t.moveLocked(e, Doubted, false, o.reason, now)
			t.suspectLocked(e, now)
		default:
			t.moveLocked(e, Recovering, false, o.reason, now)
		}
	}
}

// entriesOf returns new entries for a worker.
func entriesOf(w *worker.Worker) []*entry {
	es := make([]*entry, w.Ports())
	for dp := range es {
		r := worker.Rank{ID: w.ID, DPRank: worker.DPRank(dp)} //nolint:gosec // DPSize is bounded
		e := &entry{rank: r, ownPort: len(es) > 1, endpoint: w.EndpointOf(r.DPRank), prefill: w.Role == worker.Prefill}
		at := "http://" + e.endpoint.String()
		e.turn, e.atEndpoint, e.atBootstrap = turn{of: e, at: at}, turn{of: e, at: at}, turn{of: e, at: bootstrapOf(w)}
		e.pools.Store(new([]*pool))
		es[dp] = e
	}
	return es
}

// bootstrapOf returns where decode workers reach a prefill worker, empty if w has no such
// address.
func bootstrapOf(w *worker.Worker) string {
	if w.Role != worker.Prefill || w.Bootstrap.IsZero() {
		return ""
	}
	return "http://" + net.JoinHostPort(w.Bootstrap.Host, strconv.Itoa(int(w.Bootstrap.Port)))
}

// stillOf reports whether the entries still fit the worker.
func stillOf(es []*entry, w *worker.Worker) bool {
	return len(es) == w.Ports() && es[0].endpoint == w.Endpoint && es[0].prefill == (w.Role == worker.Prefill) &&
		es[0].atBootstrap.at == bootstrapOf(w)
}

// moveLocked is the only method that changes a state between healthy, aside and
// recovering. dead says that a worker that is set aside cannot be reached.
func (t *Tracker) moveLocked(e *entry, to State, dead bool, r Reason, now time.Time) {
	from := e.is()
	t.countLocked(e, -1)
	e.state.Store(uint32(to))
	e.reason, e.since, e.dead, e.refused = r, now, dead, dead && r.proof() || to == Recovering && e.refused
	e.trial.Store(0)
	t.countLocked(e, 1)
	e.kept.Store(to.aside() && !dead && e.last())
	if !to.aside() {
		e.strike()
	}
	t.changes.note(e.rank.ID)
	if from == Probing {
		from = Aside
	}
	if to == Probing {
		to = Aside
	}
	if t.cfg.Hooks.Transition != nil {
		t.cfg.Hooks.Transition(Transition{Rank: e.rank, OwnPort: e.ownPort, From: from, To: to, Reason: r, At: now, Mates: e.mated()})
	}
}

// countLocked adds e to the counters, or takes it away with a sign of -1.
func (t *Tracker) countLocked(e *entry, sign int) {
	s := e.is()
	if s != Healthy {
		t.limited.Add(int64(sign))
	}
	for _, p := range *e.pools.Load() {
		t.touchLocked()
		p.count(s, e.dead, e.refused, sign)
	}
}

// touchLocked counts the work of a call, so that tests can see how it grows.
func (t *Tracker) touchLocked() {
	if invariants.Enabled {
		t.touched++
	}
}

func (t *Tracker) jitterLocked(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*t.rng.Float64()))
}

func (t *Tracker) nudge() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// Lookup returns the health of a rank, or of its whole worker. False means that it is not
// known.
func (t *Tracker) Lookup(r worker.Rank) (RankHealth, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.find(r)
	if e == nil {
		return RankHealth{}, false
	}
	return e.shown(), true
}

// Status returns the health of every worker, or of each of its ranks, in order. It looks
// at all of them: it is for people, not for requests.
func (t *Tracker) Status() []RankHealth {
	t.mu.Lock()
	known := *t.known.Load()
	out := make([]RankHealth, 0, len(known))
	for _, es := range known {
		for _, e := range es {
			out = append(out, e.shown())
		}
	}
	t.mu.Unlock()
	slices.SortFunc(out, func(a, b RankHealth) int { return a.Rank.Compare(b.Rank) })
	return out
}

func (e *entry) shown() RankHealth {
	s := e.is()
	return RankHealth{
		Rank: e.rank, OwnPort: e.ownPort, State: s, Reason: e.reason, Since: e.since,
		ConsecutiveErrors: e.serverErrors, Relapses: e.relapses, SparedFor: e.sparedFor,
		Suspected: !s.aside() && (e.agenda != nil || e.flight == onSuspicion),
		Unheard:   e.silence(),
	}
}
