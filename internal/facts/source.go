package facts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed-60ae5743/baton/internal/telemetry/logkey"
	"github.com/seed-60ae5743/baton/pkg/discovery"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Epoch is the epoch of a Source's listings.
const Epoch = "facts"

// pause is the shortest time between two listings.
const pause = 200 * time.Millisecond

// firstTimeout bounds the first question to a worker: many that hang at once would keep
// the others waiting. The next question gets the whole time.
const firstTimeout = time.Second

// errEnded is the answer to an inner source that sends after its Run should have ended.
var errEnded = fmt.Errorf("%w: facts: the source has ended", discovery.ErrResync)

// Source passes the workers of another source on, with the facts that their engines say.
// It implements [discovery.Source]. Run must not be called again before it has returned;
// the other methods are safe for concurrent use.
type Source struct {
	// set at construction, read-only
	cfg    Config
	reader Reader
	kick   chan struct{} // has room for one: something is in wanted

	// Owned by the goroutine of Run, and kept between Runs.
	inner    discovery.Reducer
	agenda   *agenda
	revision uint64                 // of the last listing
	entries  []discovery.Entry      // of the inner set
	made     map[string]composed    // the workers of the last listing that have facts, by key
	sent     map[worker.ID]struct{} // the workers of the last listing
	away     map[worker.ID]struct{} // workers that were away since the last listing, or are of another process
	dirty    bool                   // the set or a fact has changed since the last listing
	lastSent time.Time

	// Guarded by mu.
	mu     sync.Mutex
	wanted map[worker.ID]struct{} // to be asked soon
	rows   map[worker.ID]Row
}

// composed is a worker as it was made from an inner worker and a reading.
type composed struct {
	from   *worker.Worker
	of     *subject
	readAt time.Time
	worker *worker.Worker
	notes  []string
}

var _ discovery.Source = (*Source)(nil)

// New returns a source that asks the workers of cfg.Inner.
func New(cfg Config) (*Source, error) {
	if cfg.Inner == nil {
		return nil, errors.New("facts: expected the source whose workers are asked")
	}
	cfg = cfg.withDefaults()
	reader := cfg.Reader
	if reader == nil {
		reader = &Engines{APIKeyFile: cfg.APIKeyFile, KeySetting: cfg.KeySetting, TLS: cfg.TLS, Timeout: cfg.Timeout}
	}
	seed := cfg.Seed
	if seed == 0 {
		seed = rand.Uint64()
	}
	return &Source{
		cfg: cfg, reader: reader, kick: make(chan struct{}, 1),
		agenda: newAgenda(&cfg, seed),
		made:   map[string]composed{}, sent: map[worker.ID]struct{}{}, away: map[worker.ID]struct{}{},
		wanted: map[worker.ID]struct{}{}, rows: map[worker.ID]Row{},
	}, nil
}

// Ask has the workers asked soon, since something shows that their engines may have begun
// anew. Workers that are not asked at all are ignored.
func (s *Source) Ask(ids ...worker.ID) {
	s.mu.Lock()
	for _, id := range ids {
		if _, ok := s.rows[id]; ok {
			s.wanted[id] = struct{}{}
		}
	}
	s.mu.Unlock()
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// question is one question under way, and its answer.
type question struct {
	s       *subject
	reading Reading
	err     error
}

// run is one Run.
type run struct {
	*Source
	ctx     context.Context //nolint:containedctx // of the questions; ends with Run
	sink    discovery.Sink
	answers chan question
	asked   sync.WaitGroup
}

// Run runs the inner source until it returns, and returns its error.
func (s *Source) Run(ctx context.Context, sink discovery.Sink) error {
	ctx, cancel := context.WithCancel(ctx)
	_ = s.inner.Apply(discovery.Begin{}) // never refused
	r := &run{Source: s, ctx: ctx, sink: sink, answers: make(chan question)}
	relay := relay{ctx: ctx, events: make(chan discovery.Event), replies: make(chan error)}
	ended := make(chan error, 1)
	var inner sync.WaitGroup
	inner.Go(func() { ended <- s.cfg.Inner.Run(ctx, relay) })
	defer inner.Wait()
	defer r.asked.Wait()
	defer r.drop()
	defer cancel()
	return r.loop(&relay, ended)
}

// drop forgets the questions that are under way at the end of a Run.
func (r *run) drop() {
	for _, x := range r.agenda.subjects {
		if x.asking {
			r.agenda.ended(x)
			x.asking, x.due = false, time.Time{}
		}
	}
	r.agenda.running, r.agenda.doubtful = 0, 0
	clear(r.agenda.hosts)
}

// relay is the sink that the inner source gets.
type relay struct {
	ctx     context.Context //nolint:containedctx // of Run
	events  chan discovery.Event
	replies chan error
}

func (r relay) Send(ev discovery.Event) error {
	select {
	case r.events <- ev:
	case <-r.ctx.Done():
		return errEnded
	}
	return <-r.replies // the loop answers each event that it takes
}

// loop is the loop of Run.
func (r *run) loop(relay *relay, ended <-chan error) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		next, err := r.work(time.Now())
		if err != nil {
			return err
		}
		timer.Reset(next)
		select {
		case ev := <-relay.events:
			err := r.pass(ev, time.Now())
			relay.replies <- err
			if err != nil && !errors.Is(err, discovery.ErrResync) {
				return err
			}
		case q := <-r.answers:
			r.take(q, time.Now())
		case <-r.kick:
			r.heed(time.Now())
		case <-timer.C:
		case err := <-ended:
			if r.dirty && r.ctx.Err() == nil {
				err = errors.Join(err, r.send(time.Now()))
			}
			return err
		}
	}
}

// work asks who is due and sends what has changed, and returns for how long there is
// nothing more to do.
func (r *run) work(now time.Time) (time.Duration, error) {
	wait := time.Hour
	for {
		x, again := r.agenda.begin(now)
		if x == nil {
			if !again.IsZero() {
				wait = again.Sub(now)
			}
			break
		}
		r.ask(x)
	}
	if !r.dirty || !r.inner.HasSet() {
		return wait, nil
	}
	left := pause - now.Sub(r.lastSent)
	if left > 0 {
		return min(wait, left), nil
	}
	return wait, r.send(now)
}

// ask asks in the background.
func (r *run) ask(x *subject) {
	last := worker.Engine("")
	if x.known {
		last = x.reading.Facts.Engine
	}
	t, limit := x.target, r.cfg.Timeout
	if !x.known && x.failures == 0 {
		limit = min(limit, firstTimeout)
	}
	r.asked.Go(func() {
		ctx, cancel := context.WithTimeout(r.ctx, limit)
		defer cancel()
		q := question{s: x}
		q.reading, q.err = r.reader.Read(ctx, t, last)
		if r.ctx.Err() != nil {
			return // Run has ended: the worker has not failed
		}
		if q.err != nil && ctx.Err() != nil && !errors.Is(q.err, context.DeadlineExceeded) {
			q.err = fmt.Errorf("%w: %w", q.err, context.DeadlineExceeded)
		}
		r.cfg.Counted(q.err)
		select {
		case r.answers <- q:
		case <-r.ctx.Done():
		}
	})
}

// take takes an answer.
func (r *run) take(q question, now time.Time) {
	x := q.s
	r.agenda.ended(x)
	var c change
	if q.err != nil {
		c = x.failed(q.err, now, &r.agenda.pace)
	} else {
		c = x.answered(q.reading, now, &r.agenda.pace)
	}
	if r.agenda.subjects[x.key] != x {
		return // it is not asked any more
	}
	if c == another {
		r.away[x.target.Worker] = struct{}{}
		r.cfg.Log.Info("a worker's engine is another process than before", logkey.WorkerID, x.target.Worker.String(), logkey.URL, x.target.URL)
	}
	r.dirty = r.dirty || c != same
	r.show(x)
}

// heed has those workers asked soon for which [Source.Ask] was called.
func (r *run) heed(now time.Time) {
	r.mu.Lock()
	wanted := r.wanted
	r.wanted = map[worker.ID]struct{}{}
	r.mu.Unlock()
	for _, x := range r.agenda.subjects {
		if _, ok := wanted[x.target.Worker]; ok {
			x.soon(now)
		}
	}
}

// pass takes an event of the inner source, and returns the answer to it.
func (r *run) pass(ev discovery.Event, now time.Time) error {
	switch ev := ev.(type) {
	case discovery.Begin, discovery.Broken:
		if r.dirty && r.inner.HasSet() { // what came before it
			if err := r.send(now); err != nil {
				return err
			}
		}
		if err := r.inner.Apply(ev); err != nil {
			return err
		}
		return r.sink.Send(ev)
	}
	was := r.inner.State()
	if err := r.fold(ev, now); err != nil {
		// The sink would have refused the event for the same reason.
		return errors.Join(err, r.sink.Send(discovery.Broken{Reason: r.inner.Cause()}))
	}
	if was != discovery.Watching || r.dirty && now.Sub(r.lastSent) >= pause {
		return r.send(now)
	}
	return nil
}

// fold applies an event to the inner set, revision by revision, so that a worker that
// goes and comes back is seen to have been away.
func (r *run) fold(ev discovery.Event, now time.Time) error {
	several, ok := ev.(discovery.Batches)
	if !ok {
		err := r.inner.Apply(ev)
		if err == nil && discovery.ChangesSet(ev) {
			r.follow(now)
		}
		return err
	}
	for _, b := range several {
		if err := r.fold(b, now); err != nil {
			return err
		}
	}
	return nil
}

// follow brings the agenda in step with the inner set.
func (r *run) follow(now time.Time) {
	entries := r.inner.Entries()
	present := make(map[worker.ID]struct{}, len(entries))
	targets := make(map[string]Target)
	for _, e := range entries {
		if e.Worker == nil {
			continue
		}
		present[e.Worker.ID] = struct{}{}
		if wants(e.Worker) {
			targets[e.Key] = r.cfg.targetOf(e.Worker)
		}
	}
	for _, e := range r.entries {
		if e.Worker == nil {
			continue
		}
		if _, ok := present[e.Worker.ID]; !ok {
			r.away[e.Worker.ID] = struct{}{}
		}
	}
	r.entries, r.dirty = entries, true
	r.agenda.follow(targets, now)
	r.showAll()
}

// send sends the present set. Workers that were away since the last listing are left out
// of a first one, so that they are seen to have left.
func (r *run) send(now time.Time) error {
	entries := r.compose()
	back := func(e discovery.Entry) bool {
		if e.Worker == nil {
			return false
		}
		_, known := r.sent[e.Worker.ID]
		_, away := r.away[e.Worker.ID]
		return known && away
	}
	if slices.ContainsFunc(entries, back) {
		if err := r.list(slices.DeleteFunc(slices.Clone(entries), back)); err != nil {
			return err
		}
	}
	sent := make(map[worker.ID]struct{}, len(entries))
	for _, e := range entries {
		if e.Worker != nil {
			sent[e.Worker.ID] = struct{}{}
		}
	}
	if err := r.list(entries); err != nil {
		return err
	}
	r.sent, r.dirty, r.lastSent = sent, false, now
	clear(r.away)
	return nil
}

// list sends a listing, which is as fresh as the inner set.
func (r *run) list(entries []discovery.Entry) error {
	r.revision = max(r.revision+1, r.inner.Revision())
	stale := ""
	if r.inner.State() != discovery.Watching {
		stale = cmp.Or(r.inner.Cause(), "the source lists")
	}
	return r.sink.Send(discovery.List{Epoch: Epoch, Revision: r.revision, Entries: entries, Stale: stale})
}

// compose returns the inner set with the facts that are known.
func (r *run) compose() []discovery.Entry {
	made := make(map[string]composed, len(r.agenda.subjects))
	out := slices.Clone(r.entries)
	for i := range out {
		e := &out[i]
		x := r.agenda.subjects[e.Key]
		if x == nil {
			continue
		}
		notes := []string{e.Note, x.fault}
		if x.known {
			c := r.made[e.Key]
			if c.from != e.Worker || c.of != x || c.readAt != x.readAt {
				c = composed{from: e.Worker, of: x, readAt: x.readAt}
				c.worker, c.notes = Merge(e.Worker, r.cfg.Defaults, &x.reading)
			}
			made[e.Key], e.Worker = c, c.worker
			notes = append(notes, c.notes...)
		}
		e.Note = strings.Join(slices.DeleteFunc(notes, func(n string) bool { return n == "" }), "; ")
	}
	r.made = made
	return out
}
