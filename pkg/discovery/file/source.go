package file

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/discovery/record"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Config configures a [Source].
type Config struct {
	// Path of the file. Neither the file nor its folder has to exist yet. Required.
	Path string

	// Poll is how often the file is checked without a notification. Default 2 s. It
	// bounds how late a change is seen on file systems without notifications (network
	// mounts). A higher value saves calls of stat.
	Poll time.Duration

	// Settle is how long the file must not change before it is read. Default 20 ms. A
	// higher value protects against writers that pause in the middle of a file, but
	// delays every change.
	Settle time.Duration

	// Logger gets a warning when notifications are not available and the file is only
	// polled. Nil means no log.
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	c.Poll = cmp.Or(c.Poll, 2*time.Second)
	c.Settle = cmp.Or(c.Settle, 20*time.Millisecond)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	return c
}

// Validate returns every fault of c, joined, or nil.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	if c.Path == "" {
		errs = append(errs, errors.New("path: expected the workers file"))
	}
	if c.Poll < 0 || c.Settle < 0 {
		errs = append(errs, fmt.Errorf("poll %s, settle %s: expected durations above 0", c.Poll, c.Settle))
	}
	return discovery.Faults("file", errs...)
}

// Source watches one file. It implements [discovery.Source]. Run must not be called
// again before it has returned.
type Source struct {
	cfg Config // set at construction, read-only

	// Owned by the goroutine of Run. They are kept between Runs, so that a second Run
	// continues to count.
	revision uint64      // the revision of the last listing that was sent
	seen     os.FileInfo // the file as it was last read; nil: it could not be read
	data     []byte      // the content that was last read
	fresh    bool        // the last event that was sent was a listing of data
	reason   string      // the reason of the last Broken that was sent, while not fresh
}

var _ discovery.Source = (*Source)(nil)

// New returns a source for the file.
func New(cfg Config) (*Source, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Source{cfg: cfg.withDefaults()}, nil
}

// Run sends the file as a listing whenever it changes, until ctx ends; it then returns
// nil. The revision counts the listings. Run returns an error only if the sink refuses
// an event.
func (s *Source) Run(ctx context.Context, sink discovery.Sink) error {
	s.fresh, s.reason, s.seen = false, "", nil // nothing was sent to this sink yet
	w, err := fsnotify.NewWatcher()
	if err != nil {
		s.cfg.Logger.LogAttrs(ctx, slog.LevelWarn, "no file notifications, polling only",
			slog.String(logkey.Path, s.cfg.Path), slog.Duration(logkey.Poll, s.cfg.Poll), slog.Any(logkey.Err, err))
		return s.loop(ctx, sink, nil, nil, func() {})
	}
	defer w.Close()
	dir := filepath.Dir(s.cfg.Path)
	// Adding a folder that is already watched changes nothing. A folder that is made
	// later, or removed and made again, is watched from the next poll on.
	rewatch := func() { _ = w.Add(dir) }
	return s.loop(ctx, sink, w.Events, w.Errors, rewatch)
}

// loop is the loop of Run. The channels may be nil.
func (s *Source) loop(ctx context.Context, sink discovery.Sink, events <-chan fsnotify.Event, faults <-chan error, rewatch func()) error {
	rewatch()
	poll := time.NewTicker(s.cfg.Poll)
	defer poll.Stop()
	q := quiet{settle: s.cfg.Settle, most: s.cfg.Poll, timer: time.NewTimer(s.cfg.Settle), was: s.stat(), since: time.Now()}
	defer q.timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-events:
			if !ok {
				events = nil
			} else if s.concerns(e) {
				q.disturb(s.stat())
			}
		case _, ok := <-faults:
			if !ok {
				faults = nil
			}
			q.disturb(s.stat()) // some notifications may be lost
		case <-poll.C:
			rewatch()
			if now := s.stat(); !unchanged(s.seen, now) {
				q.disturb(now)
			}
		case <-q.timer.C:
			if now := s.stat(); !q.done(now) {
				continue
			}
			if err := s.look(sink); err != nil {
				return err
			}
		}
	}
}

// quiet waits until a file has not changed for settle, but no longer than most. Owned
// by the goroutine of Run.
type quiet struct {
	settle, most time.Duration
	timer        *time.Timer
	was          os.FileInfo
	since        time.Time // when the first change that is still pending came; zero: none is
}

// disturb records that the file may have changed, and how it is at present.
func (q *quiet) disturb(now os.FileInfo) {
	if q.since.IsZero() {
		q.since = time.Now()
	}
	q.was = now
	if time.Since(q.since) < q.most {
		q.timer.Reset(q.settle)
	}
}

// done is called when the timer has fired. It reports whether the file may be read.
func (q *quiet) done(now os.FileInfo) bool {
	if !unchanged(q.was, now) && time.Since(q.since) < q.most {
		q.disturb(now)
		return false
	}
	q.since = time.Time{}
	return true
}

// stat returns the file at the path, or nil if it cannot be looked at.
func (s *Source) stat() os.FileInfo {
	info, _ := os.Stat(s.cfg.Path)
	return info
}

// unchanged reports whether a and b are the same file with the same size and time of
// change, or both nil.
func unchanged(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// concerns reports whether an event in the folder may have changed the file at the
// path: an event of the file itself, or of a link on the way to it (Kubernetes swaps
// "..data").
func (s *Source) concerns(e fsnotify.Event) bool {
	if e.Op == fsnotify.Chmod {
		return false
	}
	name := filepath.Base(e.Name)
	return name == filepath.Base(s.cfg.Path) || strings.HasPrefix(name, "..")
}

// look reads the file, and sends a listing or a Broken unless that was the last event
// already.
func (s *Source) look(sink discovery.Sink) error {
	info, data, err := s.read()
	if err != nil {
		s.seen = nil
		return s.lose(sink, err)
	}
	same := s.seen != nil && bytes.Equal(data, s.data)
	s.seen, s.data = info, data
	if same && (s.fresh || s.reason != "") {
		return nil
	}
	ws, err := record.ParseList(s.cfg.Path, data)
	if err != nil {
		return s.lose(sink, err)
	}
	s.revision++
	if err := sink.Send(discovery.List{Revision: s.revision, Entries: entries(ws)}); err != nil {
		return err
	}
	s.fresh, s.reason = true, ""
	return nil
}

// read returns the file as it was before its content was read, and the content. So the
// next poll sees a change that happened while it was read.
func (s *Source) read() (os.FileInfo, []byte, error) {
	info, err := os.Stat(s.cfg.Path)
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() { // a pipe would block
		return nil, nil, fmt.Errorf("%s: expected a file, found %s", s.cfg.Path, info.Mode())
	}
	f, err := os.Open(s.cfg.Path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, record.MaxBytes+1))
	return info, data, err
}

// lose sends a Broken, once for each reason.
func (s *Source) lose(sink discovery.Sink, cause error) error {
	s.fresh = false
	reason := strings.ReplaceAll(cause.Error(), "\n", "; ")
	if reason == s.reason {
		return nil
	}
	s.reason = reason
	return sink.Send(discovery.Broken{Reason: s.reason})
}

// entries makes an entry of each worker, with the id as the key: a list with repeated ids
// is refused.
func entries(ws []*worker.Worker) []discovery.Entry {
	es := make([]discovery.Entry, 0, len(ws))
	for _, w := range ws {
		es = append(es, discovery.Entry{Key: w.ID.String(), Worker: w})
	}
	return es
}
