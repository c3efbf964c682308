package discovery

import (
	"cmp"
	"slices"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// Change is the difference between two snapshots. Each list is sorted. A worker that
// left and came back under its id between two calls is in both Left and Joined: a
// subscriber that handles Left first then starts clean with it
// (docs/behaviour.md#leaves-nothing).
type Change struct {
	Joined  []worker.ID
	Left    []worker.ID
	Moved   []worker.ID // of Left: nobody withdrew them, and others are at their addresses at once
	Changed []worker.ID // in both snapshots, and different
}

// IsZero reports whether no worker has changed.
func (c Change) IsZero() bool { return len(c.Joined)+len(c.Left)+len(c.Changed) == 0 }

// ChangeFunc is called with a new snapshot. In the first call old is empty. If only the
// stale mark has changed, the Change is empty. The function may read the view, subscribe
// and cancel. It should return soon, since hooks and other subscribers wait for it.
type ChangeFunc func(old, now *worker.Snapshot, c Change)

// subscriber is guarded by View.mu, except the first two, which are read-only.
type subscriber struct {
	fn     ChangeFunc
	over   chan struct{}      // closed when it was cancelled and is not called
	called bool               // a call is on its way
	last   *worker.Snapshot   // the snapshot of the last call
	left   map[worker.ID]bool // workers that left at any time since last; true: Change.Moved has them
}

// Subscribe calls fn for every change from now on, and first for the present set, as
// soon as the view is ready. Calls come one at a time, in order, from a goroutine of
// Run. Several changes may come as one.
//
// After cancel no further call is made, but one that is on its way goes on: the channel
// that cancel returns closes when there is none. cancel does not wait, so fn may call it;
// fn must not wait for the channel. cancel may be called more than once.
func (v *View) Subscribe(fn ChangeFunc) (cancel func() (over <-chan struct{})) {
	s := &subscriber{fn: fn, over: make(chan struct{}), last: &worker.Snapshot{}, left: map[worker.ID]bool{}}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.subs = append(v.subs, s)
	v.wakeLocked()
	return func() <-chan struct{} {
		v.mu.Lock()
		defer v.mu.Unlock()
		i := slices.Index(v.subs, s)
		if i < 0 {
			return s.over
		}
		v.subs = slices.Delete(v.subs, i, i+1)
		if !s.called {
			close(s.over)
		}
		return s.over
	}
}

func (v *View) wakeLocked() {
	select {
	case v.kick <- struct{}{}:
	default:
	}
}

// publishLocked stores a new snapshot if the workers or the stale mark are different;
// setChanged says that the workers may be. If the set equals the present one, the
// snapshot stays, so that a listing which repeats what is known causes no call of
// subscribers.
func (v *View) publishLocked(setChanged bool) {
	stale := false
	for _, f := range v.feeds {
		if !f.reducer.HasSet() {
			return // requests must not see only a part of the sources
		}
		stale = stale || f.reducer.State() == Stale
	}
	old := v.snap.Load()
	first := !v.Ready()
	now := old
	if setChanged || first {
		now = v.mergeLocked(old, first)
	}
	if now.Stale() != stale {
		now = now.WithStale(stale)
	}
	if now == old {
		return
	}
	c := diff(old, now)
	anew := moved(c.Left, old, now)
	for _, s := range v.subs {
		for _, id := range c.Left {
			s.left[id] = false
		}
		for _, id := range anew {
			s.left[id] = true
		}
	}
	v.snap.Store(now)
	if first {
		close(v.ready)
	}
}

// mergeLocked returns a snapshot of the present sets, or old if nothing has changed.
// Workers that did not change keep their pointers.
func (v *View) mergeLocked(old *worker.Snapshot, first bool) *worker.Snapshot {
	parts := make([]part, len(v.feeds))
	for i, f := range v.feeds {
		parts[i] = part{source: v.cfg.Sources[i].Name, entries: f.reducer.Entries()}
	}
	workers, problems := merge(parts)
	for i, w := range workers {
		if o := old.Worker(w.ID); o != nil && o.Equal(w) {
			workers[i] = o
		}
	}
	now, err := worker.NewSnapshot(old.Revision()+1, workers)
	if err != nil { // merge lets nothing pass that NewSnapshot refuses
		now = old
		problems = append(problems, Problem{Kind: ProblemView, Text: err.Error()})
	}
	v.setProblemsLocked(problems)
	if !first && diff(old, now).IsZero() {
		return old
	}
	return now
}

func (v *View) setProblemsLocked(problems []Problem) {
	for _, p := range problems {
		if !slices.Contains(v.problems, p) {
			v.news = append(v.news, p)
		}
	}
	v.problems = problems
}

// touched has what the batches that are not published yet touch: their keys, and the
// ids and addresses of the workers that these keys hold and held.
type touched map[any]struct{}

// again reports whether a batch touches something that an earlier batch in t touches.
// The earlier ones must then be published first: otherwise a worker that was away for a
// moment would seem to have stayed. In that case t begins anew with this batch.
func (t touched) again(r *Reducer, b Batch) bool {
	var now []any
	for _, op := range b.Ops {
		now = append(now, op.Key)
		for _, w := range [...]*worker.Worker{op.Worker, r.entries[op.Key].Worker} {
			if w != nil {
				now = append(now, places(w)...)
			}
		}
	}
	known := func(x any) bool { _, is := t[x]; return is }
	again := slices.ContainsFunc(now, known)
	if again {
		clear(t)
	}
	for _, x := range now {
		t[x] = struct{}{}
	}
	return again
}

// places lists the id and the addresses of a worker.
func places(w *worker.Worker) []any {
	out := []any{w.ID}
	for at := range w.Addresses() {
		out = append(out, at)
	}
	return out
}

// diff compares two sets in one walk over both: both are sorted by id.
func diff(old, now *worker.Snapshot) Change {
	var c Change
	a, b := old.Workers(), now.Workers()
	for len(a) > 0 || len(b) > 0 {
		order := 0
		switch {
		case len(a) == 0:
			order = 1
		case len(b) == 0:
			order = -1
		default:
			order = cmp.Compare(a[0].ID, b[0].ID)
		}
		switch {
		case order < 0:
			c.Left = append(c.Left, a[0].ID)
			a = a[1:]
		case order > 0:
			c.Joined = append(c.Joined, b[0].ID)
			b = b[1:]
		default:
			if a[0] != b[0] && !a[0].Equal(b[0]) {
				c.Changed = append(c.Changed, a[0].ID)
			}
			a, b = a[1:], b[1:]
		}
	}
	return c
}

// moved returns those of left that nobody had withdrawn, and at whose addresses others are
// now: most likely the same processes under other ids.
func moved(left []worker.ID, old, now *worker.Snapshot) []worker.ID {
	type seat struct {
		at   worker.Endpoint
		role worker.Role
	}
	var here map[seat]bool
	return slices.DeleteFunc(slices.Clone(left), func(id worker.ID) bool {
		w := old.Worker(id)
		if w.Draining && !w.Expired {
			return true
		}
		if here == nil {
			here = map[seat]bool{}
			for _, o := range now.Workers() {
				here[seat{o.Endpoint, o.Role}] = true
			}
		}
		return !here[seat{w.Endpoint, w.Role}]
	})
}

// returned adds to Left and Joined the workers that are in both snapshots but were away
// at some time between them, and removes these workers from Changed. It sets Moved.
func (c Change) returned(left map[worker.ID]bool, old, now *worker.Snapshot) Change {
	for id := range left {
		if old.Worker(id) != nil && now.Worker(id) != nil {
			c.Left = append(c.Left, id)
			c.Joined = append(c.Joined, id)
			c.Changed = slices.DeleteFunc(c.Changed, func(o worker.ID) bool { return o == id })
		}
	}
	slices.Sort(c.Left)
	slices.Sort(c.Joined)
	for _, id := range c.Left {
		if left[id] {
			c.Moved = append(c.Moved, id)
		}
	}
	return c
}

// notify calls hooks and subscribers until stop is closed and everything is delivered.
func (v *View) notify(stop <-chan struct{}) {
	for {
		select {
		case <-v.kick:
			v.tell()
		case <-stop:
			v.tell()
			return
		}
	}
}

// tell delivers what is pending now.
func (v *View) tell() {
	v.mu.Lock()
	transitions, news := v.transitions, v.news
	v.transitions, v.news = nil, nil
	subs := slices.Clone(v.subs)
	v.mu.Unlock()
	if h := v.cfg.Hooks.Transition; h != nil {
		for _, t := range transitions {
			h(t)
		}
	}
	if h := v.cfg.Hooks.Problem; h != nil {
		for _, p := range news {
			h(p)
		}
	}
	for _, s := range subs {
		v.tellSubscriber(s)
	}
}

func (v *View) tellSubscriber(s *subscriber) {
	v.mu.Lock()
	old, now := s.last, v.snap.Load()
	if !v.Ready() || now == old || !slices.Contains(v.subs, s) {
		v.mu.Unlock()
		return
	}
	c := diff(old, now).returned(s.left, old, now)
	s.last, s.left, s.called = now, map[worker.ID]bool{}, true
	v.mu.Unlock()
	s.fn(old, now, c)
	v.mu.Lock()
	defer v.mu.Unlock()
	s.called = false
	if !slices.Contains(v.subs, s) {
		close(s.over)
	}
}
