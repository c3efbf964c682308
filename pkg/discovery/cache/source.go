package cache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
	"github.com/seed-60ae5743/baton/pkg/discovery"
)

// Epoch is the epoch of a listing that was read from the file.
const Epoch = "cache"

// Config configures a [Source].
type Config struct {
	// Inner is the source whose set is kept. Its listings must not have the epoch
	// [Epoch]. Required.
	Inner discovery.Source

	// Path of the file. Its folder is made when the file is first written. Required.
	Path string

	// Identity names, on one line, what Inner reads, for example by its prefix. It is
	// kept in the file. A file of another identity or of none is not served, since it
	// has the workers of another store. Default none: every file is served.
	Identity string

	// Patience is how long the first Run waits for Inner's listing before it serves the
	// file. Default 2 s. With a higher value it is less likely that old workers are
	// served because the store is slow, but the first request waits that much longer if
	// the store is away.
	Patience time.Duration

	// MaxAge is how old a set may be to be served at a start, counted from when Inner
	// last vouched for it, to within a tenth. A file from the future counts as new.
	// Default 24 h. A higher value bridges longer times without plugin and store; a
	// lower value makes it less likely that another worker has a worker's address by
	// then. A plugin that runs serves the set that it has without a time limit.
	MaxAge time.Duration

	// Logger is told when the file is served, cannot be used or cannot be written. Nil
	// means no log.
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	c.Patience = cmp.Or(c.Patience, 2*time.Second)
	c.MaxAge = cmp.Or(c.MaxAge, 24*time.Hour)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
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
	return discovery.Faults("cache", errs...)
}

// Source passes the events of another source on, and keeps its last good set in a file.
// It implements [discovery.Source]. Run must not be called again before it has
// returned.
type Source struct {
	// set at construction, read-only
	cfg  Config
	w    *writer
	read chan struct{} // closed once stored is there
	once sync.Once     // reads the file

	stored stored // what the file had at the first Run; read it after <-read

	// recalled says that the workers of the file are served, or were.
	recalled atomic.Bool

	// Owned by the goroutine of Run, and kept between Runs.
	mirror  discovery.Reducer // what the sink has accepted from Inner
	asked   bool              // the file was read, or is not needed any more
	serving string            // describes the workers from the file that are being served; "": none are
}

var _ discovery.Source = (*Source)(nil)

// New returns a source that wraps cfg.Inner.
func New(cfg Config) (*Source, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	return &Source{cfg: cfg, w: newWriter(cfg.Path, cfg.Identity, cfg.Logger), read: make(chan struct{})}, nil
}

// Before returns what the file had at the start, and whether it has been served: workers
// that Inner may ask if its first listing lacks them. It has none if the file cannot be used, or
// has not been read in time. Inner calls it before it sends its first listing.
func (s *Source) Before() (entries []discovery.Entry, served bool) {
	patience := time.NewTimer(breakWait)
	defer patience.Stop()
	select {
	case <-s.read:
	case <-patience.C:
		return nil, false
	}
	if s.stored.err != nil || time.Since(s.stored.at) > s.cfg.MaxAge {
		return nil, false
	}
	return slices.Clone(s.stored.entries), s.recalled.Load()
}

// load reads the file, in a goroutine of its own: a disk that hangs delays nobody.
func (s *Source) load() {
	s.stored = read(s.cfg.Path, s.cfg.Identity)
	close(s.read)
}

// Run runs the inner source until it returns, and returns its error; if workers from
// the file are being served, the error says so. All goroutines have ended then, except
// a write that a slow disk delays.
func (s *Source) Run(ctx context.Context, sink discovery.Sink) error {
	defer func() {
		if ctx.Err() == nil {
			s.w.flush(breakWait)
		} else {
			s.w.flush(endWait)
		}
	}()
	s.once.Do(func() { go s.load() })
	_ = s.mirror.Apply(discovery.Begin{}) // never refused
	// The sink needs one caller at a time, and recall sends to it while the inner
	// source runs. So the inner source also sends through this goroutine.
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

// relay is the sink that the inner source gets.
type relay struct {
	events  chan discovery.Event
	answers chan error
}

func (r relay) Send(ev discovery.Event) error {
	r.events <- ev
	return <-r.answers
}

// pass gives an event to the sink, and records it if the sink accepts it.
func (s *Source) pass(ev discovery.Event, sink discovery.Sink) error {
	own := copied(ev)
	if err := sink.Send(ev); err != nil {
		_ = s.mirror.Apply(discovery.Broken{Reason: err.Error()})
		return err
	}
	if err := s.mirror.Apply(own); err != nil {
		// The sink may know more than the mirror does. Only what both accept is certain
		// to be the source's set.
		s.cfg.Logger.Warn("the list of workers could not be saved", slog.Any(logkey.Err, err))
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

// copied returns the event with slices of its own, since the sink owns those that it
// receives. The workers are shared: nobody changes them.
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

// recall sends what is in the file, once, unless a listing has been sent. silence is
// the text that says how the store did not answer.
func (s *Source) recall(ctx context.Context, sink discovery.Sink, silence string) {
	if s.asked || ctx.Err() != nil {
		return
	}
	s.asked = true
	select {
	case <-s.read:
	case <-ctx.Done():
		return
	}
	entries, at, err := s.stored.entries, s.stored.at, s.stored.err
	if err != nil {
		level := slog.LevelWarn
		if errors.Is(err, fs.ErrNotExist) {
			level = slog.LevelInfo // as at every first start
		}
		s.cfg.Logger.LogAttrs(ctx, level, "no workers are known from before", slog.String(logkey.Path, s.cfg.Path), slog.Any(logkey.Err, err))
		return
	}
	if age := time.Since(at); age > s.cfg.MaxAge {
		s.cfg.Logger.Warn("the saved list of workers is too old to be used", slog.String(logkey.Path, s.cfg.Path),
			slog.Duration(logkey.Age, age.Round(time.Second)), slog.Duration(logkey.MaxAge, s.cfg.MaxAge))
		return
	}
	serving := fmt.Sprintf("serving the %d workers that were known at %s", len(entries), at.UTC().Format(time.RFC3339))
	for _, ev := range []discovery.Event{
		discovery.List{Epoch: Epoch, Revision: 1, Entries: slices.Clone(entries)},
		discovery.Broken{Reason: "the store has not answered " + silence + ": " + serving},
	} {
		if err := sink.Send(ev); err != nil {
			s.cfg.Logger.Warn("the saved list of workers was refused", slog.String(logkey.Path, s.cfg.Path), slog.Any(logkey.Err, err))
			return
		}
	}
	s.serving = serving
	s.recalled.Store(true)
	s.cfg.Logger.Warn("the store has not answered "+silence, slog.String(logkey.Instead, serving), slog.String(logkey.Path, s.cfg.Path))
}
