package discovery

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/seed-60ae5743/baton/internal/engine/engines"
	"github.com/seed-60ae5743/baton/pkg/worker"
)

// askEvery is the pause between two questions to a worker whose record has expired, and
// askGap what each such worker adds to it: a hundred questions a second, however many.
const (
	askEvery = time.Second
	askGap   = 10 * time.Millisecond
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

// doubtedFor is for how many leases a worker from before the start is asked that does not
// answer.
const doubtedFor = 10

// Expired is a worker whose record has expired: its key is gone, and nobody has withdrawn
// it.
type Expired struct {
	Worker *worker.Worker // as its record was
	Since  time.Time      // when the record expired; if Recalled, when this was seen
	// Recalled says that the worker was known before the start, and that the source has not
	// had it since.
	Recalled bool
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
	held    map[string]*expiry // by key
	changes []Expired          // since the last call of news
}

// expiry is one of them.
type expiry struct {
	Expired
	entry  Entry
	told   bool      // it has been in news
	doubt  bool      // it is recalled and has not answered since: it is not served
	names  []string  // that its answers must share one with; nil: none has come yet
	due    time.Time // when it is to be asked
	asking bool
}

// seat is a role of one model, of which a worker is one.
type seat struct {
	worker.Key
	worker.Role
}

func seats(w *worker.Worker) []seat {
	out := make([]seat, len(w.Models))
	for i, m := range w.Models {
		out[i] = seat{worker.Key{Model: m, Namespace: w.Namespace}, w.Role}
	}
	return out
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

// hold takes an entry that has expired.
func (x *expiries) hold(e Entry, now time.Time) *expiry {
	if x.held == nil {
		x.held = map[string]*expiry{}
	}
	h := &expiry{entry: e, Expired: Expired{Worker: e.Worker, Since: now}, due: now.Add(time.Duration(len(x.held)) * askGap)}
	x.held[e.Key] = h
	return h
}

// recall takes, before the first set is followed, the entries that were known before the
// start. Of the time between nothing is known, so one that has gone may as well have been
// withdrawn. It is held only if its role has nobody else, and is served only once it has
// answered; served says that they are served already.
func (x *expiries) recall(before []Entry, served bool, fresh map[string]Entry, now time.Time) {
	here := present(fresh)
	for _, e := range before {
		if e.expires() && slices.ContainsFunc(seats(e.Worker), func(s seat) bool { return here[s] == 0 }) {
			h := x.hold(e, now)
			h.Recalled, h.doubt = true, !served
		}
	}
}

// follow takes which entries have expired, and which ones the source has now. A process that
// registers again has another key, and the address from before.
func (x *expiries) follow(expired []Entry, fresh map[string]Entry, now time.Time) {
	for _, e := range expired {
		x.hold(e, now)
	}
	if len(x.held) == 0 {
		return
	}
	known := map[any]bool{}
	for key, e := range fresh {
		known[key] = true
		if e.Worker != nil {
			for _, p := range places(e.Worker) {
				known[p] = true
			}
		}
	}
	for key, h := range x.held {
		if known[key] || slices.ContainsFunc(places(h.Worker), func(p any) bool { return known[p] }) {
			x.end(h, "a worker is registered at its address again", true)
		}
	}
	x.judge(fresh, now)
}

// present counts the workers of each role that a set has.
func present(set map[string]Entry) map[seat]int {
	out := map[seat]int{}
	for _, e := range set {
		if e.Worker != nil && !e.Worker.Draining {
			for _, s := range seats(e.Worker) {
				out[s]++
			}
		}
	}
	return out
}

// judge finds the roles of which half or more have expired within one lease: what they
// have in common is more likely the way to the store than their death. Workers that are
// stale from before count on neither side.
func (x *expiries) judge(fresh map[string]Entry, now time.Time) {
	here, gone := present(fresh), map[seat]int{}
	for _, h := range x.held {
		if !h.doubt && now.Sub(h.Since) <= h.entry.Lease {
			for _, s := range seats(h.Worker) {
				gone[s]++
			}
		}
	}
	for _, h := range x.held {
		stale := !h.doubt && slices.ContainsFunc(seats(h.Worker), func(s seat) bool { return gone[s] > 0 && gone[s] >= here[s] })
		if !h.told || stale && !h.Stale {
			h.told, h.Stale = true, stale
			x.changes = append(x.changes, h.Expired)
		}
	}
}

// leaves is when a worker is dropped that is not stale.
func (h *expiry) leaves() time.Time {
	if h.doubt {
		return h.Since.Add(doubtedFor * h.entry.Lease)
	}
	return h.Since.Add(h.entry.Lease)
}

// tick drops the workers whose role has mostly stayed: their engines may be well, but
// nobody looks after them any more.
func (x *expiries) tick(now time.Time) {
	for _, h := range x.held {
		switch {
		case h.Stale || now.Before(h.leaves()):
		case h.doubt:
			x.end(h, "it has not answered since the start", false)
		default:
			x.end(h, "most of its role have kept their records", false)
		}
	}
}

// ask returns the workers that are to be asked now, as asking, and when to call it again.
// A zero time means: after the next change.
func (x *expiries) ask(now time.Time) (due []*expiry, again time.Time) {
	earlier := func(t time.Time) {
		if again.IsZero() || t.Before(again) {
			again = t
		}
	}
	for _, h := range x.held {
		if !h.Stale {
			earlier(h.leaves())
		}
		switch {
		case h.asking:
		case h.due.After(now):
			earlier(h.due)
		default:
			h.asking = true
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
	case a.Kind == Heard && h.doubt:
		h.doubt, h.Since = false, now
		x.judge(fresh, now)
	}
}

// differs reports whether an engine that serves these models is another one. Some serve
// requests by any name, so their records may have names that they do not know: then the first
// answer says what the later ones must have. Not so before a recalled worker is served: too
// much may have changed at its address.
func (h *expiry) differs(models []string) bool {
	first, shares := h.names == nil, func(m string) bool { return slices.Contains(h.names, m) }
	if first && len(models) > 0 {
		h.names = h.Worker.Models
	}
	switch {
	case len(models) == 0 || slices.ContainsFunc(models, shares):
		return false
	case first && !h.doubt && engines.Of(h.Worker.Engine).ServesAnyModel:
		h.names = models
		return false
	}
	return true
}

// last reports whether a model would have no worker of the role left: silence never takes
// the last one.
func (x *expiries) last(h *expiry, fresh map[string]Entry) bool {
	left := present(fresh)
	for _, o := range x.held {
		if o != h && o.Stale {
			for _, s := range seats(o.Worker) {
				left[s]++
			}
		}
	}
	return slices.ContainsFunc(seats(h.Worker), func(s seat) bool { return left[s] == 0 })
}

// end forgets a worker. What news has not told needs no end.
func (x *expiries) end(h *expiry, why string, back bool) {
	delete(x.held, h.entry.Key)
	if h.told {
		h.Over, h.Back = why, back
		x.changes = append(x.changes, h.Expired)
	}
}

// news returns what has changed since the last call, by worker: who is new, has become
// stale, or has ended.
func (x *expiries) news() []Expired {
	out := x.changes
	x.changes = nil
	slices.SortStableFunc(out, func(a, b Expired) int { return cmp.Compare(a.Worker.ID, b.Worker.ID) })
	return out
}

// with returns a set together with the workers that are held. Those that are not stale
// drain. Any worker of the set that claims the same has precedence.
func (x *expiries) with(r *Reducer) []Entry {
	all := r.Entries()
	for _, key := range slices.Sorted(maps.Keys(x.held)) {
		h := x.held[key]
		w := new(worker.Worker)
		*w = *h.Worker
		w.Expired, w.Draining = true, !h.Stale
		all = append(all, Entry{Key: key, Worker: w, Revision: min(1, r.revision), Lease: h.entry.Lease})
	}
	return all
}
