package etcd

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/discovery/record"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// leaveTime bounds how long Run goes on after its context has ended.
const leaveTime = 2 * time.Second

// defaultTTL is how long a lease is unless it is configured, and userTTL where etcd asks for a
// user. An etcd that starts again has forgotten all tokens, and renews no lease without one:
// a thousand registrars wait for two minutes, and more, until it has computed their passwords.
const (
	defaultTTL = 10 * time.Second
	userTTL    = 5 * time.Minute
)

// maxTTL bounds how long a worker may stay known after its registrar died. etcd would
// allow 285 years.
const maxTTL = time.Hour

// ErrStopped is returned by Sync when Run has ended.
var ErrStopped = errors.New("etcd: the registrar has stopped")

// RegistrarConfig configures a [Registrar].
type RegistrarConfig struct {
	// Prefix of the keys. Default DefaultPrefix.
	Prefix string

	// TTL is how long the worker stays registered after its registrar died: whole
	// seconds, at most an hour; default 10 s, and 5 min if the client has a user. The lease is renewed after each third of
	// the TTL. A higher value spares etcd, but a dead worker stays known for longer.
	// etcd has a minimum of its own (1.5 election timeouts).
	TTL time.Duration

	// RetryMin and RetryMax are the first and the longest pause after a failure. Pauses
	// double, and each is drawn between half of it and all of it; while there is a lease
	// to lose, none is longer than 1 s. Defaults: 50 ms and 30 s. With a higher RetryMax an
	// etcd that cannot keep up is spared, and a worker comes later.
	RetryMin, RetryMax time.Duration

	// Logger is told of registrations and losses. Nil means no log.
	Logger *slog.Logger

	Hooks RegistrarHooks
}

// RegistrarHooks are called when something happens. Each may be nil. Run calls them one
// at a time; they must not wait for the registrar.
type RegistrarHooks struct {
	// Registered is called when the worker is registered with a new id.
	Registered func(id worker.ID)
	// Lost is called when a registration that is still wanted was found to be gone: the
	// lease has ended, or the key was deleted. The worker is then registered again.
	Lost func(cause string)
	// Failed is called for the first of several failures, for a failure with another
	// text (at most every 5 s), and every minute while failures continue. A worker
	// stays registered as long as its lease lives.
	Failed func(err error)
}

func (c RegistrarConfig) withDefaults() RegistrarConfig {
	c.Prefix = cmp.Or(c.Prefix, DefaultPrefix)
	c.TTL = cmp.Or(c.TTL, defaultTTL)
	c.RetryMin = cmp.Or(c.RetryMin, 50*time.Millisecond)
	c.RetryMax = cmp.Or(c.RetryMax, max(30*time.Second, c.RetryMin))
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
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
	return discovery.Faults("etcd", errs...)
}

// Registrar keeps one worker registered under a lease, whose id is the worker's id. All
// methods are safe for concurrent use.
type Registrar struct {
	// Set at construction, read-only.
	cfg    RegistrarConfig
	client *clientv3.Client
	kick   chan struct{} // has room for one; wakes Run

	// Owned by Run.
	sentry sentry
	pulse  pulse

	// mu guards the fields below. It is not held while other packages are called.
	mu      sync.Mutex
	keeper  keeper
	record  worker.Worker // what was announced last; its ID is not used
	line    []byte        // record as it is compared with the next one; nil: nothing was announced
	refused error         // why the last announcement was refused
	trouble trouble
	news    chan struct{} // closed and replaced when Sync has to check again
	running bool
	leaving bool // Run's context has ended: announcements have no effect any more
	stopped bool
}

// NewRegistrar returns a registrar that has nothing to register. The caller closes the
// client, after Run has returned.
func NewRegistrar(client *clientv3.Client, cfg RegistrarConfig) (*Registrar, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if client == nil {
		return nil, errors.New("etcd: registrar: expected a client")
	}
	if tokensOf(client) != nil {
		cfg.TTL = cmp.Or(cfg.TTL, userTTL)
	}
	cfg = cfg.withDefaults()
	return &Registrar{
		cfg: cfg, client: client,
		kick: make(chan struct{}, 1), news: make(chan struct{}),
		keeper: keeper{
			ttl: cfg.TTL, retryMin: cfg.RetryMin, retryMax: cfg.RetryMax,
			jitter: jittered,
		},
	}, nil
}

// Announce sets what etcd should have. rec.ID is not used: the lease's id takes its
// place. Another life means that the engine was started again, so that nothing known of
// the worker is true any more: it gets a new id, and the transaction that writes the
// new key deletes the old one. The same life with other content is written under the
// same id. Announce does not wait; see Sync. If the record is not a valid worker,
// nothing changes, and Sync returns the reason.
func (r *Registrar) Announce(rec worker.Worker, life uint64) {
	rec.Models = slices.Clone(rec.Models)
	rec.ID = 1
	line, err := record.Marshal(&rec)
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

// Withdraw sets that the worker should not be registered. It does not wait; see Sync.
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

// Sync waits until etcd has what was last announced or withdrawn. It returns the reason
// if the last announcement was refused, ErrStopped if Run has ended, and otherwise an
// error that wraps the cause of ctx if ctx ends first.
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

// ID returns the id with which the worker is registered, as far as the registrar knows,
// or zero if it is not registered.
func (r *Registrar) ID() worker.ID {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.keeper.held.written == 0 {
		return 0
	}
	return worker.ID(r.keeper.held.lease)
}

// LastError returns why the last request to etcd failed, and since when all have
// failed. err is nil if the last one succeeded.
func (r *Registrar) LastError() (err error, since time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.trouble.err, r.trouble.since
}

// tellLocked lets waiting calls of Sync check again.
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

// Run keeps the worker registered until ctx ends. Then it revokes the lease, for which
// it takes at most 2 s, so that the worker is gone at once. It returns an error if it
// was called before, or if the lease could not be revoked and has to expire.
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
	helpers.Go(func() { r.followTokens(ctx) })
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

// rest waits until the time, or until something happens.
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

// leave revokes all leases that are left.
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
