package discovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// ErrNotReady says that some source has not sent its first full set.
var ErrNotReady = errors.New("discovery: not ready")

// Config configures a [View].
type Config struct {
	// Sources in order of precedence: if two have the same worker, the earlier one
	// keeps it. At least one.
	Sources []Named

	// MinBackoff is the first pause before a source that returned is run again. The
	// pause doubles up to MaxBackoff; each is drawn between half of it and all of it.
	// Defaults: 100 ms and 2 s. A higher MaxBackoff spares a store in trouble, but
	// delays the first fresh set afterwards.
	MinBackoff time.Duration
	MaxBackoff time.Duration

	Hooks Hooks
}

// Named is a source with its name in problems, logs and the page.
type Named struct {
	Name   string
	Source Source
}

// Hooks are called with events for a log. Each may be nil. They are called one at a
// time, in order, by the goroutine that also calls subscribers.
type Hooks struct {
	// Transition is called when a source's state changes, and when a source that is not
	// fresh has a new cause.
	Transition func(Transition)
	// Problem is called once for each problem when it appears.
	Problem func(Problem)
}

// Transition is one change of a source's state.
type Transition struct {
	Source   string
	From, To State
	Revision uint64
	Workers  int
	Cause    string // why the set is not fresh; "" if it is
}

func (c Config) withDefaults() Config {
	c.MinBackoff = cmp.Or(c.MinBackoff, 100*time.Millisecond)
	c.MaxBackoff = cmp.Or(c.MaxBackoff, max(2*time.Second, c.MinBackoff))
	return c
}

// Validate returns every fault of c, joined, or nil.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	if len(c.Sources) == 0 {
		errs = append(errs, errors.New("sources: expected at least one"))
	}
	seen := map[string]bool{}
	for i, s := range c.Sources {
		if s.Name == "" || s.Source == nil {
			errs = append(errs, fmt.Errorf("sources[%d]: expected a name and a source", i))
		}
		if seen[s.Name] {
			errs = append(errs, fmt.Errorf("sources[%d]: name %q is used twice", i, s.Name))
		}
		seen[s.Name] = true
	}
	if c.MinBackoff < 0 || c.MaxBackoff < c.MinBackoff {
		errs = append(errs, fmt.Errorf("backoff: %s to %s: expected a positive range", c.MinBackoff, c.MaxBackoff))
	}
	return Faults("discovery", errs...)
}

// Faults returns the faults of the settings of a part of discovery as one error that names the
// part, or nil if there are none.
func Faults(of string, errs ...error) error {
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%s: %w", of, err)
	}
	return nil
}

// View holds the present workers. All methods are safe for concurrent use.
type View struct {
	// Set at construction, read-only.
	cfg   Config
	ready chan struct{} // closed when every source has sent a full set
	kick  chan struct{} // has room for one; wakes notify

	snap    atomic.Pointer[worker.Snapshot] // never nil
	running atomic.Bool

	// mu guards the fields below. It is held while events are applied, and never while
	// a source, a hook or a subscriber is called.
	mu          sync.Mutex
	feeds       []*feed // one for each source, in the order of cfg.Sources
	subs        []*subscriber
	problems    []Problem
	transitions []Transition // still to be passed to Hooks.Transition
	news        []Problem    // still to be passed to Hooks.Problem
}

// feed is one source's reducer and what the page shows of the source. Guarded by
// View.mu.
type feed struct {
	reducer Reducer
	since   time.Time // when the present state began
	lostAt  time.Time // when the last error came
	lastErr string    // the last error; kept after recovery
	losses  uint64    // how often a fresh set was lost
}

// New returns a view that is empty and not ready until Run is called.
func New(cfg Config) (*View, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	v := &View{cfg: cfg.withDefaults(), ready: make(chan struct{}), kick: make(chan struct{}, 1)}
	v.snap.Store(&worker.Snapshot{})
	now := time.Now()
	for range cfg.Sources {
		v.feeds = append(v.feeds, &feed{since: now})
	}
	return v, nil
}

// Load returns the present workers with one atomic load: it never returns nil and never
// waits. The set is empty until the view is ready.
func (v *View) Load() *worker.Snapshot { return v.snap.Load() }

// Ready reports whether every source has sent a full set. Once true it stays true: see
// the invariants of the package.
func (v *View) Ready() bool {
	select {
	case <-v.ready:
		return true
	default:
		return false
	}
}

// WaitReady waits until the view is ready. If ctx ends first, the error wraps
// ErrNotReady and the cause of ctx, and names the sources that are missing.
func (v *View) WaitReady(ctx context.Context) error {
	select {
	case <-v.ready:
		return nil
	case <-ctx.Done():
	}
	if v.Ready() {
		return nil
	}
	missing := ""
	for _, s := range v.Status().Sources {
		if s.State == Empty || s.State == Listing {
			missing += fmt.Sprintf("; source %s is %s", s.Name, s.State)
			if s.LastError != "" {
				missing += ": " + s.LastError
			}
		}
	}
	return fmt.Errorf("%w: %w%s", ErrNotReady, context.Cause(ctx), missing)
}

// Run runs the sources until ctx ends. It returns when all goroutines have ended and
// subscribers were told of the last set. It returns an error only if Run was called
// before.
func (v *View) Run(ctx context.Context) error {
	if !v.running.CompareAndSwap(false, true) {
		return errors.New("discovery: view is run twice; expected once")
	}
	var sources, notifier sync.WaitGroup
	for i := range v.cfg.Sources {
		sources.Go(func() { v.runSource(ctx, i) })
	}
	stop := make(chan struct{})
	notifier.Go(func() { v.notify(stop) })
	sources.Wait()
	close(stop)
	notifier.Wait()
	return nil
}

// runSource runs one source repeatedly, with pauses.
func (v *View) runSource(ctx context.Context, i int) {
	s := v.cfg.Sources[i]
	backoff := v.cfg.MinBackoff
	for ctx.Err() == nil {
		_ = v.apply(i, Begin{}) // never refused
		began := time.Now()
		err := s.Source.Run(ctx, sink{v, i})
		if ctx.Err() != nil {
			return
		}
		v.stopped(i, err)
		if time.Since(began) > 2*v.cfg.MaxBackoff {
			backoff = v.cfg.MinBackoff // the source ran well for a while
		}
		select {
		case <-ctx.Done():
		case <-time.After(backoff/2 + rand.N(backoff/2+1)):
		}
		backoff = min(2*backoff, v.cfg.MaxBackoff)
	}
}

// stopped applies a Broken when a source has returned. If the source returned because
// the reducer refused an event, the reducer already has the cause, in better words.
func (v *View) stopped(i int, err error) {
	v.mu.Lock()
	fresh := v.feeds[i].reducer.State() == Watching
	v.mu.Unlock()
	switch {
	case err == nil:
		_ = v.apply(i, Broken{Reason: "the source stopped"})
	case fresh || !errors.Is(err, ErrResync):
		_ = v.apply(i, Broken{Reason: err.Error()})
	}
}

type sink struct {
	view *View
	i    int
}

func (s sink) Send(ev Event) error { return s.view.apply(s.i, ev) }

// apply applies one event of source i and publishes the result.
func (v *View) apply(i int, ev Event) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	f := v.feeds[i]
	from, cause := f.reducer.State(), f.reducer.Cause()
	changed, err := v.foldLocked(f, ev)
	v.recordLocked(i, from, cause)
	v.publishLocked(changed)
	v.wakeLocked()
	return err
}

// foldLocked applies an event, and reports whether the set may have changed.
func (v *View) foldLocked(f *feed, ev Event) (changed bool, err error) {
	several, ok := ev.(Batches)
	if !ok {
		err = f.reducer.Apply(ev)
		return err == nil && ChangesSet(ev), err
	}
	touched := touched{}
	for _, b := range several {
		if touched.again(&f.reducer, b) {
			v.publishLocked(changed)
		}
		err = f.reducer.Apply(b)
		if err != nil {
			break
		}
		changed = changed || len(b.Ops) > 0
	}
	return changed, err
}

// recordLocked records a change of a source's state or cause.
func (v *View) recordLocked(i int, from State, cause string) {
	f := v.feeds[i]
	to, now := f.reducer.State(), time.Now()
	if f.reducer.Cause() != "" {
		f.lastErr, f.lostAt = f.reducer.Cause(), now
	}
	if to == from && f.reducer.Cause() == cause {
		return
	}
	if to != from {
		f.since = now
	}
	if from == Watching {
		f.losses++
	}
	v.transitions = append(v.transitions, Transition{
		Source: v.cfg.Sources[i].Name, From: from, To: to,
		Revision: f.reducer.Revision(), Workers: len(f.reducer.entries), Cause: f.reducer.Cause(),
	})
}
