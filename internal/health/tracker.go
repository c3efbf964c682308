package health

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// maxRelapses keeps the doubling of the hold from overflowing.
const maxRelapses = 16

// Tracker knows the health of every worker. Safe for concurrent use.
type Tracker struct {
	// Set at construction, read-only.
	cfg  Config
	wake chan struct{} // one slot: Run should look again

	// mu guards the following. Hooks are called while it is held; nothing else
	// is, and no other lock is taken.
	mu      sync.Mutex
	rng     *rand.Rand
	workers map[worker.ID]*entry
	pools   []*pool
	probes  uint64 // number of the last probe begun

	view   atomic.Pointer[view] // replaced under mu, read by anyone
	trials atomic.Uint64        // last trial given out
}

// entry is one worker. Guarded by Tracker.mu, trial excepted.
type entry struct {
	id       worker.ID
	endpoint worker.Endpoint
	pools    []*pool // none while it drains

	state        State
	reason       Reason
	since        time.Time
	serverErrors int
	relapses     int
	sparedFor    Reason    // why it should be aside, while there is no room
	nextProbe    time.Time // of an Aside worker
	probe        uint64    // number of its last probe

	// trial is the request that tries a recovering worker; 0: none.
	trial *atomic.Uint64
}

// pool is the workers of one key and role, draining ones left out.
type pool struct {
	members []*entry
	limit   int // how many may be aside
}

func (p *pool) count(is func(State) bool) int {
	n := 0
	for _, e := range p.members {
		if is(e.state) {
			n++
		}
	}
	return n
}

// New returns a Tracker that knows no worker. The error names every fault of
// cfg.
func New(cfg Config) (*Tracker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	seed := cfg.Seed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t := &Tracker{
		cfg:     cfg,
		wake:    make(chan struct{}, 1),
		rng:     rand.New(rand.NewPCG(seed, seed)),
		workers: make(map[worker.ID]*entry),
	}
	t.view.Store(new(view))
	return t, nil
}

// Update makes the Tracker know the workers of s and forget all others.
func (t *Tracker) Update(s *worker.Snapshot, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, e := range t.workers {
		if w := s.Worker(id); w == nil || w.Endpoint != e.endpoint {
			delete(t.workers, id)
		}
	}
	for _, w := range s.Workers() {
		e := t.workers[w.ID]
		if e == nil {
			e = &entry{id: w.ID, endpoint: w.Endpoint, trial: new(atomic.Uint64)}
			t.workers[w.ID] = e
		}
		e.pools = nil
	}
	t.pools = nil
	for _, k := range s.Keys() {
		p := s.Pool(k)
		for _, ws := range [][]*worker.Worker{p.Prefill, p.Decode, p.Aggregated} {
			t.addPoolLocked(ws)
		}
	}
	for _, p := range t.pools {
		t.enforceShareLocked(p, now)
	}
	t.publishLocked()
}

func (t *Tracker) addPoolLocked(ws []*worker.Worker) {
	if len(ws) == 0 {
		return
	}
	p := &pool{limit: int(math.Ceil(t.cfg.MaxShare * float64(len(ws))))}
	for _, w := range ws {
		e := t.workers[w.ID]
		p.members = append(p.members, e)
		e.pools = append(e.pools, p)
	}
	t.pools = append(t.pools, p)
}

// enforceShareLocked lets workers back when a pool has shrunk around them:
// those with server errors first, then the latest to go.
func (t *Tracker) enforceShareLocked(p *pool, now time.Time) {
	for p.count(State.aside) > p.limit {
		var back *entry
		for _, e := range p.members {
			if e.state.aside() && (back == nil || sooner(e, back)) {
				back = e
			}
		}
		t.moveLocked(back, Recovering, ReasonShare, now)
	}
}

func sooner(a, b *entry) bool {
	if x, y := a.reason == ReasonServerErrors, b.reason == ReasonServerErrors; x != y {
		return x
	}
	return a.since.After(b.since)
}

// Report takes what a request met at a worker. Unknown workers are ignored.
func (t *Tracker) Report(id worker.ID, o Outcome, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.workers[id]
	if e == nil {
		return
	}
	switch o {
	case OK:
		t.answeredLocked(e, now)
	case ServerError:
		e.serverErrors++
		if e.serverErrors >= t.cfg.ServerErrors || e.state == Recovering {
			t.failedLocked(e, ReasonServerErrors, now)
		}
	case ConnectFailed, ConnectionLost, Overdue, Timeout:
		t.failedLocked(e, Reason(o.String()), now)
	case NotStarted:
	}
}

func (t *Tracker) answeredLocked(e *entry, now time.Time) {
	e.serverErrors, e.sparedFor = 0, ""
	switch e.state {
	case Recovering:
		e.relapses = 0
		t.moveLocked(e, Healthy, ReasonAnswered, now)
	case Aside, Probing:
		if e.reason != Reason(Overdue.String()) && e.reason != Reason(Timeout.String()) {
			return
		}
		t.moveLocked(e, Recovering, ReasonAnswered, now)
	case Healthy:
		return
	}
	t.publishLocked()
}

func (t *Tracker) failedLocked(e *entry, r Reason, now time.Time) {
	if e.state.aside() {
		return
	}
	if !e.room(r) {
		if e.sparedFor == "" && t.cfg.Hooks.Spared != nil {
			t.cfg.Hooks.Spared(e.id, r, now)
		}
		e.sparedFor = r
		return
	}
	if e.state == Recovering {
		e.relapses = min(e.relapses+1, maxRelapses)
	}
	e.sparedFor = ""
	e.nextProbe = now.Add(t.jitterLocked(min(t.cfg.ProbeInterval<<e.relapses, t.cfg.MaxHold)))
	t.moveLocked(e, Aside, r, now)
	t.publishLocked()
	t.nudge()
}

// room reports whether every pool of e can spare it.
func (e *entry) room(r Reason) bool {
	for _, p := range e.pools {
		aside := p.count(State.aside)
		if aside >= p.limit {
			return false
		}
		if r == ReasonServerErrors && len(p.members)-aside <= 1 {
			return false
		}
	}
	return true
}

// moveLocked is the only place where a state changes between healthy, aside
// and recovering.
func (t *Tracker) moveLocked(e *entry, to State, r Reason, now time.Time) {
	from := e.state
	if from == Probing {
		from = Aside
	}
	e.state, e.reason, e.since = to, r, now
	e.trial.Store(0)
	if t.cfg.Hooks.Transition != nil {
		t.cfg.Hooks.Transition(Transition{ID: e.id, From: from, To: to, Reason: r, At: now})
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

// Status returns every worker, ordered by id.
func (t *Tracker) Status() []WorkerHealth {
	t.mu.Lock()
	out := make([]WorkerHealth, 0, len(t.workers))
	for _, e := range t.workers {
		out = append(out, WorkerHealth{
			ID: e.id, State: e.state, Reason: e.reason, Since: e.since,
			ConsecutiveErrors: e.serverErrors, Relapses: e.relapses, SparedFor: e.sparedFor,
		})
	}
	t.mu.Unlock()
	slices.SortFunc(out, func(a, b WorkerHealth) int { return cmp.Compare(a.ID, b.ID) })
	return out
}
