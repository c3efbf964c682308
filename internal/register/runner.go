package register

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/internal/register/engine"
	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// partingTime bounds how long Run waits at its end for the registry to remove the record.
const partingTime = 2 * time.Second

// Registry is where a worker is announced. Announce and Withdraw do not wait; Sync waits
// until the registry holds what was last asked of it. Safe for concurrent use.
type Registry interface {
	// Announce gives the record that is to be held; rec.ID is not used. Another life gets
	// another id.
	Announce(rec worker.Worker, life uint64)
	Withdraw()
	Sync(ctx context.Context) error
	// ID is the worker's present instance id; zero if the registry holds no record.
	ID() worker.ID
}

// Runner registers one worker. Run may be called once; the other methods are safe for
// concurrent use.
type Runner struct {
	// set at construction, read-only
	cfg      Config
	host     string // the host that is advertised
	registry Registry
	client   *engine.Client
	log      *slog.Logger
	hurried  chan struct{} // closed by Hurry

	hurryOnce sync.Once

	// owned by Run
	m      *machine
	events chan event
	jobs   sync.WaitGroup
	unsync context.CancelFunc // ends the wait for the registry that is under way

	metrics *metrics

	mu      sync.Mutex // guards the fields below
	state   State      // a copy of m's state after its last step
	trouble string     // the registry's last error; "" once it holds what it was given
}

// New returns a Runner for the engine of cfg. It asks no questions yet.
func New(cfg Config, registry Registry) (*Runner, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if registry == nil {
		return nil, errors.New("register: expected a registry")
	}
	cfg = cfg.withDefaults()
	host, port, err := advertised(cfg.Advertise, cfg.Engine.URL)
	if err != nil {
		return nil, fmt.Errorf("register: %w", err)
	}
	client, err := engine.New(cfg.Engine)
	if err != nil {
		return nil, fmt.Errorf("register: %w", err)
	}
	r := &Runner{
		cfg: cfg, host: host, registry: registry, client: client, log: cfg.Logger,
		hurried: make(chan struct{}), events: make(chan event), m: newMachine(cfg, port), unsync: func() {},
	}
	r.state = r.m.state()
	r.metrics = newMetrics(r.State)
	return r, nil
}

// Registered, Lost and Failed are hooks for the registry. Any goroutine may call them at
// any time.

// Registered counts that the worker has got an instance id.
func (r *Runner) Registered(worker.ID) { r.metrics.registrations.Inc() }

// Lost records that a registration was lost although it was wanted.
func (r *Runner) Lost(cause string) {
	r.metrics.losses.Inc()
	r.troubled(cause)
}

// Failed records an error that keeps the registry from holding the record.
func (r *Runner) Failed(err error) {
	r.metrics.registryFailure.Inc()
	r.troubled(err.Error())
}

func (r *Runner) troubled(why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trouble = strings.ReplaceAll(why, "\n", "; ")
}

// Hurry ends a drain, or Run as a whole, at once. It may be called more than once.
func (r *Runner) Hurry() { r.hurryOnce.Do(func() { close(r.hurried) }) }

// Run registers the worker until ctx ends, then drains it. It returns when every
// goroutine has ended. An error means that the registry may still have the record.
func (r *Runner) Run(ctx context.Context) error {
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		stop()
		r.jobs.Wait()
		r.client.Close()
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	told, hurried := ctx.Done(), r.hurried
	for {
		var ev event
		select {
		case ev = <-r.events:
		case <-timer.C:
			ev = tick{}
		case <-r.client.Lost():
			ev = lost{}
		case <-told:
			ev, told = term{known: r.registry.ID() != 0}, nil // the channel stays closed
		case <-hurried:
			ev, hurried = hurry{}, nil
		}
		r.metrics.saw(ev)
		for _, a := range r.m.step(time.Now(), ev) {
			r.metrics.did(a)
			r.do(work, a)
		}
		r.publish()
		if r.m.phase == gone {
			return r.part(work)
		}
		if at, any := r.m.next(); any {
			timer.Reset(max(0, time.Until(at)))
		}
	}
}

// part waits until the registry has removed the record.
func (r *Runner) part(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, partingTime)
	defer cancel()
	if err := r.registry.Sync(ctx); err != nil {
		return fmt.Errorf("register: the record may outlive this process until its lease ends: %w", err)
	}
	return nil
}

func (r *Runner) do(ctx context.Context, a action) {
	why := slog.String(logkey.Why, a.why)
	switch a.verb {
	case askHealth:
		r.ask(ctx, func() event {
			h, err := r.client.Health(ctx)
			return healthAsked{h, err}
		})
	case refresh:
		r.ask(ctx, func() event { return r.read(ctx) })
	case count:
		r.ask(ctx, func() event {
			n, err := r.client.InFlight(ctx)
			return counted{n, err}
		})
	case announce:
		r.announce(ctx, a)
	case withdraw:
		r.unsync()
		r.registry.Withdraw()
		r.log.LogAttrs(ctx, slog.LevelInfo, "withdrawn", why)
	case leave:
		r.log.LogAttrs(ctx, slog.LevelInfo, "gone", why)
	case tellHealthy:
		r.log.LogAttrs(ctx, slog.LevelInfo, "engine is healthy", slog.String(logkey.URL, r.cfg.Engine.URL))
	case tellUnhealthy:
		r.log.LogAttrs(ctx, slog.LevelWarn, "engine is not healthy", slog.String(logkey.URL, r.cfg.Engine.URL), why)
	case tellSilent:
		r.log.LogAttrs(ctx, slog.LevelWarn, "engine does not answer, or is too busy to: it stays announced, and plugins avoid it if its requests fail",
			slog.String(logkey.URL, r.cfg.Engine.URL), why)
	case tellIncomplete:
		r.log.LogAttrs(ctx, slog.LevelWarn, "worker is not announced: facts are missing, they are asked for again", why)
	case tellKept:
		r.log.LogAttrs(ctx, slog.LevelWarn, "what was read before is kept", why)
	case tellWarning:
		r.log.LogAttrs(ctx, slog.LevelWarn, "the record may not be what is wanted", why)
	case tellUncounted:
		r.log.LogAttrs(ctx, slog.LevelWarn, "requests in flight are not known: the whole drain time-out is waited", why,
			slog.Duration(logkey.DrainTimeout, r.cfg.DrainTimeout))
	}
}

// ask answers a question of the machine in the background.
func (r *Runner) ask(ctx context.Context, answer func() event) {
	r.jobs.Go(func() {
		select {
		case r.events <- answer():
		case <-ctx.Done():
		}
	})
}

// announce gives the registry the record, and tells the machine when the registry holds
// it.
func (r *Runner) announce(ctx context.Context, a action) {
	r.unsync()
	if a.rec.Draining {
		r.log.LogAttrs(ctx, slog.LevelInfo, "draining", slog.String(logkey.Endpoint, a.rec.Endpoint.String()))
	}
	r.registry.Announce(a.rec, a.life)
	sync, cancel := context.WithCancel(ctx)
	r.unsync = cancel
	r.jobs.Go(func() {
		defer cancel()
		err := r.registry.Sync(sync)
		switch {
		case sync.Err() != nil:
			return
		case err != nil:
			r.log.LogAttrs(ctx, slog.LevelError, "the registry does not take the record", slog.Any(logkey.Err, err))
			r.troubled(err.Error())
			return
		}
		r.troubled("")
		if !a.rec.Draining {
			r.log.LogAttrs(ctx, slog.LevelInfo, "announced", slog.String(logkey.WorkerID, r.registry.ID().String()),
				slog.String(logkey.Role, a.rec.Role.String()), slog.String(logkey.Endpoint, a.rec.Endpoint.String()),
				slog.String(logkey.Models, strings.Join(a.rec.Models, ",")), slog.Uint64(logkey.BlockSize, uint64(a.rec.BlockSize)), slog.String(logkey.PairFacts, a.rec.Pair.String()), slog.Uint64(logkey.Life, a.life))
		}
		select {
		case r.events <- held{a.seq}:
		case <-sync.Done():
		}
		r.lookForPartner(sync, &a.rec)
	})
}

// read asks for all facts that a record is made from.
func (r *Runner) read(ctx context.Context) refreshed {
	var e refreshed
	e.facts, e.factsErr = r.client.Facts(ctx)
	limit, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	e.addrs, e.addrErr = lookup(limit, r.cfg.Resolver, r.host)
	if r.cfg.AnnotationsFile != "" {
		e.notes, e.notesErr = readAnnotations(r.cfg.AnnotationsFile)
	}
	return e
}

func readAnnotations(name string) (map[string]string, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("annotations: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxAnnotations+1))
	if err != nil {
		return nil, fmt.Errorf("annotations: %w", err)
	}
	notes, err := parseAnnotations(data)
	if err != nil {
		return nil, fmt.Errorf("annotations: %s: %w", name, err)
	}
	return notes, nil
}
