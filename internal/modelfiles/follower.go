package modelfiles

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
	"github.com/seed-60ae5743/baton/pkg/tokens/local"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// connectWithin and beginWithin bound how long a worker may take to accept a connection and to
// begin its answer, which is a file that it has in memory.
const (
	connectWithin = 2 * time.Second
	beginWithin   = 5 * time.Second
)

// Config configures a [Follower].
type Config struct {
	// Use is told which files the tokens of a model are made from; nil: from none. It is
	// called from one goroutine.
	Use func(model string, m *local.Model)
	// Configured are models whose files come from elsewhere: they are left alone.
	Configured map[string]bool
	// Dir is a folder in which sets are kept; it is made. Default: none.
	Dir string

	Most    int           // sets; default 16, of some 100 MB of memory each
	Timeout time.Duration // of one question to one worker; default 1 min
	Again   time.Duration // after a set could not be read; default 10 s

	Transport http.RoundTripper // default: one that gives a silent worker up before Timeout
	Log       *slog.Logger      // default: nothing is logged
	// Counted is called with each outcome: fetched, kept (read from the folder), failed, or
	// refused (the files are not understood).
	Counted func(outcome string)
}

func (c Config) withDefaults() Config {
	c.Most, c.Timeout, c.Again = cmp.Or(c.Most, 16), cmp.Or(c.Timeout, time.Minute), cmp.Or(c.Again, 10*time.Second)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Counted == nil {
		c.Counted = func(string) {}
	}
	if c.Transport == nil {
		// No proxy: workers are neighbours. Workers are asked one after another, and each one that
		// is silent delays the files of every model.
		c.Transport = &http.Transport{DialContext: (&net.Dialer{Timeout: connectWithin}).DialContext, ResponseHeaderTimeout: beginWithin, DisableKeepAlives: true}
	}
	return c
}

// Follower reads the sets of files that workers name. Changed may be called by anybody; all
// else is Run's.
type Follower struct {
	cfg    Config
	client *http.Client

	workers atomic.Pointer[[]*worker.Worker]
	changed chan struct{}

	held map[string]*local.Model // by digest; nil: it is not understood
	used map[string]string       // digest by model
	told map[string]string       // what was said last, by what it was said of

	faults atomic.Pointer[[]string] // the same, for others
}

// New returns a Follower.
func New(c Config) *Follower {
	c = c.withDefaults()
	return &Follower{
		cfg: c, changed: make(chan struct{}, 1),
		client: &http.Client{
			Transport:     c.Transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		held: map[string]*local.Model{}, used: map[string]string{}, told: map[string]string{},
	}
}

// Changed tells which workers there are now. It does not wait.
func (f *Follower) Changed(ws []*worker.Worker) {
	f.workers.Store(&ws)
	select {
	case f.changed <- struct{}{}:
	default: // it will see these, too
	}
}

// Faults says which files cannot be used, and why. Safe for concurrent use.
func (f *Follower) Faults() []string {
	if all := f.faults.Load(); all != nil {
		return *all
	}
	return nil
}

// Run reads what is wanted until ctx ends.
func (f *Follower) Run(ctx context.Context) error {
	again := time.NewTimer(f.cfg.Again)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.changed:
		case <-again.C:
		}
		ws := f.workers.Load()
		if ws != nil && !f.follow(ctx, *ws) {
			again.Reset(f.cfg.Again)
		}
	}
}

// follow does what the workers' records want. It returns false if some of it is to be tried
// again.
func (f *Follower) follow(ctx context.Context, ws []*worker.Worker) (done bool) {
	sets, faults := Wanted(ws)
	for i := range sets {
		sets[i].Models = slices.DeleteFunc(sets[i].Models, func(m string) bool { return f.cfg.Configured[m] })
	}
	sets = slices.DeleteFunc(sets, func(s Set) bool { return len(s.Models) == 0 })
	for m, why := range faults {
		if f.used[m] != "" {
			f.use(m, "")
		}
		f.tell(m, "the files of a model are not used", logkey.Model, m, logkey.Reason, why)
	}
	done = true
	for i := range sets {
		done = f.have(ctx, &sets[i], sets) && done
		for _, m := range sets[i].Models {
			if f.held[sets[i].Digest] != nil && f.used[m] != sets[i].Digest {
				delete(f.told, m)
				f.use(m, sets[i].Digest)
			}
		}
	}
	f.forget(sets, faults)
	f.faults.Store(new(slices.Sorted(maps.Values(f.told))))
	return done
}

// forget lets sets go that no worker names and no model uses, and what was said of what is
// gone.
func (f *Follower) forget(sets []Set, faults map[string]string) {
	wanted := map[string]bool{f.cfg.Dir: true}
	for i := range sets {
		wanted[sets[i].Digest] = true
	}
	maps.DeleteFunc(f.told, func(of, _ string) bool { return !wanted[of] && faults[of] == "" })
	for _, digest := range f.used {
		wanted[digest] = true
	}
	maps.DeleteFunc(f.held, func(digest string, _ *local.Model) bool { return !wanted[digest] })
}

func (f *Follower) use(model, digest string) {
	if digest == "" {
		delete(f.used, model)
		f.cfg.Use(model, nil)
		return
	}
	f.used[model] = digest
	f.cfg.Use(model, f.held[digest])
}

// have reads a set unless it is held. It returns false if that is to be tried again.
func (f *Follower) have(ctx context.Context, s *Set, wanted []Set) bool {
	if _, held := f.held[s.Digest]; held {
		return true
	}
	if !f.room(wanted) {
		f.tell(s.Digest, "the files of a model are not read: others have all places", logkey.Models, strings.Join(s.Models, ","), logkey.AtMost, f.cfg.Most)
		return true // until the workers change
	}
	packed, from := f.kept(s.Digest), f.cfg.Dir
	if packed == nil {
		got, at, err := f.fetch(ctx, s)
		if err != nil {
			f.cfg.Counted("failed")
			f.tell(s.Digest, "the files of a model cannot be read", logkey.Models, strings.Join(s.Models, ","), logkey.Err, err)
			return false
		}
		packed, from = got, at.String()
		f.cfg.Counted("fetched")
		if err := f.keep(s.Digest, packed); err != nil {
			f.tell(f.cfg.Dir, "the files of a model are not kept in the folder", logkey.File, f.cfg.Dir, logkey.Err, err)
		}
	} else {
		f.cfg.Counted("kept")
	}
	files, err := local.Unpack(packed)
	var m *local.Model
	if err == nil {
		m, err = local.New(files, local.Limits{})
	}
	f.held[s.Digest] = m
	if err != nil {
		f.cfg.Counted("refused")
		f.tell(s.Digest, "the files of a model are not understood: engines are asked", logkey.Models, strings.Join(s.Models, ","), logkey.Err, err)
		return true
	}
	delete(f.told, s.Digest)
	f.cfg.Log.Info("the files of a model are read", logkey.Models, strings.Join(s.Models, ","), logkey.From, from, logkey.Digest, s.Digest)
	return true
}

// room reports whether one more set may be held. To make room it lets one go that no worker
// names.
func (f *Follower) room(wanted []Set) bool {
	if len(f.held) < f.cfg.Most {
		return true
	}
	for _, digest := range slices.Sorted(maps.Keys(f.held)) {
		if slices.ContainsFunc(wanted, func(s Set) bool { return s.Digest == digest }) {
			continue
		}
		for _, m := range slices.Sorted(maps.Keys(f.used)) {
			if f.used[m] == digest {
				f.use(m, "")
			}
		}
		delete(f.held, digest)
		return true
	}
	return false
}

// tell logs a warning, unless the same was said of it last.
func (f *Follower) tell(of, msg string, args ...any) {
	said := msg
	for i := 1; i < len(args); i += 2 {
		said += fmt.Sprintf(", %v %v", args[i-1], args[i])
	}
	if f.told[of] != said {
		f.told[of] = said
		f.cfg.Log.Warn(msg, args...)
	}
}
