package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/seed-60ae5743/baton/pkg/discovery/file"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// leaveTime bounds how long Run goes on after its context has ended.
const leaveTime = 2 * time.Second

// maxTTL bounds how long a worker may be known after its registrar died. etcd
// itself takes 285 years.
const maxTTL = time.Hour

// ErrStopped is returned by Sync when Run has ended.
var ErrStopped = errors.New("etcd: the registrar has stopped")

// RegistrarConfig is what a registrar is made of.
type RegistrarConfig struct {
	// Prefix of the keys. Default DefaultPrefix.
	Prefix string

	// TTL is how long the worker stays registered after its registrar died, in
	// whole seconds, an hour at most; default 10 s. The lease is renewed each third of it. Raising
	// it spares etcd, and leaves a dead worker known for longer. etcd has a least
	// TTL of its own (1.5 election timeouts).
	TTL time.Duration

	// RetryMin and RetryMax are the first and the longest pause after a failure;
	// pauses double, and each is drawn between half of it and all of it.
	// Defaults: 50 ms and 1 s.
	RetryMin, RetryMax time.Duration

	// Logger is told of registrations and losses. Nil means silence.
	Logger *slog.Logger

	Hooks RegistrarHooks
}

// RegistrarHooks are told what happens. Any may be nil. Run calls them, one at
// a time; they must not wait for the registrar.
type RegistrarHooks struct {
	// Registered fires when the worker has become known by the id.
	Registered func(id worker.ID)
	// Lost fires when a registration was found to be gone although it was
	// wanted: the lease ended, or the key was deleted. A new one follows.
	Lost func(cause string)
	// Failed fires for the first failure in a row, for one that reads otherwise,
	// and each minute while it goes on. What was registered stays so while its
	// lease lives.
	Failed func(err error)
}

func (c RegistrarConfig) withDefaults() RegistrarConfig {
	if c.Prefix == "" {
		c.Prefix = DefaultPrefix
	}
	if c.TTL == 0 {
		c.TTL = 10 * time.Second
	}
	if c.RetryMin == 0 {
		c.RetryMin = 50 * time.Millisecond
	}
	if c.RetryMax == 0 {
		c.RetryMax = max(time.Second, c.RetryMin)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Hooks.Registered == nil {
		c.Hooks.Registered = func(worker.ID) {}
	}
	if c.Hooks.Lost == nil {
		c.Hooks.Lost = func(string) {}
	}
	if c.Hooks.Failed == nil {
		c.Hooks.Failed = func(error) {}
	}
	return c
}

// Validate returns every fault of c, joined, or nil.
func (c RegistrarConfig) Validate() error {
	c = c.withDefaults()
	var errs []error
	if err := checkPrefix(c.Prefix); err != nil {
		errs = append(errs, err)
	}
	if c.TTL < time.Second || c.TTL > maxTTL || c.TTL%time.Second != 0 {
		errs = append(errs, fmt.Errorf("ttl %s: expected whole seconds, from 1 s to %s", c.TTL, maxTTL))
	}
	if c.RetryMin < 0 || c.RetryMax < c.RetryMin {
		errs = append(errs, fmt.Errorf("retry: %s to %s: expected a positive range", c.RetryMin, c.RetryMax))
	}
	return joined(errs)
}

// Registrar keeps one worker registered under a lease, whose id is the
// worker's. All methods are safe for concurrent use.
type Registrar struct {
	// Set at construction, read-only.
	cfg    RegistrarConfig
	client *clientv3.Client
	kick   chan struct{} // one slot; wakes Run

	// Owned by Run.
	sentry sentry
	pulse  pulse

	// mu guards all below. It is held for no call of another package's.
	mu      sync.Mutex
	keeper  keeper
	record  worker.Worker // what was last announced; its ID is not used
	line    []byte        // record as it is compared; nil before the first
	refused error         // why the last announcement was not taken
	trouble trouble
	news    chan struct{} // closed and replaced when what Sync waits for may have come
	running bool
	leaving bool // Run's context has ended: nothing is asked for any more
	stopped bool
}

// NewRegistrar returns a registrar with nothing to register. The client stays
// the caller's and must live longer than Run.
func NewRegistrar(client *clientv3.Client, cfg RegistrarConfig) (*Registrar, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if client == nil {
		return nil, errors.New("etcd: registrar: expected a client")
	}
	cfg = cfg.withDefaults()
	return &Registrar{
		cfg: cfg, client: client,
		kick: make(chan struct{}, 1), news: make(chan struct{}),
		keeper: keeper{
			ttl: cfg.TTL, retryMin: cfg.RetryMin, retryMax: cfg.RetryMax,
			jitter: func(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) },
		},
	}, nil
}

// Announce says what etcd should hold. rec's ID is not used: the lease's id
// takes its place. Another life means that the engine was started anew, so that
// nothing known of the worker holds any more: it gets a new id, and its old key
// goes in the transaction that writes the new one. The same life with other
// content is written under the same id. It does not wait; see Sync. A record
// that is no valid worker changes nothing, and Sync returns why.
func (r *Registrar) Announce(rec worker.Worker, life uint64) {
	rec.Models = slices.Clone(rec.Models)
	rec.ID = 1
	line, err := file.MarshalWorker(&rec)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refused = err
	if err == nil && !r.leaving {
		if w := r.keeper.want; w.present && w.life == life && bytes.Equal(line, r.line) {
			r.tellLocked()
			return
		}
		r.record, r.line = rec, line
		r.keeper.ask(true, life)
	}
	r.tellLocked()
	r.wake()
}

// Withdraw says that the worker should not be known. It does not wait; see
// Sync.
func (r *Registrar) Withdraw() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refused = nil
	if r.keeper.want.present && !r.leaving {
		r.keeper.ask(false, 0)
	}
	r.tellLocked()
	r.wake()
}

// Sync waits until etcd holds what was last asked for. It returns the reason
// when the last announcement was not taken, ErrStopped when Run has ended, and
// else the cause of ctx.
func (r *Registrar) Sync(ctx context.Context) error {
	for {
		r.mu.Lock()
		refused, settled, stopped, news := r.refused, r.keeper.settled(), r.stopped, r.news
		r.mu.Unlock()
		switch {
		case refused != nil:
			return fmt.Errorf("etcd: announced: %w", refused)
		case stopped:
			return ErrStopped
		case settled:
			return nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return fmt.Errorf("etcd: registration not in yet: %w", context.Cause(ctx))
		}
	}
}

// ID returns the id that the worker is known by, as far as the registrar knows;
// zero when by none.
func (r *Registrar) ID() worker.ID {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.keeper.held.written == 0 {
		return 0
	}
	return worker.ID(r.keeper.held.lease)
}

// LastError returns why etcd could not be asked the last time, and since when it
// has failed each time; nil when it did not fail.
func (r *Registrar) LastError() (err error, since time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.trouble.err, r.trouble.since
}

// tellLocked lets those who wait in Sync look again.
func (r *Registrar) tellLocked() {
	close(r.news)
	r.news = make(chan struct{})
}

func (r *Registrar) wake() {
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

// Run keeps the worker registered until ctx ends. Then it revokes the lease, so
// that the worker is gone at once, for which it takes 2 s at most. It returns an
// error when it has been run before, or when the lease could not be revoked and
// has to run out.
func (r *Registrar) Run(ctx context.Context) error {
	r.mu.Lock()
	if r.running {
		r.mu.Unlock()
		return errors.New("etcd: registrar is run twice; expected once")
	}
	r.running = true
	r.mu.Unlock()

	var helpers sync.WaitGroup
	helpers.Go(func() { r.follow(ctx) })
	for ctx.Err() == nil {
		r.mu.Lock()
		a := r.keeper.next(time.Now())
		r.mu.Unlock()
		if a.deed == rest {
			r.rest(ctx, a.until)
		} else {
			r.do(ctx, a)
		}
	}
	r.sentry.stop()
	helpers.Wait()
	r.pulse.stop()
	err := r.leave()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = true
	r.tellLocked()
	return err
}

// rest waits until the time, or until there is something new.
func (r *Registrar) rest(ctx context.Context, until time.Time) {
	var timer <-chan time.Time
	if !until.IsZero() {
		timer = time.After(time.Until(until))
	}
	select {
	case <-ctx.Done():
	case <-timer:
	case <-r.kick:
	case s := <-r.sentry.said:
		r.hear(s)
	}
}

// leave revokes every lease that is left.
func (r *Registrar) leave() error {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTime)
	defer cancel()
	r.mu.Lock()
	r.leaving = true
	r.keeper.ask(false, 0)
	r.keeper.notBefore = time.Time{}
	r.mu.Unlock()
	for {
		r.mu.Lock()
		a := r.keeper.next(time.Now())
		r.mu.Unlock()
		switch {
		case a.deed == rest && a.until.IsZero():
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("etcd: the lease could not be revoked within %s; it runs out by itself within %s", leaveTime, r.cfg.TTL)
		case a.deed == rest:
			r.rest(ctx, a.until)
		default:
			r.do(ctx, a)
		}
	}
}
