package discovery

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/pkg/worker"
)

// askEvery is the pause between two questions to a worker whose record has expired, and
// askGap what each such worker adds to it: a hundred questions a second, however many.
const (
	askEvery = time.Second
	askGap   = 10 * time.Millisecond
	askMost  = 64 // questions under way at a time
)

// Answer is what has come of a question to a worker whose record has expired.
type Answer struct {
	Kind   AnswerKind
	Models []string // of Heard: the models that it says it serves; none: it did not say
	Why    string   // of the others, for the log
}

// AnswerKind says what an answer shows.
type AnswerKind uint8

// The kinds of answer. Only Refused is a proof.
const (
	Heard    AnswerKind = iota // it has answered, whatever it was
	Doubtful                   // this question had no connection, or no answer in time
	Silent                     // the same, and other questions or requests have found it silent, too
	Refused                    // nothing listens there
)

// Expired is a worker whose record has expired: its key is gone, and nobody has withdrawn
// it.
type Expired struct {
	Worker *worker.Worker // as its record was
	Since  time.Time      // when the record expired
	// Stale says that the worker goes on: half or more of a role have expired together,
	// and it has not been found dead. Else it drains, and leaves after a lease.
	Stale bool
	// Over says why this has ended; "": it has not. Back says that the worker is
	// registered again; else it has left.
	Over string
	Back bool
}

// expiries are the workers of one source whose records have expired. It is pure: it is
// given time and answers. The zero value has none.
type expiries struct {
	held map[string]*expiry // by key
	over []Expired          // what has ended since the last call of news
}

// expiry is one of them.
type expiry struct {
	Expired
	entry  Entry
	names  []string  // that its answers must share one with; nil: none has come yet
	told   *bool     // Stale as news told it last; nil: not told
	due    time.Time // when it is to be asked
	asking bool
}

// expires reports whether the disappearance of an entry's key shows only that whoever kept
// it is silent. A worker that drains was asked to leave, and one that another program
// fronts cannot be asked anything.
func (e *Entry) expires() bool {
	return e.Lease > 0 && e.Worker != nil && !e.Worker.Draining && !e.Worker.Fronted
}

// fold applies an event, and returns the entries that have expired by it. A lease that runs
// out deletes keys and writes none: a revision that does both is somebody's transaction.
func (r *Reducer) fold(ev Event) (expired []Entry, err error) {
	switch ev := ev.(type) {
	case Batches:
		for _, b := range ev {
			some, err := r.fold(b)
			expired = append(expired, some...)
			if err != nil {
				return expired, err
			}
		}
		return expired, nil
	case Batch:
		writes := slices.ContainsFunc(ev.Ops, func(op Op) bool { return !op.Gone })
		for _, op := range ev.Ops {
			if e := r.entries[op.Key]; !writes && e.expires() {
				expired = append(expired, e)
			}
		}
		if err := r.Apply(ev); err != nil {
			return nil, err
		}
		return expired, nil
	case List:
		before := r.entries
		if err := r.Apply(ev); err != nil {
			return nil, err
		}
		for _, key := range slices.Sorted(maps.Keys(before)) {
			e := before[key]
			if _, there := r.entries[key]; !there && e.expires() {
				expired = append(expired, e)
			}
		}
		return expired, nil
	default:
		return nil, r.Apply(ev)
	}
}

// follow takes which entries have expired, and which ones the source has now.
func (x *expiries) follow(expired []Entry, fresh map[string]Entry, now time.Time) {
	if len(expired) == 0 && len(x.held) == 0 {
		return
	}
	if x.held == nil {
		x.held = map[string]*expiry{}
	}
	for _, e := range expired {
		x.held[e.Key] = &expiry{entry: e, Expired: Expired{Worker: e.Worker, Since: now}, due: now}
	}
	// A process that registers again has another key, and the address from before.
	known := map[any]struct{}{}
	for _, e := range fresh {
		if e.Worker != nil {
			known[e.Worker.ID] = struct{}{}
			for at := range e.Worker.Addresses() {
				known[at] = struct{}{}
			}
		}
	}
	for key, h := range x.held {
		_, back := fresh[key]
		_, same := known[h.Worker.ID]
		back = back || same
		for at := range h.Worker.Addresses() {
			_, taken := known[at]
			back = back || taken
		}
		if back {
			x.end(h, "a worker is registered at its address again", true)
		}
	}
	x.judge(fresh, now)
}

// judge finds the roles of which half or more have expired within one lease: what they
// have in common is more likely the way to the store than their death. Workers that are
// stale from before count on neither side.
func (x *expiries) judge(fresh map[string]Entry, now time.Time) {
	type role struct {
		worker.Key
		worker.Role
	}
	count := func(to map[role]int, w *worker.Worker) {
		for _, m := range w.Models {
			to[role{worker.Key{Model: m, Namespace: w.Namespace}, w.Role}]++
		}
	}
	here, gone := map[role]int{}, map[role]int{}
	for _, e := range fresh {
		if e.Worker != nil && !e.Worker.Draining {
			count(here, e.Worker)
		}
	}
	for _, h := range x.held {
		if now.Sub(h.Since) <= h.entry.Lease {
			count(gone, h.Worker)
		}
	}
	for _, h := range x.held {
		for _, m := range h.Worker.Models {
			r := role{worker.Key{Model: m, Namespace: h.Worker.Namespace}, h.Worker.Role}
			h.Stale = h.Stale || gone[r] > 0 && gone[r] >= here[r]
		}
	}
}

// tick drops the workers whose role has mostly stayed: their engines may be well, but
// nobody looks after them any more.
func (x *expiries) tick(now time.Time) {
	for _, h := range x.held {
		if !h.Stale && now.Sub(h.Since) >= h.entry.Lease {
			x.end(h, "most of its role have kept their records", false)
		}
	}
}

// ask returns the workers that are to be asked now, as asking, and when to call it again.
// A zero time means: after the next change.
func (x *expiries) ask(now time.Time) (due []*expiry, again time.Time) {
	under := 0
	for _, h := range x.held {
		if h.asking {
			under++
		}
	}
	earlier := func(t time.Time) {
		if again.IsZero() || t.Before(again) {
			again = t
		}
	}
	for _, h := range x.held {
		if !h.Stale {
			earlier(h.Since.Add(h.entry.Lease))
		}
		switch {
		case h.asking || under == askMost:
		case h.due.After(now):
			earlier(h.due)
		default:
			h.asking = true
			under++
			due = append(due, h)
		}
	}
	slices.SortFunc(due, func(a, b *expiry) int { return cmp.Compare(a.entry.Key, b.entry.Key) })
	return due, again
}

// answered takes an answer.
func (x *expiries) answered(h *expiry, a Answer, fresh map[string]Entry, now time.Time) {
	h.asking, h.due = false, now.Add(max(askEvery, time.Duration(len(x.held))*askGap))
	switch {
	case x.held[h.entry.Key] != h:
	case a.Kind == Refused, a.Kind == Silent && !x.last(h, fresh):
		x.end(h, a.Why, false)
	case a.Kind == Heard && h.differs(a.Models):
		x.end(h, "it serves other models: "+strings.Join(a.Models, ", "), false)
	}
}

// differs reports whether an engine that serves these models is another one. SGLang serves
// requests by any name, so its record may have names that it does not know: then the first
// answer says what the later ones must have.
func (h *expiry) differs(models []string) bool {
	first, shares := h.names == nil, func(m string) bool { return slices.Contains(h.names, m) }
	if first && len(models) > 0 {
		h.names = h.Worker.Models
	}
	switch {
	case len(models) == 0 || slices.ContainsFunc(models, shares):
		return false
	case first && h.Worker.Engine == worker.SGLang:
		h.names = models
		return false
	}
	return true
}

// last reports whether a model would have no worker of the role left: silence never takes
// the last one.
func (x *expiries) last(h *expiry, fresh map[string]Entry) bool {
	w := h.Worker
	others := func(m string) bool {
		serves := func(o *worker.Worker) bool {
			return o != nil && o != w && o.Role == w.Role && !o.Draining && o.Namespace == w.Namespace && slices.Contains(o.Models, m)
		}
		for _, e := range fresh {
			if serves(e.Worker) {
				return true
			}
		}
		for _, o := range x.held {
			if o.Stale && serves(o.Worker) {
				return true
			}
		}
		return false
	}
	return slices.ContainsFunc(w.Models, func(m string) bool { return !others(m) })
}

// end forgets a worker. What news has not told needs no end.
func (x *expiries) end(h *expiry, why string, back bool) {
	delete(x.held, h.entry.Key)
	if h.told != nil {
		h.Over, h.Back = why, back
		x.over = append(x.over, h.Expired)
	}
}

// news returns what has changed since the last call, by worker: new ones, those that have
// become stale, and those that have ended.
func (x *expiries) news() []Expired {
	out := x.over
	x.over = nil
	for _, h := range x.held {
		if h.told == nil || *h.told != h.Stale {
			h.told = new(bool)
			*h.told = h.Stale
			out = append(out, h.Expired)
		}
	}
	slices.SortStableFunc(out, func(a, b Expired) int { return cmp.Compare(a.Worker.ID, b.Worker.ID) })
	return out
}

// with returns a set together with the workers that are held. Those that are not stale
// drain. Any worker of the set that claims the same has precedence.
func (x *expiries) with(r *Reducer) []Entry {
	all := r.Entries()
	for _, key := range slices.Sorted(maps.Keys(x.held)) {
		h := x.held[key]
		e := Entry{Key: key, Worker: h.Worker, Revision: min(1, r.revision), Lease: h.entry.Lease}
		if !h.Stale {
			w := new(worker.Worker)
			*w = *h.Worker
			w.Draining = true
			e.Worker = w
		}
		all = append(all, e)
	}
	return all
}
