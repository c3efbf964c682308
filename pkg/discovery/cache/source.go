package cache

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/pkg/discovery"
)

// Epoch is that of a listing that was read from the file.
const Epoch = "cache"

// Config is what a source with a memory is made of.
type Config struct {
	// Inner is the source to remember. Its listings must not be of [Epoch].
	// Required.
	Inner discovery.Source

	// Path of the file. Its folder is made when there is something to write.
	// Required.
	Path string

	// Identity names what Inner reads, on one line, for example by its prefix. It
	// is kept in the file; a file of another identity, or of none, is not served,
	// as its workers are others'. Default none: the file is not asked whose it is.
	Identity string

	// Patience is how long the first Run waits for Inner's listing before it
	// serves the file. Default 2 s. Raising it makes it less likely that a slow
	// store is preceded by what was known before, and delays the first request
	// by as much when the store is away.
	Patience time.Duration

	// MaxAge is how long after the source last vouched for it a set is still
	// served at a start, to within a tenth; a file's time in the future counts
	// as now. Default 24 h. Raising it survives longer times without plugin and
	// store; lowering it makes it less likely that a worker's address is
	// another's by then. What a plugin that runs has got is served without a
	// bound.
	MaxAge time.Duration

	// Logger is told when the file is served, cannot be used or cannot be
	// written. Nil means silence.
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.Patience == 0 {
		c.Patience = 2 * time.Second
	}
	if c.MaxAge == 0 {
		c.MaxAge = 24 * time.Hour
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Validate returns every fault of c, joined, or nil.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	if c.Inner == nil {
		errs = append(errs, errors.New("inner: expected the source to remember"))
	}
	if c.Path == "" {
		errs = append(errs, errors.New("path: expected the file to remember it in"))
	}
	if strings.ContainsAny(c.Identity, "\r\n") {
		errs = append(errs, fmt.Errorf("identity %q: expected one line", c.Identity))
	}
	if c.Patience < 0 {
		errs = append(errs, fmt.Errorf("patience %s: expected a duration above 0", c.Patience))
	}
	if c.MaxAge < 0 {
		errs = append(errs, fmt.Errorf("max age %s: expected a duration above 0", c.MaxAge))
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("cache: %w", errors.Join(errs...))
}

// Source passes another source's events on and keeps its last good set in a
// file. It implements [discovery.Source]. Run must not be called again before it
// has returned.
type Source struct {
	// set at construction, read-only
	cfg Config
	w   *writer

	// Owned by the goroutine of Run; they outlive it.
	mirror  discovery.Reducer // of what the sink has accepted from Inner
	asked   bool              // the file was asked for, or is not needed any more
	serving string            // what of the file is being served; "" when nothing is
}

var _ discovery.Source = (*Source)(nil)

// New returns a source that remembers cfg.Inner.
func New(cfg Config) (*Source, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	return &Source{cfg: cfg, w: newWriter(cfg.Path, cfg.Identity, cfg.Logger)}, nil
}

// Run runs the inner source until it returns and passes its error on, with what
// is being served in its place, if anything is. All its goroutines have ended
// then, but for a write that the disk holds up.
func (s *Source) Run(ctx context.Context, sink discovery.Sink) error {
	defer func() {
		if ctx.Err() == nil {
			s.w.flush(breakWait)
		} else {
			s.w.flush(endWait)
		}
	}()
	_ = s.mirror.Apply(discovery.Begin{}) // never refused
	// The sink wants one caller at a time, and the file is served while the inner
	// source runs: so that one sends through this goroutine, too.
	relay := relay{events: make(chan discovery.Event), answers: make(chan error)}
	ended := make(chan error, 1)
	go func() { ended <- s.cfg.Inner.Run(ctx, relay) }()
	patience := time.NewTimer(s.cfg.Patience)
	defer patience.Stop()
	vouch := time.NewTicker(max(1, s.cfg.MaxAge/vouches))
	defer vouch.Stop()
	for {
		select {
		case ev := <-relay.events:
			relay.answers <- s.pass(ev, sink)
		case <-vouch.C:
			if s.mirror.State() == discovery.Watching {
				s.w.put(known(s.mirror.Entries()))
			}
		case <-patience.C:
			s.recall(ctx, sink, "for "+s.cfg.Patience.String())
		case err := <-ended:
			s.recall(ctx, sink, gaveUp(err))
			if err != nil && s.serving != "" {
				err = fmt.Errorf("%w: %s", err, s.serving)
			}
			return err
		}
	}
}

func gaveUp(err error) string {
	if err == nil {
		return "and is not asked any more"
	}
	return "(" + strings.ReplaceAll(err.Error(), "\n", "; ") + ")"
}

// relay is the sink of the inner source.
type relay struct {
	events  chan discovery.Event
	answers chan error
}

func (r relay) Send(ev discovery.Event) error {
	r.events <- ev
	return <-r.answers
}

// pass gives an event to the sink and remembers what the sink has accepted.
func (s *Source) pass(ev discovery.Event, sink discovery.Sink) error {
	own := copied(ev)
	if err := sink.Send(ev); err != nil {
		_ = s.mirror.Apply(discovery.Broken{Reason: err.Error()})
		return err
	}
	if err := s.mirror.Apply(own); err != nil {
		// The sink has more to go by than the mirror; only what both accept is
		// known to be the source's.
		s.cfg.Logger.Warn("not remembered", slog.Any("err", err))
		return nil
	}
	switch own := own.(type) {
	case discovery.List:
		s.asked, s.serving = true, ""
		s.w.put(known(s.mirror.Entries()))
	case discovery.Batch, discovery.Batches:
		if discovery.ChangesSet(own) {
			s.w.put(known(s.mirror.Entries()))
		}
	}
	return nil
}

// copied returns the event with lists of its own: the sink owns those it is
// sent. Workers are shared; nobody changes them.
func copied(ev discovery.Event) discovery.Event {
	switch ev := ev.(type) {
	case discovery.List:
		ev.Entries = slices.Clone(ev.Entries)
		return ev
	case discovery.Batch:
		ev.Ops = slices.Clone(ev.Ops)
		return ev
	case discovery.Batches:
		ev = slices.Clone(ev)
		for i := range ev {
			ev[i].Ops = slices.Clone(ev[i].Ops)
		}
		return ev
	}
	return ev
}

// recall sends what the file holds, once, unless there was a listing. silence
// says how the store has not answered.
func (s *Source) recall(ctx context.Context, sink discovery.Sink, silence string) {
	if s.asked || ctx.Err() != nil {
		return
	}
	s.asked = true
	entries, at, err := read(s.cfg.Path, s.cfg.Identity)
	if err != nil {
		level := slog.LevelWarn
		if errors.Is(err, fs.ErrNotExist) {
			level = slog.LevelInfo // as on every first start
		}
		s.cfg.Logger.LogAttrs(ctx, level, "no workers are known from before", slog.String("path", s.cfg.Path), slog.Any("err", err))
		return
	}
	if age := time.Since(at); age > s.cfg.MaxAge {
		s.cfg.Logger.Warn("what was known before is too old to be served", slog.String("path", s.cfg.Path),
			slog.Duration("age", age.Round(time.Second)), slog.Duration("max_age", s.cfg.MaxAge))
		return
	}
	serving := fmt.Sprintf("serving the %d workers that were known at %s", len(entries), at.UTC().Format(time.RFC3339))
	for _, ev := range []discovery.Event{
		discovery.List{Epoch: Epoch, Revision: 1, Entries: entries},
		discovery.Broken{Reason: "the store has not answered " + silence + ": " + serving},
	} {
		if err := sink.Send(ev); err != nil {
			s.cfg.Logger.Warn("the workers that were known before were refused", slog.String("path", s.cfg.Path), slog.Any("err", err))
			return
		}
	}
	s.serving = serving
	s.cfg.Logger.Warn("the store has not answered "+silence, slog.String("instead", serving), slog.String("path", s.cfg.Path))
}
